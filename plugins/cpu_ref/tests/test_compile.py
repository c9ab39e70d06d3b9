"""Compiling for target host."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import pytest
from isthmus import DType
from isthmus.errors import CompileError, InputError
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def external(model):
    return {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}


def test_big_tensors_start_on_pages_and_small_ones_on_cache_lines(models):
    path = models.mlp(width=40, layers=3)  # weights of 6400 bytes, biases of 160
    wide = models.mlp(width=320, layers=1)  # a bias of 1280 bytes
    for source in (path, wide):
        artifact = models.compile(source)
        places = external(onnx.load(artifact.file("main.onnx"), load_external_data=False))
        assert places
        for fields in places.values():
            assert fields["location"] == "weights.data"
            assert int(fields["offset"]) % (4096 if int(fields["length"]) >= 4096 else 64) == 0
        end = max(int(f["offset"]) + int(f["length"]) for f in places.values())
        assert end == artifact.manifest.memory.weights == artifact.file("weights.data").stat().st_size


def test_entries_with_the_same_weights_store_them_once(models, cpu):
    where = models.root / "set"
    files = {f"m{rows}": models.mlp(rows=rows, width=64, name=f"m{rows}", where=where) for rows in (1, 8)}
    one = models.compile(files["m1"])
    both = models.compile(models.graph_set(files))
    assert both.manifest.memory.weights == one.manifest.memory.weights
    with cpu.load(both) as program:
        x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
        many = program.run("m8", {"x": x})["y"]
        np.testing.assert_allclose(program.run("m1", {"x": x[3:4]})["y"], many[3:4], rtol=1e-5, atol=1e-6)


def test_compiling_twice_gives_the_same_files(models):
    path = models.attention(tokens=32, heads=2, width=32)
    first, second = (models.compile(path) for _ in range(2))
    assert first.manifest.files == second.manifest.files
    assert first.manifest.memory == second.manifest.memory


def test_the_manifest_says_what_compiled_it_and_how_close_results_are(models):
    manifest = models.compile(models.mlp()).manifest
    assert manifest.toolchain["onnxruntime"]
    assert manifest.toolchain["onnx"] == onnx.__version__
    assert manifest.tolerance.rtol <= 1e-4
    halves = models.compile(models.mlp(dtype=np.float16)).manifest
    assert halves.tolerance.rtol > manifest.tolerance.rtol
    assert any("float32" in note for note in halves.notes)


def test_graph_optimisation_follows_the_option(models):
    path = models.mlp()
    count = {
        level: len(onnx.load(models.compile(path, optimization=level).file("main.onnx")).graph.node)
        for level in ("none", "extended")
    }
    assert count["extended"] < count["none"] == 6
    with pytest.raises(InputError, match=r"none\|basic\|extended"):
        models.compile(path, optimization="all")


@pytest.mark.parametrize("axis", ["batch", None])
def test_a_free_input_dimension_is_refused_with_its_name_and_the_fix(models, axis):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = models.write([node], {"x": (FLOAT, [axis, 3])}, {"y": (FLOAT, [axis, 3])})
    with pytest.raises(CompileError, match=r"input 'x' of entry 'main' has a free dimension: axis 0") as caught:
        models.compile(path)
    assert "make_dynamic_shape_fixed" in caught.value.fix
    assert (axis or "unnamed") in caught.value.what


def test_an_output_whose_size_depends_on_data_is_refused(models):
    node = helper.make_node("NonZero", ["x"], ["y"])
    path = models.write([node], {"x": (FLOAT, [4])}, {"y": (TensorProto.INT64, [1, None])})
    with pytest.raises(CompileError, match=r"output 'y' .* axis 1"):
        models.compile(path)


def test_the_shape_of_an_output_is_inferred_where_the_file_leaves_it_open(models):
    node = helper.make_node("Relu", ["x"], ["y"])
    path = models.write([node], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [None, 3])})
    assert models.compile(path).entries["main"].outputs[0].shape == (2, 3)
    assert models.compile(path, target="reference").entries["main"].outputs[0].shape == (2, 3)


def test_an_operator_the_runtime_lacks_is_refused_by_name(models):
    path = models.write(
        [helper.make_node("Frobnicate", ["x"], ["y"], name="middle", domain="com.microsoft")],
        {"x": (FLOAT, [2])},
        {"y": (FLOAT, [2])},
    )
    with pytest.raises(CompileError, match="does not run on ONNX Runtime") as caught:
        models.compile(path)
    assert "Frobnicate" in caught.value.status.text
    with pytest.raises(CompileError, match="Frobnicate"):
        models.compile(path, target="reference")


def test_an_input_that_is_no_tensor_is_refused(models):
    path = models.write([helper.make_node("SequenceLength", ["x"], ["y"])], {}, {"y": (TensorProto.INT64, [])})
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_sequence_value_info("x", FLOAT, [2]))
    onnx.save(model, path)
    with pytest.raises(CompileError, match=r"input 'x' .* not a tensor"):
        models.compile(path)


def test_an_output_that_is_an_input_is_refused(models):
    """ONNX Runtime would leave its buffer unwritten."""
    io = {"x": (FLOAT, [2])}
    path = models.write([helper.make_node("Relu", ["x"], ["y"])], io, {**io, "y": (FLOAT, [2])})
    with pytest.raises(CompileError, match=r"output 'x' .* is an input"):
        models.compile(path)


@pytest.mark.parametrize("target", ["host", "reference"])
def test_outputs_that_no_node_computes_when_it_runs_are_written(models, cpu, reference, target):
    """One is folded when compiled, one is a weight, two are one result."""
    nodes = [
        helper.make_node("Add", ["w", "w"], ["folded"]),
        helper.make_node("Relu", ["x"], ["t"]),
        *(helper.make_node("Identity", ["t"], [name]) for name in ("one", "two")),
    ]
    outputs = {"folded": (FLOAT, [400]), "w": (FLOAT, [400]), "one": (FLOAT, [2]), "two": (FLOAT, [2])}
    path = models.write(nodes, {"x": (FLOAT, [2])}, outputs, {"w": np.full(400, 3, np.float32)})
    device = cpu if target == "host" else reference
    with device.load(models.compile(path, target=target)) as program:
        got = program.run("main", {"x": np.float32([-1, 5])})
    assert (got["folded"] == 6).all()
    assert (got["w"] == 3).all()
    assert got["one"].tolist() == got["two"].tolist() == [0, 5]


@pytest.mark.parametrize("target", ["host", "reference"])
def test_a_constant_kept_outside_the_file_is_found(models, cpu, reference, target):
    value = onnx.numpy_helper.from_array(np.full(400, 3, np.float32), "value")
    nodes = [helper.make_node("Constant", [], ["c"], value=value), helper.make_node("Add", ["x", "c"], ["y"])]
    path = models.write(nodes, *({n: (FLOAT, [400])} for n in "xy"))
    model = onnx.load(path)
    path.unlink()
    where = {"location": "c.data", "size_threshold": 16, "convert_attribute": True}
    onnx.save(model, path, save_as_external_data=True, **where)
    device = cpu if target == "host" else reference
    with device.load(models.compile(path, target=target)) as program:
        assert (program.run("main", {"x": np.ones(400, np.float32)})["y"] == 4).all()


def test_a_string_input_is_refused(models):
    path = models.write([helper.make_node("Identity", ["x"], ["y"])], *({n: (TensorProto.STRING, [2])} for n in "xy"))
    with pytest.raises(CompileError, match="STRING"):
        models.compile(path)


@pytest.mark.parametrize("target", ["host", "reference"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_incomplete_weights_are_refused(models, target, damage):
    path = models.mlp()
    data = path.with_suffix(".data")
    data.unlink() if damage == "missing" else data.write_bytes(data.read_bytes()[:-1000])
    with pytest.raises(CompileError):
        models.compile(path, target=target)


@pytest.mark.parametrize("target", ["host", "reference"])
def test_weights_outside_the_directory_are_refused(models, target):
    path = models.mlp()
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for field in tensor.external_data:
            if field.key == "location":
                field.value = "../../etc/passwd"
    path.write_bytes(model.SerializeToString())
    with pytest.raises((InputError, CompileError)):
        models.compile(path, target=target)


@pytest.mark.parametrize("target", ["host", "reference"])
@pytest.mark.parametrize("content", [b"", b"not a protobuf at all", b"\x08"])
def test_a_file_that_is_no_model_is_refused(models, tmp_path, target, content):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(CompileError, match=r"bad\.onnx"):
        models.compile(path, target=target)


MUTATE = """
import json, random, shutil, sys
from pathlib import Path
from isthmus import compile, IsthmusError
source, target = Path(sys.argv[1]), sys.argv[2]
original, random, count = source.read_bytes(), random.Random(7), {"refused": 0, "compiled": 0}
for _ in range(25):
    data = bytearray(original)
    for _ in range(random.choice([1, 1, 4])):
        at = random.randrange(len(data))
        if random.random() < 0.7:
            data[at] = random.randrange(256)
        else:
            del data[at : at + random.randrange(1, 30)]
    mutant, out = source.with_name("mutant.onnx"), source.with_name("mutant")
    mutant.write_bytes(data)
    try:
        compile("cpu", mutant, out, target=target)
        count["compiled"] += 1
    except IsthmusError:
        count["refused"] += 1
    shutil.rmtree(out, ignore_errors=True)
