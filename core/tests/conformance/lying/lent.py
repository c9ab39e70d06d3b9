"""Lies about memory figures, and about memory that is the caller's."""

import attrs
import numpy as np

from .base import Driver, after, breaks


def parts(memory):
    """The lent regions as arrays."""
    regions = [r for r in (memory.weights, memory.workspace) if r] if memory else []
    return [np.frombuffer(r.handle.part(r), np.uint8) for r in regions]


@breaks("test_caller_memory::test_memory_requirements_add_up")
class CountsInputsOnly(Driver):
    def memory_requirements(self, artifact):
        io = {name: sum(s.nbytes for s in entry.inputs) for name, entry in artifact.entries.items()}
        return attrs.evolve(super().memory_requirements(artifact), io=io)


@breaks("test_caller_memory::test_memory_requirements_do_not_depend_on_what_is_loaded")
class NeedsNothingOnceLoaded(Driver):
    loaded = 0

    def load(self, artifact, memory):
        self.loaded += 1
        return super().load(artifact, memory)

    def memory_requirements(self, artifact):
        need = super().memory_requirements(artifact)
        return attrs.evolve(need, weights=0) if self.loaded else need


@breaks("test_caller_memory::test_entries_share_their_weights")
class HasWeightsPerEntry(Driver):
    def memory_requirements(self, artifact):
        need = super().memory_requirements(artifact)
        return attrs.evolve(need, weights=need.weights * len(artifact.entries))


@breaks("test_caller_memory::test_a_program_runs_in_lent_memory")
class SpillsOver(Driver):
    def load(self, artifact, memory):
        for region in (memory.weights, memory.workspace) if memory else ():
            if region:
                spill = after(region, 64)
                spill.handle.part(spill)[:] = bytes(64)
        return super().load(artifact, memory)


@breaks("test_caller_memory::test_a_program_runs_in_lent_memory_only")
class TakesOneOfTheTwo(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        if memory and memory.weights and memory.workspace:
            parts(memory)[0][:] = 0
        return program


@breaks("test_caller_memory::test_lent_weights_are_filled_by_load")
class KeepsItsOwnWeights(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, None)
        program.memory = memory
        return program


@breaks("test_caller_memory::test_unload_leaves_lent_memory_alone")
class CleansUpBehindTheCaller(Driver):
    def unload(self, program):
        super().unload(program)
        for part in parts(program.memory):
            part[:] = 0


@breaks("test_caller_memory::test_lent_memory_serves_again")
class FillsOnce(Driver):
    def load(self, artifact, memory):
        before = [p.copy() for p in parts(memory)]
        program = super().load(artifact, memory)
        if memory and memory.weights and (place := (id(memory.weights.handle), memory.weights.offset)):
            if place in self.__dict__.setdefault("filled", set()):
                parts(memory)[0][:] = before[0]
            self.filled.add(place)
        return program


@breaks("test_caller_memory::test_programs_that_never_run_at_once_share_a_workspace")
class LivesInTheWorkspace(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        self.mark(program)
        return program

    def mark(self, program):
        if program.memory and program.memory.workspace:
            parts(program.memory)[-1][:8] = np.frombuffer(np.int64(id(program)).tobytes(), np.uint8)

    def execute(self, binding):
        program = binding.program
        lost = (
            program.memory and program.memory.workspace and parts(program.memory)[-1][:8].view(np.int64) != id(program)
        )
        super().execute(binding)
        self.mark(program)
        if lost:
            binding.arrays[1][0][...] = 0
