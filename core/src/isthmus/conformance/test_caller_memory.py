"""Memory figures, and programs in memory that the caller owns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from isthmus import Artifact, Buffer, Capability, Device
from isthmus.conformance.cases import Case
from isthmus.conformance.trays import assert_bytes, bench, check
from isthmus.errors import InputError, InUseError, UnsupportedError

BOTH = pytest.mark.parametrize("case", ["matmul_bias", "prefill_and_decode", "large_weights"], indirect=True)
SIMPLE = pytest.mark.parametrize("case", ["large_weights"], indirect=True)
GAP = 4096
POISON = 0xA7
KINDS = {"weights": Capability.CALLER_WEIGHTS, "workspace": Capability.CALLER_WORKSPACE}
EACH = pytest.mark.parametrize("kind", KINDS)


class Lent:
    """A poisoned buffer with room for one kind of memory in its middle."""

    def __init__(self, device: Device, artifact: Artifact, kind: str) -> None:
        need = device.memory_requirements(artifact)
        self.size = need.weights if kind == "weights" else need.peak_workspace
        alignment = max(need.alignment, 64)
        self.start = -(-GAP // alignment) * alignment
        self.buffer: Buffer = device.allocate(self.start + self.size + GAP, alignment=alignment)
        self.buffer.write(np.full(self.buffer.size, POISON, np.uint8))

    @property
    def view(self) -> Any:
        """A ``View``, typed loosely: ``load`` takes it by a keyword that is only known at run time."""
        return self.buffer[self.start : self.start + self.size]

    def content(self) -> bytes:
        return bytes(self.buffer.read(self.size, self.start))

    def surroundings_are_untouched(self) -> bool:
        before, after = self.buffer.read(self.start), self.buffer.read(GAP, self.start + self.size)
        return set(before) == set(after) == {POISON}


@pytest.fixture
def lent(device: Device, artifact: Artifact, kind: str) -> Iterator[Lent]:
    """Memory to lend; a device that cannot take it says so, and that ends the test."""
    if KINDS[kind] not in device.capabilities:
        memory: dict[str, Any] = {kind: device.allocate(64)}
        with memory[kind], pytest.raises(UnsupportedError):
            device.load(artifact, **memory).close()
        made = None
    else:
        made = Lent(device, artifact, kind)
    yield made  # type: ignore[misc]
    if made is not None and not made.buffer.closed:
        made.buffer.close()


def run_all(device: Device, artifact: Artifact, case: Case, memory: dict[str, Any], seed: int = 1) -> None:
    with device.load(artifact, **memory) as program:
        for entry in case.entries:
            inputs = case.inputs(entry, seed)
            check(case, entry, inputs, program.run(entry, inputs), artifact.manifest.tolerance)


@BOTH
def test_memory_requirements_add_up(device: Device, artifact: Artifact, case: Case) -> None:
    need = device.memory_requirements(artifact)
    for entry in case.entries:
        spec = case.spec(entry)
        assert need.io[entry] == sum(s.nbytes for s in (*spec.inputs, *spec.outputs))
    assert need.io.keys() == need.workspace.keys() == case.entries.keys()
    assert need.alignment & (need.alignment - 1) == 0
    assert need.own_load >= need.peak_workspace
    if Capability.CALLER_WEIGHTS in device.capabilities:
        elements = sum(math.prod(shape) for shape in case.shapes.values())
        assert need.weights >= elements // 2, "no weight takes less than four bits"


@BOTH
def test_memory_requirements_do_not_depend_on_what_is_loaded(device: Device, artifact: Artifact, case: Case) -> None:
    before = device.memory_requirements(artifact)
    with device.load(artifact) as program:
        assert device.memory_requirements(artifact) == before
        program.run(*next((entry, case.inputs(entry, 1)) for entry in case.entries))
        assert device.memory_requirements(artifact) == before
    assert device.memory_requirements(artifact) == before


@pytest.mark.parametrize("case", ["prefill_and_decode"], indirect=True)
def test_entries_share_their_weights(device: Device, artifact: Artifact, case: Case) -> None:
    if Capability.CALLER_WEIGHTS not in device.capabilities:
        return
    stored = sum(array.nbytes for array in case.weights.values())
    assert device.memory_requirements(artifact).weights < 2 * stored, "each entry has weights of its own"


@EACH
@BOTH
def test_a_program_runs_in_lent_memory(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent:
        run_all(device, artifact, case, {kind: lent.view})
        assert lent.surroundings_are_untouched()


@BOTH
def test_a_program_runs_in_lent_memory_only(device: Device, artifact: Artifact, case: Case) -> None:
    able = [kind for kind, capability in KINDS.items() if capability in device.capabilities]
    lent = {kind: Lent(device, artifact, kind) for kind in able}
    run_all(device, artifact, case, {kind: memory.view for kind, memory in lent.items()})
    for memory in lent.values():
        assert memory.surroundings_are_untouched()
        memory.buffer.close()


@BOTH
@pytest.mark.parametrize("kind", ["weights"])
def test_lent_weights_are_filled_by_load(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent:
        with device.load(artifact, weights=lent.view):
            assert set(lent.content()) != {POISON}, "the weights are somewhere else"


@EACH
@SIMPLE
def test_unload_leaves_lent_memory_alone(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent:
        program = device.load(artifact, **{kind: lent.view})
        inputs = case.inputs("main", 1)
        program.run("main", inputs)
        before = lent.content()
        program.close()
        assert_bytes(lent.content(), before)
        lent.buffer.write(bytes(lent.buffer.size))
        assert set(lent.content()) <= {0}
        assert not lent.buffer.closed


@EACH
@SIMPLE
def test_lent_memory_serves_again(lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str) -> None:
    if lent:
        for seed in (1, 2, 3):
            run_all(device, artifact, case, {kind: lent.view}, seed)
            lent.buffer.write(np.full(lent.buffer.size, POISON, np.uint8))


@EACH
@SIMPLE
def test_lent_memory_is_pinned_while_the_program_is_loaded(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent:
        with device.load(artifact, **{kind: lent.view}) as program:
            with pytest.raises(InUseError):
                lent.buffer.close()
            inputs = case.inputs("main", 1)
            check(case, "main", inputs, program.run("main", inputs), artifact.manifest.tolerance)
        lent.buffer.close()


@EACH
@SIMPLE
def test_lent_memory_that_is_too_small_is_refused(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent and lent.size:
        with pytest.raises(InputError, match=str(lent.size)):
            device.load(artifact, **{kind: lent.view[: lent.size - 1]}).close()
        assert set(lent.content()) == {POISON}


@pytest.mark.parametrize("kind", ["workspace"])
@pytest.mark.parametrize("case", ["matmul_bias"], indirect=True)
def test_programs_that_never_run_at_once_share_a_workspace(
    lent: Lent | None, device: Device, artifact: Artifact, case: Case, kind: str
) -> None:
    if lent:
        with (
            device.load(artifact, workspace=lent.view) as one,
            device.load(artifact, workspace=lent.view) as two,
            bench(one, "main") as first,
            bench(two, "main") as second,
        ):
            for seed in (1, 2):
                for bound in (first, second):
                    inputs = case.inputs("main", seed)
                    check(case, "main", inputs, bound.run(inputs), artifact.manifest.tolerance)
        assert lent.surroundings_are_untouched()
