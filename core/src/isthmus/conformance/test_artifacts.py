"""Artifacts: whole, movable, and refused when they are not what they say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus import Artifact, Device, GraphSet
from isthmus.artifact import MANIFEST
from isthmus.conformance.cases import Case
from isthmus.conformance.conftest import Compiler
from isthmus.conformance.trays import check
from isthmus.errors import CompileError, IncompatibleError, InputError, IntegrityError, IsthmusError
from isthmus.spi import Backend

SIMPLE = pytest.mark.parametrize("case", ["matmul_bias"], indirect=True)
Edit = Callable[[dict[str, Any]], None]


def edit(path: Path, change: Edit) -> Artifact:
    data = json.loads((path / MANIFEST).read_text())
    change(data)
    (path / MANIFEST).write_text(json.dumps(data))
    return Artifact.open(path)


def main(data: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = data["entries"]["main"]
    return entry


@SIMPLE
def test_an_artifact_works_wherever_it_is_moved(device: Device, artifact: Artifact, copied: Path, case: Case) -> None:
    moved = copied.rename(copied.parent / "moved somewhere else")
    with device.load(Artifact.open(moved)) as program:
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, program.run("main", inputs), artifact.manifest.tolerance)


@SIMPLE
def test_an_artifact_is_not_changed_by_being_used(device: Device, artifact: Artifact, copied: Path, case: Case) -> None:
    found = Artifact.open(copied)
    with device.load(found) as program:
        program.run("main", case.inputs("main", 1))
    assert Artifact.open(copied) == found
    assert {f.relative_to(copied).as_posix() for f in copied.rglob("*") if f.is_file()} == {
        MANIFEST,
        *found.manifest.files,
    }


@SIMPLE
def test_an_artifact_for_another_target_is_refused(device: Device, copied: Path) -> None:
    for key in ("target", "backend"):
        other = edit(copied, lambda data, key=key: data.update({key: "elsewhere"}))  # type: ignore[misc]
        with pytest.raises(IncompatibleError):
            device.load(other).close()


@SIMPLE
def test_a_changed_byte_is_found_in_any_file(artifact: Artifact, copied: Path) -> None:
    for name in artifact.manifest.files:
        file = copied / name
        data = file.read_bytes()
        for at in {0, len(data) // 2, len(data) - 1} if data else ():
            file.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            with pytest.raises(IntegrityError):
                Artifact.open(copied)
        file.write_bytes(data)
    assert Artifact.open(copied).manifest == artifact.manifest


@SIMPLE
def test_a_torn_or_missing_file_is_found(artifact: Artifact, copied: Path) -> None:
    for name in artifact.manifest.files:
        data = (copied / name).read_bytes()
        for torn in (data[:-1], data + b"\0") if data else (b"\0",):
            (copied / name).write_bytes(torn)
            with pytest.raises(IntegrityError):
                Artifact.open(copied)
        (copied / name).unlink()
        with pytest.raises(IntegrityError):
            Artifact.open(copied)
        (copied / name).write_bytes(data)


LIES: dict[str, Edit] = {
    "an entry of another name": lambda d: d.update(entries={"other": d["entries"]["main"]}),
    "one entry more": lambda d: d["entries"].update(other=d["entries"]["main"]),
    "an input of another name": lambda d: main(d)["inputs"][0].update(name="z"),
    "an input that is larger": lambda d: main(d)["inputs"][0].update(shape=[4, 16, 32]),
    "an input that is smaller": lambda d: main(d)["inputs"][0].update(shape=[1, 16, 32]),
    "an input of another type": lambda d: main(d)["inputs"][0].update(dtype="int32"),
    "one input less": lambda d: main(d).update(inputs=[]),
    "an output of another name": lambda d: main(d)["outputs"][0].update(name="z"),
    "an output that is larger": lambda d: main(d)["outputs"][0].update(shape=[4, 16, 24]),
    "an output that is smaller": lambda d: main(d)["outputs"][0].update(shape=[1, 16, 24]),
    "an output of another type": lambda d: main(d)["outputs"][0].update(dtype="float16"),
    "one output more": lambda d: main(d)["outputs"].append({**main(d)["outputs"][0], "name": "z"}),
}


@SIMPLE
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_about_the_binary_is_refused(device: Device, copied: Path, lie: str) -> None:
    """The manifest is not covered by its own hashes: only the backend can compare it with the binary."""
    forged = edit(copied, LIES[lie])
    with pytest.raises(IncompatibleError):
        device.load(forged).close()


@SIMPLE
def test_a_failed_load_leaves_the_device_usable(device: Device, artifact: Artifact, copied: Path, case: Case) -> None:
    forged = edit(copied, LIES["an output that is smaller"])
    for _ in range(3):
        with pytest.raises(IsthmusError):
            device.load(forged).close()
    with device.load(artifact) as program:
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, program.run("main", inputs), artifact.manifest.tolerance)


@pytest.fixture
def graphs(backend: Backend, target: str, case: Case, tmp_path: Path) -> GraphSet:
    """The case's graph set, below a path that needs care."""
    from isthmus.conformance.cases.build import write

    return write(case, backend.dialect(target), tmp_path / "graphs, größer" / "set 1")


