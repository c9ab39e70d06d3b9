"""Mutated .om files through inspect and load, in a child process: errors of the one tree only, no crash, no hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from isthmus.artifact import Artifact

CHILD = """
import random, shutil, struct, sys
from pathlib import Path
import numpy as np
import isthmus
from isthmus.artifact import Artifact

directory, count = Path(sys.argv[1]), int(sys.argv[2])
manifest = Artifact.open(directory).manifest
om = directory / "main.om"
whole = om.read_bytes()
small = len(whole) - manifest.memory.weights  # all but the weights
backend, rng = isthmus.registry().backend("ascend"), random.Random(7)
outcomes = {"refused by inspect": 0, "refused by load": 0, "failed": 0, "ran": 0}

def mutant():
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.choice([rng.randrange(600), len(data) - 1 - rng.randrange(max(small - 600, 1)), rng.randrange(len(data))])
        data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)):]
    if rng.random() < 0.5 and len(data) > 256:
        data[184:192] = struct.pack("<Q", len(data) - 256)
    return bytes(data)

with isthmus.open_device("ascend", options={"timeout_ms": 60000}) as device:
    for number in range(count):
        path = directory.parent / f"mutant{number}"
        path.mkdir()
        (path / "program.json").write_bytes((directory / "program.json").read_bytes())
        (path / "main.om").write_bytes(mutant())
        try:
            backend.inspect(path / "main.om")
        except isthmus.errors.InputError:
            outcomes["refused by inspect"] += 1
        try:
            with device.load(Artifact(path, manifest)) as program:  # opening it would notice the change by its hash
                outcomes["ran"] += 1
                program.run("main", {"x": np.ones((4, 64), np.float32)})
        except isthmus.IsthmusError as error:
            outcomes["failed" if "Execute" in str(error) else "refused by load"] += 1
        shutil.rmtree(path)
print(outcomes)
"""


def mutate_in_a_child(artifact: Artifact, copied: Any, count: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(copied(artifact)), str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(eval(done.stdout))


def test_mutated_files_are_refused_or_run(small_artifact: Artifact, copied: Any, simulator: Any) -> None:
    outcomes = mutate_in_a_child(small_artifact, copied, 200)
    assert outcomes["refused by load"] > 50


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused_or_run(small_artifact: Artifact, copied: Any, simulator: Any) -> None:
    outcomes = mutate_in_a_child(small_artifact, copied, 10_000)
    assert outcomes["refused by load"] > 2500
    assert outcomes["refused by inspect"] > 2000


@pytest.fixture
def small_artifact(graph: Any, tmp_path: Path, simulator: Any, atc_in_process: None) -> Artifact:
    import isthmus

    return isthmus.compile("ascend", graph(), tmp_path / "small")
