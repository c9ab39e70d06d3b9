"""The fault table: what is wrong with an artifact or a buffer gives its own error, and nothing crashes."""

import attrs
import numpy as np
import pytest
from isthmus import open_device
from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError, InputError, IntegrityError
from isthmus.types import DType, Quantization, TensorSpec
from isthmus_qnn_htp.layout import CONTEXT, PROGRAM, BinaryRecord


def works(device, good, wanted):
    """The device is as good as before."""
    with device.load(good) as program:
        np.testing.assert_array_equal(program.run("main", wanted.inputs)["y"], wanted.outputs["y"])


@pytest.fixture
def fp32(contexts, case):
    return case(contexts, "fp32")


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b[:100] + b"\xff" + b[101:], lambda b: b[:8192] + bytes(8192) + b[16384:]],
    ids=["truncated", "flipped", "zeroed weights"],
)
def test_a_damaged_file_is_caught_by_its_hash(artifact, fp32, damage):
    made = artifact(fp32.binary)
    file = made.path / CONTEXT
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(IntegrityError):
        Artifact.open(made.path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:1000],
        lambda b: b[:4096],
        lambda b: b[: len(b) // 2],
        lambda b: bytes(len(b)),
        lambda b: b"\x7fELF" + b[4:],
        lambda b: np.random.default_rng(0).bytes(len(b)),
    ],
    ids=["empty", "header cut", "header only", "half", "zeros", "other magic", "random"],
)
def test_a_damaged_binary_whose_hash_is_right_is_refused_by_the_runtime(device, artifact, fp32, damage):
    bad = artifact(fp32.binary, damage=damage)
    with pytest.raises((IntegrityError, IncompatibleError)):
        device.load(bad)
    works(device, artifact(fp32.binary), fp32)


def test_metadata_that_was_flipped_is_compared_with_the_manifest(device, artifact, fp32):
    """A flipped shape loads with status 0."""
    name = fp32.binary.read_bytes().index(b"\x01\x00\x00\x00x\x00\x00\x00")  # a flatbuffer string: length 1, "x"
    bad = artifact(fp32.binary, damage=lambda b: b[: name + 4] + b"z" + b[name + 5 :])
    with pytest.raises(IncompatibleError, match=r"the binary has \['z'\], the manifest \['x'\]"):
        device.load(bad)


@pytest.mark.parametrize(
    ("edit", "error", "text"),
    [
        ({"sdk": "2.99.1"}, IncompatibleError, r"compiled with QNN 2.99.1, the runtime is v2\.\d+"),
        ({"sdk": "tomorrow"}, IncompatibleError, "'tomorrow' is not a QNN version"),
        ({"arch": 79}, IncompatibleError, "is for arch 75, program.json says 79"),
        ({"soc": 60}, IncompatibleError, "is for SoC 57, program.json says 60"),
        ({"binaries": {CONTEXT: BinaryRecord({"no_such_graph": "main"})}}, IncompatibleError, "no_such_graph"),
        ({"binaries": {CONTEXT: BinaryRecord({"g": "other"})}}, IncompatibleError, "entries .'other'., the manifest"),
        ({"binaries": {"gone.bin": BinaryRecord({"g": "main"})}}, IntegrityError, "gone.bin"),
        ({"binaries": {"../gone.bin": BinaryRecord({"g": "main"})}}, IntegrityError, "gone.bin"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_with_both_figures(device, artifact, fp32, edit, error, text):
    bad = artifact(fp32.binary, edit=lambda record: attrs.evolve(record, **edit))
    with pytest.raises(error, match=text):
        device.load(bad)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1}', '{"format": 1, "soc": "57"}'])
def test_a_damaged_program_json_is_an_error_of_ours(child_device, artifact, fp32, text):
    made = artifact(fp32.binary)
    (made.path / PROGRAM).write_text(text)
    with pytest.raises((InputError, IncompatibleError), match=PROGRAM):
        child_device.load(made)


def test_a_binary_that_is_there_but_not_in_the_manifest_is_refused(child_device, artifact, fp32):
    """Its hash was never checked."""
    outside = artifact(fp32.binary).path.name
    name = f"../{outside}/{CONTEXT}"
    bad = artifact(fp32.binary, edit=lambda r: attrs.evolve(r, binaries={name: r.binaries[CONTEXT]}))
    with pytest.raises(IntegrityError, match="has no file"):
        child_device.load(bad)


def respec(change):
    def apply(entries):
        spec = entries["main"]
        return {"main": attrs.evolve(spec, inputs=tuple(change(s) for s in spec.inputs))}

    return apply


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: attrs.evolve(s, dtype=DType.FLOAT16), "float32.*float16"),
        (lambda s: attrs.evolve(s, shape=(64, 2)), r"\[2, 64\].*\[64, 2\]"),
        (lambda s: attrs.evolve(s, name="other"), r"\['x'\].*\['other'\]"),
        (lambda s: attrs.evolve(s, quantization=Quantization((1.0,), (0,))), "with None.*with Quantization"),
    ],
)
def test_a_manifest_that_states_another_tensor_is_refused(child_device, artifact, fp32, change, text):
    with pytest.raises(IncompatibleError, match=text):
        child_device.load(artifact(fp32.binary, respec=respec(change)))


