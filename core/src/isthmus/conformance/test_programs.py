"""Every model case: the right numbers, from the inputs given, into the outputs given, and nothing else."""

from __future__ import annotations

import pytest

from isthmus import Artifact, Device
from isthmus.conformance.cases import Case
from isthmus.conformance.trays import bench, check, same

pytestmark = pytest.mark.every_case


def test_the_artifact_has_the_entries_of_its_graphs(artifact: Artifact, case: Case) -> None:
    assert artifact.entries.keys() == case.entries.keys()
    for entry in case.entries:
        found, wanted = artifact.entries[entry], case.spec(entry)
        assert [(s.name, s.dtype, s.shape) for s in found.inputs] == [(s.name, s.dtype, s.shape) for s in wanted.inputs]
        assert [(s.name, s.dtype, s.shape) for s in found.outputs] == [
            (s.name, s.dtype, s.shape) for s in wanted.outputs
        ]


def test_the_tolerance_tells_right_from_wrong(artifact: Artifact, case: Case) -> None:
    tolerance = artifact.manifest.tolerance
    assert 0 <= tolerance.rtol <= 0.1
    assert 0 <= tolerance.atol <= 0.1
    for entry in case.entries:
        inputs, others = case.inputs(entry, 1), case.inputs(entry, 2)
        with pytest.raises(AssertionError):
            check(case, entry, inputs, case.expected(entry, others), tolerance)


def test_the_result_matches_the_reference(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            inputs = case.inputs(entry, 1)
            check(case, entry, inputs, program.run(entry, inputs), artifact.manifest.tolerance)


def test_every_run_sees_its_own_inputs(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            with bench(program, entry) as bound:
                for seed in (1, 2, 3):
                    inputs = case.inputs(entry, seed)
                    check(case, entry, inputs, bound.run(inputs), artifact.manifest.tolerance)


def test_equal_inputs_give_equal_bits(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            with bench(program, entry) as bound:
                first = bound.run(case.inputs(entry, 1))
                bound.run(case.inputs(entry, 2))
                assert same(first, bound.run(case.inputs(entry, 1)))


def test_inputs_are_not_modified(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            with bench(program, entry) as bound:
                inputs = case.inputs(entry, 1)
                bound.run(inputs)
                assert same(bound.inputs.get(), inputs)


def test_only_the_outputs_are_written(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            with bench(program, entry) as bound:
                bound.run(case.inputs(entry, 1))
                assert bound.outputs.surroundings_are_untouched()
                assert bound.inputs.surroundings_are_untouched()


def test_tensors_may_start_wherever_the_device_allows(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program:
        for entry in case.entries:
            with bench(program, entry, odd=True) as bound:
                inputs = case.inputs(entry, 1)
                check(case, entry, inputs, bound.run(inputs), artifact.manifest.tolerance)
                assert bound.outputs.surroundings_are_untouched()