@SIMPLE
def test_an_artifact_needs_nothing_of_its_graphs(
    compiler: Compiler, graphs: GraphSet, device: Device, case: Case, tmp_path: Path
) -> None:
    made = compiler(graphs.path, tmp_path / "artifact")
    shutil.rmtree(graphs.path)
    with device.load(made) as program:
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, program.run("main", inputs), made.manifest.tolerance)


@SIMPLE
def test_paths_may_hold_spaces_and_letters_of_any_language(
    compiler: Compiler, graphs: GraphSet, device: Device, case: Case, tmp_path: Path
) -> None:
    made = compiler(graphs.path, tmp_path / "übersetzt für 模型" / "artifact 1")
    with device.load(made) as program:
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, program.run("main", inputs), made.manifest.tolerance)


@SIMPLE
def test_a_lone_onnx_file_with_its_weights_inside_compiles(
    compiler: Compiler, graphs: GraphSet, device: Device, case: Case, tmp_path: Path
) -> None:
    import onnx

    onnx.save(onnx.load(graphs.path / "main.onnx"), tmp_path / "lone.onnx")
    shutil.rmtree(graphs.path)
    made = compiler(tmp_path / "lone.onnx", tmp_path / "artifact")
    with device.load(made) as program:
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, program.run("main", inputs), made.manifest.tolerance)


@SIMPLE
def test_compiling_leaves_the_graphs_alone(compiler: Compiler, graphs: GraphSet, tmp_path: Path) -> None:
    before = {f: f.read_bytes() for f in graphs.path.rglob("*") if f.is_file()}
    compiler(graphs.path, tmp_path / "artifact")
    assert {f: f.read_bytes() for f in graphs.path.rglob("*") if f.is_file()} == before


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"this is not a model", bytes(range(256)) * 4])
def test_garbage_is_refused_and_leaves_nothing(compiler: Compiler, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "garbage.onnx").write_bytes(content)
    with pytest.raises((CompileError, InputError)):
        compiler(tmp_path / "garbage.onnx", tmp_path / "artifact")
    assert [f.name for f in tmp_path.iterdir()] == ["garbage.onnx"]


def test_an_unknown_operator_is_refused_by_name(compiler: Compiler, tmp_path: Path) -> None:
    import onnx

    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("NoSuchOperator", ["x"], ["y"], name="the_node", domain="no.such.domain")],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [1, 8])],
        [value("y", onnx.TensorProto.FLOAT, [1, 8])],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("no.such.domain", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "model.onnx")
    with pytest.raises(CompileError, match="NoSuchOperator"):
        compiler(tmp_path / "model.onnx", tmp_path / "artifact")
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]


def test_a_shape_that_is_not_fixed_is_refused(compiler: Compiler, tmp_path: Path) -> None:
    import onnx

    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 8])],
        [value("y", onnx.TensorProto.FLOAT, ["batch", 8])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises((CompileError, InputError)):
        compiler(tmp_path / "model.onnx", tmp_path / "artifact")
