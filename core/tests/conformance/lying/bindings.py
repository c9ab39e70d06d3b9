"""Lies about bindings."""

import threading

import numpy as np
from isthmus.errors import ExecutionError
from isthmus.spi import Region

from .base import Driver, breaks


@breaks("test_bindings::test_binding_runs_nothing")
class RunsWhenBound(Driver):
    def bind(self, program, entry, inputs, outputs):
        binding = super().bind(program, entry, inputs, outputs)
        self.execute(binding)
        return binding


@breaks("test_bindings::test_rebinding_takes_the_new_buffers")
class RebindsInputsOnly(Driver):
    def rebind(self, binding, inputs, outputs):
        super().rebind(binding, inputs, {})


@breaks("test_bindings::test_rebinding_takes_the_new_buffers")
class RebindsOutputsOnly(Driver):
    def rebind(self, binding, inputs, outputs):
        super().rebind(binding, {}, outputs)


@breaks("test_bindings::test_one_program_has_many_bindings")
class KnowsTheLastBindingOnly(Driver):
    def bind(self, program, entry, inputs, outputs):
        program.last = super().bind(program, entry, inputs, outputs)
        return program.last

    def execute(self, binding):
        super().execute(binding.program.last)


@breaks("test_bindings::test_closing_one_binding_leaves_the_others")
class UnbindsTheProgram(Driver):
    def unbind(self, binding):
        for values in binding.program.constants.values():
            for name in values:
                values[name] = np.zeros_like(values[name])
        super().unbind(binding)


@breaks("test_bindings::test_entries_take_turns")
class StaysWithTheFirstEntry(Driver):
    def execute(self, binding):
        program = binding.program
        if not hasattr(program, "ran"):
            program.ran = binding.entry
        if program.ran == binding.entry:
            super().execute(binding)


@breaks("test_bindings::test_a_result_stays_while_another_entry_runs")
class ReusesTheOutputs(Driver):
    def execute(self, binding):
        before, binding.program.before = getattr(binding.program, "before", None), binding
        super().execute(binding)
        if before is not None and before is not binding:
            before.arrays[1][0][...] = 0


@breaks("test_bindings::test_results_are_on_the_device_when_execute_returns")
class FinishesWhenRead(Driver):
    """Queues the work and waits for it in ``read`` only."""

    def execute(self, binding):
        self.__dict__.setdefault("queue", []).append(binding)

    def read(self, region, out):
        self.finish()
        super().read(region, out)

    def unbind(self, binding):
        self.finish()
        super().unbind(binding)

    def finish(self):
        for binding in self.__dict__.pop("queue", []):
            super().execute(binding)


@breaks("test_bindings::test_a_program_runs_in_another_thread_than_it_was_loaded_in")
class RunsInTheLoadersThread(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        program.thread = threading.get_ident()
        return program

    def execute(self, binding):
        if threading.get_ident() != binding.program.thread:
            raise ExecutionError("no context in this thread")
        super().execute(binding)


@breaks("test_bindings::test_new_keys_go_straight_into_the_cache")
class ClearsOutputsFirst(Driver):
    def execute(self, binding):
        for out in binding.arrays[1]:
            out[...] = np.nan
        super().execute(binding)


@breaks("test_bindings::test_new_keys_go_straight_into_the_cache")
class MovesTheWholeCache(Driver):
    def execute(self, binding):
        super().execute(binding)
        names = [s.name for s in binding.specs[0]]
        if "past_key" in names:
            past = binding.arrays[0][names.index("past_key")]
            past[:, 0] = past[:, 1]


@breaks("test_bindings::test_a_profile_is_one_run_with_its_times")
class HasNoTimes(Driver):
    def profile(self, binding):
        super().profile(binding)
        return []


@breaks("test_bindings::test_a_profile_is_one_run_with_its_times")
class ProfilesWithoutRunning(Driver):
    def profile(self, binding):
        kept = [a.copy() for a in binding.arrays[1]]
        events = super().profile(binding)
        for out, before in zip(binding.arrays[1], kept):
            out[...] = before
        return events


@breaks("test_bindings::test_inputs_may_share_memory")
class BindsABufferOnce(Driver):
    def rebind(self, binding, inputs, outputs):
        bound = {a.__array_interface__["data"][0] for a in binding.arrays[0]}
        for position, region in list(inputs.items()):
            address = np.frombuffer(region.handle.part(region), np.uint8).__array_interface__["data"][0]
            if address in bound:
                del inputs[position]
        super().rebind(binding, inputs, outputs)


@breaks("test_bindings::test_everything_may_live_in_one_buffer")
class OneTensorPerBuffer(Driver):
    def bind(self, program, entry, inputs, outputs):
        first = {}
        one = [Region(r.handle, first.setdefault(id(r.handle), r.offset), r.size) for r in (*inputs, *outputs)]
        separate = len(first) > 1
        return super().bind(
            program, entry, *((inputs, outputs) if separate else (one[: len(inputs)], one[len(inputs) :]))
        )
