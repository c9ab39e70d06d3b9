"""Compiling with the real compiler, and running what it wrote on the emulator."""

import os
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from isthmus import compile as compile_artifact
from isthmus import open_device
from isthmus.errors import CompileError, IncompatibleError, UnsupportedError
from isthmus.types import DType, Reality
from isthmus_qnn_htp import compile as compile_module
from isthmus_qnn_htp.layout import read_program
from onnx import TensorProto as T
from onnx import helper, numpy_helper

X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


def weight(path):
    return numpy_helper.to_array(onnx.load(path).graph.initializer[0])


def run(artifact, entry="main", **inputs):
    with open_device("qnn_htp") as device, device.load(artifact) as program:
        return program.run(entry, inputs)


def within(artifact, got, want):
    tolerance = artifact.manifest.tolerance
    return np.abs(got - want).max() <= tolerance.atol + tolerance.rtol * np.abs(want).max()


def test_a_float_graph_is_compiled_for_the_chip_and_computed_in_fp16(graphs, compiled):
    path = graphs.matmul()
    artifact = compiled(path)
    program = read_program(artifact)
    assert (program.soc, program.arch, list(program.binaries)) == (57, 75, ["main.bin"])
    assert set(artifact.manifest.files) == {"main.bin", "program.json"}
    assert artifact.manifest.reality is Reality.REAL
    assert set(artifact.manifest.toolchain) == {"onnxruntime", "onnxruntime-qnn", "qairt"}
    assert not artifact.manifest.placement
    assert any("all nodes on the HTP (2 after optimisation)" in note for note in artifact.manifest.notes)
    got, want = run(artifact, x=X)["y"], np.maximum(X @ weight(path), 0)
    assert within(artifact, got, want)
    assert np.abs(got - want).max() > 1e-4, "this is fp32: the compiler was not told the chip"


def test_a_node_the_htp_does_not_have_is_named_with_its_types_and_a_way_out(graphs, compiled, tmp_path):
    with pytest.raises(CompileError, match=r"node 'my_erf' \(Erf of float32\[4,4\]\) of entry 'main'") as error:
        compiled(graphs.node("Erf", name="my_erf"))
    assert "Operators of type `Erf` are not supported" in error.value.what
    assert "Gelu" in error.value.fix
    assert "CPU EP" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_what_the_library_says_about_a_node_leads_the_error(graphs, compiled):
    with pytest.raises(CompileError, match=r"'r6' .* has incorrect Rank 6") as error:
        compiled(graphs.node("Relu", shape=(1, 1, 1, 1, 2, 4), name="r6"))
    assert "dimensions" in error.value.why


def test_a_limit_is_said_in_place_of_code_1002(graphs, compiled):
    wide = graphs.node("ReduceMax", shape=(1, 600_000), out=(T.FLOAT, (1, 1)), axes=[1], name="widest")
    with pytest.raises(CompileError, match=r"not sufficiently tiled to fit in TCM\. Requires \d+ bytes") as error:
        compiled(wide, vtcm_mb=1)
    assert error.value.status.code == 1002
    assert "VTCM" in error.value.why


def test_a_compiler_that_aborts_costs_its_process_and_names_the_node(graphs, compiled, tmp_path):
    nodes = [
        helper.make_node("Expand", ["x", "s"], ["t"], "too_big"),
        helper.make_node("ReduceMax", ["t"], ["y"], "m", axes=[1]),
    ]
    shape = {"s": np.array([1, 1 << 31])}
    path = graphs.write(nodes, {"x": (T.FLOAT, [1, 1])}, {"y": (T.FLOAT, [1, 1])}, shape)
    with pytest.raises(
        CompileError, match=r"crashed on entry 'main' .* at node 'too_big' \(Expand\): SIGABRT"
    ) as error:
        compiled(path)
    assert error.value.status.code == -6
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_divides_by_zero_costs_its_process_and_names_the_stage(graphs, compiled, monkeypatch):
    monkeypatch.setattr(compile_module, "precheck", lambda *_: None)
    empty = graphs.node("ReduceMax", shape=(2, 0, 4), out=(T.FLOAT, (2, 1, 4)), axes=[1])
    with pytest.raises(CompileError, match=r"at stage 'Graph Optimizations': SIGFPE"):
        compiled(empty)


def test_int64_ids_work_once_the_chip_is_given_and_the_artifact_says_what_the_htp_reads(graphs, compiled):
    table = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    path = graphs.node("Gather", T.INT64, (3,), inputs=("t", "x"), out=(T.FLOAT, (3, 32)), weights={"t": table})
    artifact = compiled(path)
    assert artifact.entries["main"].inputs[0].dtype is DType.INT64
    assert any("int64" in note for note in artifact.manifest.notes)
    ids = np.array([5, 0, 15])
    assert within(artifact, run(artifact, x=ids)["y"], table[ids])


