"""The honest backend that the liars inherit from: the example plugin with every ability there is."""

from __future__ import annotations

import mmap

import attrs
import isthmus
import numpy as np
from isthmus.errors import OutOfMemoryError
from isthmus.hookspecs import hookimpl
from isthmus.spi import Allocation, Region
from isthmus.types import BackendInfo, Capability, Granted, Pages
from isthmus_example.backend import ExampleBackend
from isthmus_example.driver import ExampleDriver, Memory

HUGE = 2 << 20
MAP_HUGETLB = 0x40000


class HugeMemory(Memory):
    """One allocation in huge pages; OSError if there are none."""

    def __init__(self, size, alignment):
        length = -(-(size + alignment) // HUGE) * HUGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB
        whole = np.frombuffer(mmap.mmap(-1, length, flags), np.uint8)
        start = -whole.__array_interface__["data"][0] % alignment
        self.bytes = whole[start : start + size].data


class Driver(ExampleDriver):
    """Also takes a workspace, in which results are staged, and huge pages."""

    capabilities = ExampleDriver.capabilities | {Capability.CALLER_WORKSPACE, Capability.HUGE_PAGES}

    def allocate(self, size, pages, alignment):
        if pages is not Pages.NORMAL:
            try:
                return Allocation(HugeMemory(size, alignment), size, Granted.HUGE)
            except (OSError, OverflowError, ValueError) as error:
                if pages is Pages.REQUIRE_HUGE:
                    raise OutOfMemoryError(f"no huge pages for {size} bytes", fix="sysctl vm.nr_hugepages=N") from error
        return super().allocate(size, pages, alignment)

    def memory_requirements(self, artifact):
        need = super().memory_requirements(artifact)
        staged = {name: sum(s.nbytes for s in entry.outputs) for name, entry in artifact.entries.items()}
        return attrs.evolve(need, workspace=staged, own_load=need.own_load + max(staged.values()))

    def load(self, artifact, memory):
        program = super().load(artifact, memory)
        program.memory = memory
        return program

    def execute(self, binding):
        super().execute(binding)
        self.stage(binding)

    def stage(self, binding):
        """Carry results through the lent workspace."""
        memory = binding.program.memory
        if memory and memory.workspace:
            space, at = memory.workspace.handle.part(memory.workspace), 0
            for out in binding.arrays[1]:
                space[at : at + out.nbytes] = out.reshape(-1).view(np.uint8)
                out.reshape(-1).view(np.uint8)[:] = np.frombuffer(space, np.uint8)[at : at + out.nbytes]
                at += out.nbytes


class Backend(ExampleBackend):
    """Opens ``driver``."""

    driver = Driver

    def devices(self):
        return tuple(attrs.evolve(device, backend=self.info.name) for device in super().devices())

    def open(self, device, options):
        return self.driver()


@attrs.frozen
class Mutant:
    """Which test must fail, and either a backend to run it on or a patch of the core to run it under."""

    name: str
    test: str
    backend: type = None
    patch: object = None


MUTANTS: list[Mutant] = []


def breaks(test):
    """Register a driver or backend class as a liar."""

    def register(cls):
        backend = cls if issubclass(cls, Backend) else type(cls.__name__, (Backend,), {"driver": cls})
        MUTANTS.append(Mutant(cls.__name__, test, backend))
        return cls

    return register


def breaks_core(test):
    """Register a function that patches the core, where the core and not the backend keeps the promise."""

    def register(patch):
        MUTANTS.append(Mutant(patch.__name__, test, None, patch))
        return patch

    return register


def install(backend: type, name: str) -> str:
    """Register a backend under a name of its own, as a notebook would."""
    named = type(backend.__name__, (backend,), {"info": BackendInfo(name, (1, 0), backend.info.plugin_version)})

    class Plugin:
        @hookimpl
        def isthmus_backends(self):
            yield named()

    if name not in isthmus.registry()._backends:
        isthmus.registry().register(Plugin())
    return name


def honest() -> str:
    """Name of the honest backend."""
    return install(Backend, "honest")


def after(region, size):
    """The ``size`` bytes after a region."""
    return Region(region.handle, region.offset + region.size, size)