print(json.dumps(count))
"""


@pytest.mark.parametrize("target", ["host", "reference"])
def test_a_damaged_model_compiles_or_is_refused_and_nothing_else(models, in_child, target):
    count = in_child(MUTATE, models.attention(tokens=4, heads=2, width=8), target)
    assert count["refused"] > 0
    assert count["compiled"] > 0


COMPILE_LARGE = """
import json, sys, resource
from isthmus import compile
import onnxruntime
from pathlib import Path
Path("/proc/self/clear_refs").write_text("5")
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("VmHWM"))
before = peak()
compile("cpu", sys.argv[1], sys.argv[2])
print(json.dumps(peak() - before))
"""


def test_compiling_takes_a_fraction_of_the_weights_in_memory(models, in_child, tmp_path):
    width, layers = 2048, 12  # 16 MB each
    node = helper.make_node
    nodes = [node("MatMul", ["x" if not i else f"y{i}", f"w{i}"], [f"y{i + 1}"]) for i in range(layers)]
    path = models.write(nodes, {"x": (FLOAT, [1, width])}, {f"y{layers}": (FLOAT, [1, width])})
    model, size = onnx.load(path), width * width * 4
    for i in range(layers):
        tensor = model.graph.initializer.add(name=f"w{i}", dims=[width, width], data_type=FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "big"), ("offset", i * size), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    with (path.parent / "big").open("wb") as file:
        for i in range(layers):
            file.write(np.full(width * width, i, np.float32))
    assert in_child(COMPILE_LARGE, path, tmp_path / "out") < layers * size // 2


def test_float16_weights_of_float32_kernels_are_widened_once(models, cpu):
    path = models.mlp(dtype=np.float16, width=64)
    artifact = models.compile(path)
    graph = onnx.load(artifact.file("main.onnx"), load_external_data=False).graph
    weights = {t.name for t in graph.initializer}
    assert not [n for n in graph.node if n.op_type == "Cast" and n.input[0] in weights]
    assert {t.data_type for t in graph.initializer if t.external_data} == {FLOAT}
    source = onnx.load(path)
    w = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in source.graph.initializer}
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float16)
    want = x.astype(np.float64)
    for i in range(2):
        want = np.maximum(want @ w[f"w{i}"] + w[f"b{i}"], 0)
    with cpu.load(artifact) as program:
        got = program.run("main", {"x": x})["y"]
    assert got.dtype == np.float16
    tolerance = artifact.manifest.tolerance
    assert np.abs(got - want).max() <= tolerance.atol + tolerance.rtol * np.abs(want).max()


def test_a_float16_weight_that_is_also_read_as_such_is_kept(models, cpu):
    weights = {"w": np.full((32, 32), 0.5, np.float16)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Identity", ["w"], ["z"])]
    half = TensorProto.FLOAT16
    path = models.write(nodes, {"x": (half, [2, 32])}, {"y": (half, [2, 32]), "z": (half, [32, 32])}, weights)
    with cpu.load(models.compile(path)) as program:
        got = program.run("main", {"x": np.ones((2, 32), np.float16)})
    assert (got["y"] == 16).all()
    assert (got["z"] == 0.5).all()


def test_weights_inside_control_flow_are_found(models, cpu, reference):
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["then"])], "then", [], [helper.make_tensor_value_info("then", FLOAT, [512])],
        [onnx.numpy_helper.from_array(np.full(512, 3, np.float32), "inner")],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Add", ["x", "outer"], ["else"])], "else", [], [helper.make_tensor_value_info("else", FLOAT, [512])]
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    path = models.write(
        [node],
        {"c": (TensorProto.BOOL, []), "x": (FLOAT, [512])},
        {"y": (FLOAT, [512])},
        {"outer": np.full(512, 5, np.float32)},
    )
    for device, target in ((cpu, "host"), (reference, "reference")):
        artifact = models.compile(path, target=target)
        assert artifact.manifest.memory.weights == 2048
        with device.load(artifact) as program:
            for condition, added in ((True, 3), (False, 5)):
                got = program.run("main", {"c": np.array(condition), "x": np.ones(512, np.float32)})
                assert (got["y"] == 1 + added).all()


def test_entries_state_names_dtypes_and_shapes(models):
    (entry,) = models.compile(models.mlp(rows=3, width=16)).entries.values()
    assert [(s.name, s.dtype, s.shape) for s in (*entry.inputs, *entry.outputs)] == [
        ("x", DType.FLOAT32, (3, 16)),
        ("y", DType.FLOAT32, (3, 16)),
    ]


def test_the_source_is_left_as_it_was(models):
    path = models.mlp()
    before = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.parent.iterdir()}
    models.compile(path)
    models.compile(path, target="reference")
    assert before == {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.parent.iterdir()}