def test_quantisation_of_another_scale_is_refused(child_device, artifact, contexts, case):
    twice = respec(lambda s: attrs.evolve(s, quantization=Quantization((2 * s.quantization.scale[0],), (128,))))
    with pytest.raises(IncompatibleError, match="scale"):
        child_device.load(artifact(case(contexts, "u8").binary, respec=twice))


def test_a_binary_for_another_architecture_is_refused(artifact, sm8750_contexts, case, isolation):
    with open_device("qnn_htp", options={**isolation, "soc": "sm8650"}) as device:
        other = artifact(case(sm8750_contexts, "fp32").binary, target="sm8750")
        with pytest.raises(IncompatibleError, match="is for Hexagon v79, the device is v75"):
            device.load(other)


def test_a_binary_for_another_soc_is_refused_unless_it_was_compiled_for_the_architecture(artifact, fp32):
    with open_device("qnn_htp", options={"soc": "qcs8300"}) as device:
        with pytest.raises(IncompatibleError, match=r"is for SoC 57 \(target sm8650\), the device is SoC 82"):
            device.load(artifact(fp32.binary))
        works(device, artifact(fp32.binary, target="v75"), fp32)


def test_shared_weights_never_reach_the_emulator_which_they_kill(device, artifact, contexts, case, fp32):
    shared = artifact(case(contexts, "shared").binary, ("prefill", "decode"))
    with pytest.raises(IncompatibleError, match=r"\d+ bytes of weights shared by its graphs, the x86 emulator takes 0"):
        device.load(shared)
    works(device, artifact(fp32.binary), fp32)


def test_an_artifact_of_another_backend_is_refused(child_device, artifact, fp32):
    made = artifact(fp32.binary)
    other = Artifact(made.path, attrs.evolve(made.manifest, backend="ascend"))
    with pytest.raises(IncompatibleError, match="compiled for ascend"):
        child_device.load(other)


def test_buffers_that_do_not_fit_never_reach_the_runtime_which_would_write_past_them(device, artifact, fp32):
    with device.load(artifact(fp32.binary)) as program, device.allocate(4096) as memory:
        x, y = memory[0:512], memory[1024:1280]
        with program.bind("main", {"x": x}, {"y": y}) as binding:
            binding.execute()
        for inputs, outputs, text in (
            ({"x": memory[0:511]}, {"y": y}, "needs 512 bytes"),
            ({"x": x}, {"y": memory[1024:1279]}, "needs 256 bytes"),
            ({"x": memory[2:514]}, {"y": y}, "starts at byte 2"),
            ({"x": x}, {"y": memory[1025:1281]}, "starts at byte 1025"),
            ({"x": memory.view(TensorSpec("x", DType.INT32, (2, 64)))}, {"y": y}, "got x: int32"),
            ({"x": memory.view(TensorSpec("x", DType.FLOAT32, (64, 2)))}, {"y": y}, r"got x: float32\[64, 2\]"),
            ({}, {"y": y}, "missing"),
        ):
            with pytest.raises(InputError, match=text):
                program.bind("main", inputs, outputs)