def test_targets_do_not_leak_into_each_other_and_builds_repeat(graphs, compiled, metadata):
    """Two chips, then the first again, from another directory, in one parent process."""
    first = compiled(graphs.matmul(), "sm8650")
    second = compiled(graphs.matmul(), "soc:69")
    again = compiled(graphs.matmul(), "v75")
    found = [metadata(artifact.path / "main.bin") for artifact in (first, second, again)]
    assert [(binary.soc, binary.arch) for binary in found] == [(57, 75), (69, 79), (57, 75)]
    assert first.manifest.files["main.bin"] == again.manifest.files["main.bin"] != second.manifest.files["main.bin"]
    assert any("chips of its architecture" in note for note in again.manifest.notes)


def test_a_graph_set_becomes_a_binary_per_entry_with_its_assets(graphs, compiled):
    source = graphs.two_entries()
    artifact = compiled(source)
    assert set(artifact.manifest.files) == {"prefill.bin", "decode.bin", "program.json", "assets/token.json"}
    w = weight(source / "decode.onnx")
    x = np.random.default_rng(2).standard_normal((1, 256)).astype(np.float32)
    assert within(artifact, run(artifact, "decode", x=x)["y"], np.maximum(x @ w, 0))


def test_entries_can_share_weights_for_devices(graphs, compiled, metadata):
    shared = compiled(graphs.two_entries(), weight_sharing=True)
    (binary,) = read_program(shared).binaries
    assert binary == "decode+prefill.bin"
    assert sorted(read_program(shared).binaries[binary].graphs.values()) == ["decode", "prefill"]
    held = metadata(shared.path / binary).shared_weights
    assert held >= 256 * 32 * 2
    assert shared.manifest.memory.weights < 2 * held
    assert any("emulator cannot load" in note for note in shared.manifest.notes)
    with open_device("qnn_htp") as device, pytest.raises(IncompatibleError, match="shared by its graphs"):
        device.load(shared)


def test_weight_sharing_of_a_single_entry_is_refused(graphs, compiled):
    with pytest.raises(UnsupportedError, match="two language-model entries"):
        compiled(graphs.matmul(), weight_sharing=True)


def test_a_quantised_graph_is_compiled_for_a_chip_without_fp16_with_quantised_inputs_and_outputs(graphs, compiled):
    path = graphs.quantized_matmul()
    artifact = compiled(path, "sm8350", io_dtype="quantized")
    x, y = artifact.entries["main"].inputs[0], artifact.entries["main"].outputs[0]
    assert (x.dtype, y.dtype) == (DType.UINT16, DType.UINT16)
    assert x.quantization.zero_point == y.quantization.zero_point == (32768,)
    assert x.quantization.scale[0] == pytest.approx(8 / 65535)
    stored = np.clip(np.rint(X / x.quantization.scale[0]) + 32768, 0, 65535).astype(np.uint16)
    got = (run(artifact, x=stored)["y"].astype(np.float32) - 32768) * y.quantization.scale[0]
    assert within(artifact, got, X @ (weight(path).astype(np.float32) / 500))


def test_inputs_and_outputs_can_be_float16(graphs, compiled):
    path = graphs.matmul()
    artifact = compiled(path, io_dtype="float16")
    got = run(artifact, x=X.astype(np.float16))["y"]
    assert got.dtype == np.float16
    assert within(artifact, got.astype(np.float32), np.maximum(X @ weight(path), 0))


def test_a_chip_with_bfloat16_computes_in_it_when_asked(graphs, compiled):
    path = graphs.matmul()
    artifact = compiled(path, "sc8480xp", precision="bf16")
    got, want = run(artifact, x=X)["y"], np.maximum(X @ weight(path), 0)
    assert within(artifact, got, want)
    assert np.abs(got - want).max() > 1e-3 * np.abs(want).max(), "this is fp16"


def test_options_reach_the_binary(graphs, compiled, metadata, tmp_path):
    log = tmp_path / "compiler.log"
    artifact = compiled(graphs.matmul(), vtcm_mb=2, optimization=1, log=str(log))
    (graph,) = metadata(artifact.path / "main.bin").graphs
    assert (graph.vtcm, graph.optimization_level) == (2 << 20, 1)
    assert b"QnnLogging" in log.read_bytes()


def test_external_weights_without_a_length_are_completed(graphs, compiled):
    path = graphs.matmul(external="w.data")
    model = onnx.load(path, load_external_data=False)
    kept = [e for e in model.graph.initializer[0].external_data if e.key != "length"]
    del model.graph.initializer[0].external_data[:]
    model.graph.initializer[0].external_data.extend(kept)
    onnx.save(model, path)
    artifact = compiled(path)
    assert within(artifact, run(artifact, x=X)["y"], np.maximum(X @ weight(path), 0))


def test_nothing_is_left_behind_outside_the_artifact(graphs, tmp_path, monkeypatch):
    here, temporary = tmp_path / "here", tmp_path / "tmp"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setitem(os.environ, "TMPDIR", str(temporary))
    artifact = compile_artifact("qnn_htp", graphs.matmul(), Path("art"), target="sm8650")
    assert [p.name for p in here.iterdir()] == ["art"]
    assert not list(temporary.iterdir())
    assert sorted(p.name for p in artifact.path.iterdir()) == ["main.bin", "manifest.json", "program.json"]
