"""Compiling through the simulated atc as a child process: the manifest, the refusals, the memory sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import isthmus
import pytest
from isthmus.artifact import Artifact
from isthmus.errors import CompileError, IncompatibleError, InputError
from isthmus.memory.sweep import sweep_memory
from isthmus_ascend_cann.compile import file_names
from isthmus_ascend_cann.plan import PROGRAM, read_plan


def test_the_manifest_says_what_was_compiled_and_that_it_is_simulated(plain_artifact: Artifact) -> None:
    manifest = plain_artifact.manifest
    assert manifest.reality is isthmus.Reality.SIMULATED
    assert manifest.toolchain == {"atc": "simulated"}
    assert manifest.target == "Ascend910B4"
    assert [str(t) for t in manifest.entries["main"].inputs] == ["x: float32[4, 1024]"]
    assert [str(t) for t in manifest.entries["main"].outputs] == ["y: float32[4, 1024]"]
    assert manifest.memory.weights >= 2 << 20  # float16
    assert manifest.memory.exact
    assert manifest.notes[0].startswith("precision force_fp16: ")
    assert sorted(manifest.files) == ["main.atc.log", "main.om", "program.json"]
    assert "ATC run success" in plain_artifact.file("main.atc.log").read_text()


def test_the_program_file_must_fit_the_manifest(plain_artifact: Artifact, copied: Any) -> None:
    path = copied(plain_artifact)
    program = json.loads((path / PROGRAM).read_text())

    def read(changed: object) -> object:
        (path / PROGRAM).write_text(json.dumps(changed) if not isinstance(changed, str) else changed)
        return read_plan(Artifact(path, plain_artifact.manifest))

    read(program)
    entry = program["entries"]["main"]
    for damaged in (
        {**program, "entries": {"other": entry}},
        {**program, "entries": {"main": {**entry, "outputs": ["z"]}}},
        {**program, "entries": {"main": {**entry, "model": "nowhere.om"}}},
        {**program, "format": 99},
    ):
        with pytest.raises(IncompatibleError):
            read(damaged)
    for broken in ({**program, "soc_version": None, "extra": 1}, [], {"format": 1}, "{"):
        with pytest.raises(InputError):
            read(broken)


def test_entries_whose_names_are_no_file_names_get_files_of_their_own() -> None:
    assert file_names(["prefill_64", "a/b", "a_b", "../x", ""]) == {
        "prefill_64": "prefill_64",
        "a/b": "a_b",
        "a_b": "a_b_2",
        "../x": "___x",
        "": "_4",
    }


def test_what_the_compiler_refuses_is_explained(simulator: Any, tmp_path: Path, graph: Any) -> None:
    with pytest.raises(CompileError) as caught:
        isthmus.compile("ascend", graph(op="NoSuchOperator"), tmp_path / "artifact")
    text = str(caught.value)
    assert "entry 'main': atc exited with 255" in text
    assert "NoSuchOperator" in text
    assert not (tmp_path / "artifact").exists()


def test_the_sweep_tabulates_sizes_and_differences(simulator: Any, graph: Any, atc_in_process: None) -> None:
    rows = sweep_memory("ascend", isthmus.GraphSet.open(graph(inner=256, columns=256)), device="ascend")
    assert [(r.configuration, r.entry) for r in rows] == [
        ("all off", "main"),
        ("buffer_optimize only", "main"),
        ("all on", "main"),
    ]
    assert rows[0].work_size >= rows[2].work_size > 0
    assert {r.weight_size for r in rows} == {rows[0].weight_size}
    assert rows[0].difference == 0
    assert all(r.difference is not None and r.difference < 1e-2 for r in rows)
    with pytest.raises(InputError, match="what the sweep varies"):
        sweep_memory("ascend", isthmus.GraphSet.open(graph()), options={"disable_reuse_memory": True})


def test_precision_changes_the_numbers_and_the_tolerance(
    device: isthmus.Device, tmp_path: Path, graph: Any, atc_in_process: None
) -> None:
    import numpy as np

    file = graph(inner=512, columns=512)
    exact = isthmus.compile("ascend", file, tmp_path / "exact", options={"precision": "must_keep_origin_dtype"})
    half = isthmus.compile("ascend", file, tmp_path / "half")
    assert exact.manifest.memory.weights > 1.9 * half.manifest.memory.weights
    assert exact.manifest.tolerance.rtol < half.manifest.tolerance.rtol
    x = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)
    with device.load(exact) as one, device.load(half) as two:
        a, b = one.run("main", {"x": x})["y"], two.run("main", {"x": x})["y"]
    assert 0 < np.abs(a - b).max() < 5e-3
