"""Loading, binding and executing on cpu:0."""

from __future__ import annotations

import json
import shutil
import threading

import attrs
import numpy as np
import onnx
import pytest
from isthmus import Artifact, Capability, open_device
from isthmus.errors import ExecutionError, IncompatibleError, InputError, OutOfMemoryError, UnsupportedError
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


@pytest.fixture
def buffer(cpu, kept):
    """Allocate on cpu:0, with contents if given."""

    def make(size, array=None):
        kept.append(cpu.allocate(size))
        if array is not None:
            kept[-1].write(array)
        return kept[-1]

    return make


def reseal(artifact, tmp_path, **changes):
    """A copy of an artifact whose manifest differs, without its files having changed."""
    return attrs.evolve(artifact, manifest=attrs.evolve(artifact.manifest, **changes))


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT64", "INT32", "INT16", "INT8", "BOOL",
                                  "UINT64", "UINT32", "UINT16", "UINT8"])  # fmt: skip
@pytest.mark.parametrize("target", ["host", "reference"])
def test_tensors_of_every_byte_sized_type_pass_unchanged(models, kind, target):
    dtype = TensorProto.DataType.Value(kind)
    path = models.write([helper.make_node("Identity", ["x"], ["y"])], *({n: (dtype, [3, 5])} for n in "xy"), opset=21)
    artifact = models.compile(path, target=target)
    size = artifact.entries["main"].inputs[0].nbytes
    with open_device("cpu:reference" if target == "reference" else "cpu") as device, device.load(artifact) as program:
        data = np.arange(size, dtype=np.uint8) % (2 if kind == "BOOL" else 60)
        with device.allocate(size) as x, device.allocate(size) as y:
            x.write(data)
            program.execute("main", {"x": x}, {"y": y})
            assert y.read(size) == data.tobytes()


@pytest.mark.parametrize("target", ["host", "reference"])
@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
def test_four_bit_inputs_arrive_two_to_a_byte(models, kind, target):
    dtype = TensorProto.DataType.Value(kind)
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    path = models.write([node], {"x": (dtype, [5])}, {"y": (FLOAT, [5])}, {"s": np.array(0.5, np.float32)}, opset=21)
    artifact = models.compile(path, target=target)
    with open_device("cpu:reference" if target == "reference" else "cpu") as device, device.load(artifact) as program:
        got = program.run("main", {"x": np.array([0x21, 0x43, 0x07], np.uint8)})["y"]
    assert got.tolist() == [0.5, 1.0, 1.5, 2.0, 3.5]


def test_inputs_and_outputs_may_be_slices_of_one_buffer(models, cpu, buffer):
    artifact = models.compile(models.mlp(rows=1, width=16))
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    with cpu.load(artifact) as program:
        want = program.run("main", {"x": x})["y"]
        whole = buffer(1000)
        whole.write(x, 4)
        program.execute("main", {"x": whole[4:68]}, {"y": whole[100:164]})
        assert whole.read(64, 100) == want.tobytes()


def test_an_output_may_lie_inside_an_input(models, cpu, buffer):
    """As a decode step writes its new keys into the slot of the cache it reads."""
    nodes = [
        helper.make_node("Slice", ["cache", "zero", "three"], ["past"]),
        helper.make_node("ReduceSum", ["past"], ["new"], keepdims=1),
    ]
    weights = {"zero": np.array([0]), "three": np.array([3])}
    path = models.write(nodes, {"cache": (FLOAT, [4, 1])}, {"new": (FLOAT, [1, 1])}, weights)
    assert Capability.ALIASED_IO in cpu.capabilities
    with cpu.load(models.compile(path)) as program:
        cache = buffer(16, np.array([1, 2, 3, 9], np.float32))
        with program.bind("main", {"cache": cache}, {"new": cache[12:16]}) as binding:
            binding.execute()
            binding.execute()
        assert np.frombuffer(cache.read(), np.float32).tolist() == [1, 2, 3, 6]


