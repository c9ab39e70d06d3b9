"""Lies about opening, loading, unloading and closing."""

import numpy as np
from isthmus.errors import ExecutionError

from .base import Backend, Driver, breaks


@breaks("test_lifetimes::test_closing_the_device_closes_what_lives_on_it")
class CannotUnbind(Driver):
    def unbind(self, binding):
        raise ExecutionError("a binding that ran cannot be undone")


@breaks("test_lifetimes::test_a_device_opens_again_after_it_was_closed")
class OpensOnce(Backend):
    opened = False

    def open(self, device, options):
        if OpensOnce.opened:
            raise ExecutionError("already initialised")
        driver = super().open(device, options)
        driver.close = lambda: setattr(OpensOnce, "opened", True)
        return driver


@breaks("test_lifetimes::test_an_artifact_may_be_loaded_twice")
class HoldsOneProgram(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        wipe(self.__dict__.get("held"))
        self.held = program
        return program


def wipe(program):
    """Make a program's constants useless."""
    for values in program.constants.values() if program else ():
        for name in values:
            values[name] = np.zeros_like(values[name])


@breaks("test_lifetimes::test_buffers_outlive_programs_and_programs_buffers")
class TakesTheBuffersAlong(Driver):
    def execute(self, binding):
        super().execute(binding)
        binding.program.used = binding.arrays[0]

    def unload(self, program):
        for array in getattr(program, "used", ()):
            array[...] = 0
        super().unload(program)


@breaks("test_lifetimes::test_a_program_stays_right_while_others_come_and_go")
class SharesToTheEnd(Driver):
    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        self.__dict__.setdefault("programs", []).append(program)
        return program

    def unload(self, program):
        for other in self.programs:
            wipe(other)
        super().unload(program)


@breaks("test_lifetimes::test_fifty_loads_leave_no_memory_behind")
class Leaks(Driver):
    def load(self, artifact, memory):
        self.__dict__.setdefault("kept", []).append(artifact.file("weights.bin").read_bytes())
        return super().load(artifact, memory)
