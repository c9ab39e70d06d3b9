"""Lies about what a program computes, and from and into what."""

import attrs
import numpy as np
from isthmus.spi import Region
from isthmus.types import EntrySpec, Tolerance

from .base import Backend, Driver, after, breaks


@breaks("test_programs::test_the_artifact_has_the_entries_of_its_graphs[broadcast]")
class TurnsTheInputsRound(Backend):
    def compile(self, source, target, out, options):
        report = super().compile(source, target, out, options)
        turned = {name: EntrySpec(entry.inputs[::-1], entry.outputs) for name, entry in report.entries.items()}
        return attrs.evolve(report, entries=turned)


@breaks("test_programs::test_the_tolerance_tells_right_from_wrong[matmul_bias]")
class ToleratesEverything(Backend):
    def compile(self, source, target, out, options):
        return attrs.evolve(super().compile(source, target, out, options), tolerance=Tolerance(9.0, 9.0))


@breaks("test_programs::test_the_tolerance_tells_right_from_wrong[softmax]")
class ToleratesTooMuch(Backend):
    def compile(self, source, target, out, options):
        return attrs.evolve(super().compile(source, target, out, options), tolerance=Tolerance(0.5, 0.0))


@breaks("test_programs::test_the_result_matches_the_reference[matmul_bias]")
class ComputesSomethingElse(Driver):
    def execute(self, binding):
        super().execute(binding)
        binding.arrays[1][0][..., -1] *= 1.001


@breaks("test_programs::test_the_result_matches_the_reference[layer_norm]")
class LeavesAnElementOut(Driver):
    def execute(self, binding):
        kept = binding.arrays[1][0][0, 0, 0].copy()
        super().execute(binding)
        binding.arrays[1][0][0, 0, 0] = kept


@breaks("test_programs::test_every_run_sees_its_own_inputs[matmul_bias]")
class RemembersTheFirstInputs(Driver):
    def execute(self, binding):
        if not hasattr(binding, "first"):
            binding.first = [a.copy() for a in binding.arrays[0]]
        bound, binding.arrays = binding.arrays, (binding.first, binding.arrays[1])
        super().execute(binding)
        binding.arrays = bound


@breaks("test_programs::test_equal_inputs_give_equal_bits[matmul_bias]")
class Drifts(Driver):
    runs = 0

    def execute(self, binding):
        super().execute(binding)
        self.runs += 1
        binding.arrays[1][0][...] += self.runs * 1e-6


@breaks("test_programs::test_inputs_are_not_modified[softmax]")
class WorksInPlace(Driver):
    def execute(self, binding):
        super().execute(binding)
        binding.arrays[0][0][...] = np.exp(binding.arrays[0][0])


class KeepsRegions(Driver):
    def bind(self, program, entry, inputs, outputs):
        binding = super().bind(program, entry, inputs, outputs)
        binding.regions = (list(inputs), list(outputs))
        return binding


@breaks("test_programs::test_only_the_outputs_are_written[matmul_bias]")
class WritesWholeVectors(KeepsRegions):
    def execute(self, binding):
        super().execute(binding)
        past_the_end = after(binding.regions[1][0], 16)
        past_the_end.handle.part(past_the_end)[:] = bytes(16)


@breaks("test_programs::test_tensors_may_start_wherever_the_device_allows[matmul_bias]")
class AssumesAlignment(Driver):
    def bind(self, program, entry, inputs, outputs):
        down = [[Region(r.handle, r.offset // 64 * 64, r.size) for r in side] for side in (inputs, outputs)]
        return super().bind(program, entry, *down)
