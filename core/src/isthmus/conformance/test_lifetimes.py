"""Opening, loading, unloading and closing, in every order and many times."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus import Artifact, Device
from isthmus.conformance.cases import Case
from isthmus.conformance.subject import Subject
from isthmus.conformance.trays import assert_bytes, bench, check
from isthmus.errors import ClosedError

SIMPLE = pytest.mark.parametrize("case", ["matmul_bias"], indirect=True)
LARGE = pytest.mark.parametrize("case", ["large_weights"], indirect=True)


def test_closing_is_final_and_may_be_repeated(fresh_device: Device) -> None:
    buffer = fresh_device.allocate(8)
    buffer.close()
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.read()
    fresh_device.close()
    fresh_device.close()
    with pytest.raises(ClosedError):
        fresh_device.allocate(8).close()


@SIMPLE
def test_closing_the_device_closes_what_lives_on_it(fresh_device: Device, artifact: Artifact, case: Case) -> None:
    program = fresh_device.load(artifact)
    with bench(program, "main") as bound:
        bound.run(case.inputs("main", 1))
        fresh_device.close()
        assert program.closed
        assert bound.binding.closed
        assert bound.inputs.buffer.closed
        with pytest.raises(ClosedError):
            bound.binding.execute()


@SIMPLE
def test_a_device_opens_again_after_it_was_closed(session_subject: Subject, artifact: Artifact, case: Case) -> None:
    for seed in (1, 2, 3):
        with session_subject.open() as device, device.load(artifact) as program:
            inputs = case.inputs("main", seed)
            check(case, "main", inputs, program.run("main", inputs), artifact.manifest.tolerance)


@SIMPLE
def test_an_artifact_may_be_loaded_twice(device: Device, artifact: Artifact, case: Case) -> None:
    tolerance = artifact.manifest.tolerance
    one, two = device.load(artifact), device.load(artifact)
    with bench(one, "main") as first, bench(two, "main") as second:
        for seed in (1, 2):
            for bound in (first, second):
                inputs = case.inputs("main", seed)
                check(case, "main", inputs, bound.run(inputs), tolerance)
    one.close()
    inputs = case.inputs("main", 3)
    check(case, "main", inputs, two.run("main", inputs), tolerance)
    two.close()


@SIMPLE
def test_buffers_outlive_programs_and_programs_buffers(device: Device, artifact: Artifact, case: Case) -> None:
    spec, inputs = artifact.entries["main"], case.inputs("main", 1)
    first = device.load(artifact)
    first.run("main", inputs)  # its buffers are gone, the program stays
    x, y = device.allocate(spec.inputs[0].nbytes), device.allocate(spec.outputs[0].nbytes)
    x.write(inputs["x"])
    with device.load(artifact) as second:
        second.execute("main", {"x": x}, {"y": y})
    before = y.read()
    first.execute("main", {"x": x}, {"y": y})  # the same buffers, in the program that was there before
    assert_bytes(y.read(), before)
    first.close()
    assert_bytes(x.read(), inputs["x"].tobytes())
    x.close()
    y.close()


@SIMPLE
def test_a_program_stays_right_while_others_come_and_go(device: Device, artifact: Artifact, case: Case) -> None:
    inputs = case.inputs("main", 1)
    with device.load(artifact) as kept, bench(kept, "main") as bound:
        for seed in range(5):
            with device.load(artifact) as passing:
                passing.run("main", case.inputs("main", seed))
            check(case, "main", inputs, bound.run(inputs), artifact.manifest.tolerance)


@LARGE
def test_fifty_loads_leave_no_memory_behind(device: Device, artifact: Artifact, case: Case) -> None:
    inputs = case.inputs("main", 1)
    weights = sum(array.nbytes for array in case.weights.values())
    resident = []
    for cycle in range(50):
        with device.load(artifact) as program:
            result = program.run("main", inputs)
        if cycle >= 9:
            resident.append(resident_bytes())
    check(case, "main", inputs, result, artifact.manifest.tolerance)
    grown = resident[-1] - resident[0]
    assert grown < 10 * weights, f"{grown} bytes stayed after 40 loads of {weights} bytes of weights"


def resident_bytes() -> int:
    """Anonymous memory of this process and its children; 0 where the system does not tell."""
    total = 0
    for task in Path("/proc/self/task").glob("*/children"):
        for child in task.read_text().split():
            total += _anonymous(Path("/proc") / child)
    return total + _anonymous(Path("/proc/self"))


def _anonymous(process: Path) -> int:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:  # ended meanwhile, or no such file system
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