def test_rebinding_one_tensor_leaves_the_others(models, cpu, buffer):
    node = helper.make_node("Sub", ["a", "b"], ["y"])
    path = models.write([node], {"a": (FLOAT, [1]), "b": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    with cpu.load(models.compile(path)) as program:
        a, b, other = (buffer(4, np.float32([value])) for value in (5, 3, 1))
        first, second = buffer(4), buffer(4)
        with program.bind("main", {"a": a, "b": b}, {"y": first}) as binding:
            binding.execute()
            assert np.frombuffer(first.read(), np.float32) == 2
            binding.rebind(inputs={"b": other})
            binding.execute()
            assert np.frombuffer(first.read(), np.float32) == 4
            binding.rebind(outputs={"y": second})
            binding.execute()
        assert np.frombuffer(second.read(), np.float32) == 4


def test_empty_tensors_can_be_bound(models, cpu, reference):
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    path = models.write([node], {"a": (FLOAT, [0, 2]), "b": (FLOAT, [1, 2])}, {"y": (FLOAT, [1, 2])})
    for device, target in ((cpu, "host"), (reference, "reference")):
        with device.load(models.compile(path, target=target)) as program:
            got = program.run("main", {"a": np.zeros((0, 2), np.float32), "b": np.ones((1, 2), np.float32)})
            assert got["y"].tolist() == [[1, 1]]
    empty = models.write([helper.make_node("Relu", ["x"], ["y"])], *({n: (FLOAT, [0, 3])} for n in "xy"))
    with cpu.load(models.compile(empty)) as program:
        assert program.run("main", {"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 3)


def test_a_failure_while_running_carries_what_the_runtime_said(models, cpu):
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="lookup")
    path = models.write([node], {"x": (FLOAT, [3]), "i": (TensorProto.INT64, [1])}, {"y": (FLOAT, [1])})
    with cpu.load(models.compile(path)) as program:
        x = np.ones(3, np.float32)
        with pytest.raises(ExecutionError, match="entry 'main'") as caught:
            program.run("main", {"x": x, "i": np.array([7])})
        assert "indices" in caught.value.status.text
        assert program.run("main", {"x": x, "i": np.array([2])})["y"] == 1


def test_prepacking_does_not_change_results_beyond_rounding(models):
    artifact = models.compile(models.mlp(rows=8, width=128, layers=3))
    x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    results = []
    for prepack in ("auto", "on", "off"):
        with open_device("cpu", options={"prepack": prepack}) as device, device.load(artifact) as program:
            results.append(program.run("main", {"x": x})["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-5, atol=1e-6)


def test_execution_is_deterministic(models):
    artifact = models.compile(models.attention(tokens=64, heads=4, width=64))
    x = np.random.default_rng(0).standard_normal((1, 64, 64)).astype(np.float32)
    with open_device("cpu", options={"threads": 2}) as device, device.load(artifact) as program:
        assert len({program.run("main", {"x": x})["y"].tobytes() for _ in range(10)}) == 1


def test_four_threads_may_share_a_device(models):
    path = models.mlp(rows=2, width=64)
    artifact = models.compile(path)
    w = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    failures = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((2, 64)).astype(np.float32)
        want = x
        for i in range(2):
            want = np.maximum(want @ w[f"w{i}"] + w[f"b{i}"], 0)
        for n in range(25):
            if n % 8 == 0:
                with device.load(artifact) as mine:
                    got = mine.run("main", {"x": x})["y"]
            else:
                got = program.run("main", {"x": x})["y"]
            if not np.allclose(got, want, rtol=1e-4, atol=1e-4):
                failures.append(seed)

    with open_device("cpu") as device, device.load(artifact) as program:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_profile_has_the_run_and_every_node(models, cpu, buffer):
    artifact = models.compile(models.mlp(layers=3))
    with cpu.load(artifact) as program:
        size = program.entries["main"].inputs[0].nbytes
        with program.bind("main", {"x": buffer(size)}, {"y": buffer(size)}) as binding:
            events = binding.profile()
    nodes = onnx.load(artifact.file("main.onnx"), load_external_data=False).graph.node
    assert [e.name for e in events if not e.node] == ["run"]
    assert len([e for e in events if e.node]) == len(nodes)
    assert all(e.unit == "us" and e.value >= 0 for e in events)
    assert any(nodes[0].op_type in e.name for e in events)


def test_an_artifact_of_a_newer_runtime_is_refused_with_the_command(models, cpu, tmp_path):
    artifact = models.compile(models.mlp())
    newer = reseal(artifact, tmp_path, toolchain={"onnxruntime": "99.1.0"})
    with pytest.raises(IncompatibleError, match=r"99\.1\.0") as caught:
        cpu.load(newer)
    assert "pip install" in caught.value.fix


def test_an_artifact_whose_entries_are_not_its_manifests_is_refused(models, cpu, tmp_path):
    artifact = models.compile(models.mlp(rows=4))
    (spec,) = artifact.entries.values()
    other = attrs.evolve(spec, inputs=(attrs.evolve(spec.inputs[0], shape=(5, 32)),))
    with pytest.raises(IncompatibleError, match="the manifest states"):
        cpu.load(reseal(artifact, tmp_path, entries={"main": other}))
    with pytest.raises(IncompatibleError, match="the manifest states"):
        cpu.load(reseal(artifact, tmp_path, entries={"main": spec, "more": spec}))
    reference = models.compile(models.mlp(rows=4), target="reference")
    with open_device("cpu:reference") as device, pytest.raises(IncompatibleError, match="manifest states"):
        device.load(reseal(reference, tmp_path, entries={"main": other}))


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9}', '{"format": 1, "entries": {}, "unpacked": "many"}'])
def test_damaged_figures_are_refused(models, cpu, text):
    artifact = models.compile(models.mlp())
    artifact.file("cpu.json").write_text(text)
    with pytest.raises(IncompatibleError, match=r"cpu\.json"):
        cpu.memory_requirements(artifact)


def test_a_graph_that_was_damaged_after_it_was_verified_is_refused(models, cpu):
    artifact = models.compile(models.mlp())
    artifact.file("main.onnx").write_bytes(b"garbage")
    with pytest.raises(IncompatibleError, match="cannot be loaded"):
        cpu.load(artifact)


def test_arena_limit_refuses_a_program_that_needs_more(models):
    artifact = models.compile(models.mlp(rows=64, width=64, layers=4))
    need = artifact.manifest.memory.peak_workspace
    assert need > 0
    told = f"needs {need} bytes .* is {need - 1}"
    with open_device("cpu", options={"arena_limit": need - 1}) as device, pytest.raises(OutOfMemoryError, match=told):
        device.load(artifact)
    with open_device("cpu", options={"arena_limit": need}) as device, device.load(artifact):
        pass


def test_a_program_that_does_not_fit_is_refused_before_it_is_read(models, cpu, monkeypatch):
    artifact = models.compile(models.mlp(width=512))
    little = attrs.evolve(cpu.memory_info(), free=1 << 20)
    monkeypatch.setattr("isthmus_cpu_ref.driver.host_memory", lambda: little)
    with pytest.raises(OutOfMemoryError, match=r"needs \d+ bytes .*; 1048576 bytes are free") as caught:
        cpu.load(artifact)
    assert "prepack=off" in caught.value.fix
    with open_device("cpu", options={"prepack": "off"}) as device, device.load(artifact):
        pass  # mapped: nothing is allocated for weights


LIMITED = """
import json, resource, sys
from pathlib import Path
from isthmus import Artifact, open_device
from isthmus.errors import OutOfMemoryError
warm_up, artifact = (Artifact.open(path) for path in sys.argv[1:])
with open_device("cpu", options={"threads": 1}) as device:
    device.load(warm_up).close()
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (virtual + (96 << 20), -1))
    try:
        device.load(artifact).close()
        print(json.dumps(None))
    except OutOfMemoryError as error:
        print(json.dumps([error.what, error.status.symbol, error.exit_code]))
"""


def test_a_refusal_of_memory_while_loading_is_told_with_figures(models, in_child):
    """The file of 64 MB can be mapped under the limit, its packed copy cannot be had."""
    large = models.compile(models.mlp(width=2048, layers=4))
    what, symbol, code = in_child(LIMITED, models.compile(models.mlp()).path, large.path)
    assert "bytes; " in what
    assert symbol
    assert code == 1


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": "many"}, {"arena_limit": -1}, {"prepack": "maybe"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError):
        open_device("cpu", options=options)


def test_a_caller_workspace_is_not_offered(models, cpu, buffer):
    with pytest.raises(UnsupportedError, match="caller_workspace"):
        cpu.load(models.compile(models.mlp()), workspace=buffer(1 << 20))


def test_weights_are_read_where_the_caller_put_them(models, cpu, buffer):
    """Changing the memory changes the results: there is no copy."""
    artifact = models.compile(models.mlp(width=512))  # biases are too large to lie inside the graph
    need = cpu.memory_requirements(artifact)
    block = buffer(need.weights + 128)
    x = np.ones((4, 512), np.float32)
    with cpu.load(artifact, weights=block[128:]) as program:
        assert program.run("main", {"x": x})["y"].any()
        block.write(bytes(need.weights), 128)
        assert not program.run("main", {"x": x})["y"].any()
    with cpu.load(artifact, weights=block[128:]) as program:  # loading fills it again
        assert program.run("main", {"x": x})["y"].any()


@pytest.mark.parametrize(("prepack", "quantized"), [("on", False), ("auto", True), ("off", True)])
def test_weights_that_are_packed_are_reported_as_a_second_copy(models, prepack, quantized):
    artifact = models.compile(models.quantized() if quantized else models.mlp(width=64))
    with open_device("cpu", options={"prepack": prepack}) as device:
        need = device.memory_requirements(artifact)
        (spec,) = artifact.entries["main"].inputs
        x = np.ones(spec.shape, np.float32)
        with device.allocate(need.weights) as block, device.load(artifact, weights=block) as program:
            before = program.run("main", {"x": x})["y"]
            block.write(bytes(need.weights))
            after = program.run("main", {"x": x})["y"]
    assert after.any()  # the packed copy still has the weights
    assert not quantized or (before == after).all()
    packed = json.loads(artifact.file("cpu.json").read_text())["entries"]["main"]["packed"]
    assert packed > 0
    assert need.caller_load >= packed


def test_a_copied_artifact_loads_from_its_new_place(models, cpu, tmp_path):
    artifact = models.compile(models.mlp())
    moved = shutil.copytree(artifact.path, tmp_path / "elsewhere")
    shutil.rmtree(artifact.path)
    with cpu.load(Artifact.open(moved)) as program:
        assert program.run("main", {"x": np.ones((4, 32), np.float32)})["y"].any()


CYCLES = """
import gc, json, sys
from pathlib import Path
import numpy as np
from isthmus import Artifact, open_device
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
artifact, sizes = Artifact.open(sys.argv[1]), []
x = np.ones(artifact.entries["main"].inputs[0].shape, np.float32)
with open_device("cpu", options={"threads": 2}) as device:
    for n in range(200):
        block = device.allocate(artifact.manifest.memory.weights)
        with device.load(artifact, weights=block if n % 2 else None) as program:
            program.run("main", {"x": x})
        block.close()
        if n in (50, 199):
            gc.collect()
            sizes.append(resident())
print(json.dumps(sizes[1] - sizes[0]))
"""


def test_200_cycles_of_load_and_unload_leave_nothing_behind(models, in_child):
    artifact = models.compile(models.mlp(width=512, layers=2))  # 2 MB of weights
    assert in_child(CYCLES, artifact.path) < 2 << 20
