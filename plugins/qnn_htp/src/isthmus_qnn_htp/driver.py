"""An open device in this process: the SPI on the QNN C API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from isthmus.artifact import Artifact
from isthmus.errors import UnavailableError
from isthmus.spi import Allocation, CallerMemory, DeviceDriver, Region
from isthmus.types import Capability, EntrySpec, MemoryInfo, MemoryRequirements, Pages, ProfileEvent

from . import _lib
from .binary import ContextBinary, read_binary
from .checks import Chip, check_binary, check_record, match
from .device_options import DeviceOptions, IoMemory
from .emulator import emulated_vtcm
from .layout import ProgramRecord, read_program
from .libraries import emulated, find
from .memory import DspMemory, HostMemory, Memory, host_memory
from .profile import Profiler
from .program import Binding, Program
from .requirements import requirements
from .session import Session
from .silicon import TimeoutSignal
from .targets import parse


class HostDriver(DeviceDriver):
    """What a driver does on buffers the host sees, whoever executes."""

    def memory_info(self) -> MemoryInfo:
        return host_memory()

    def write(self, region: Region, data: memoryview) -> None:
        region.handle.bytes[region.offset : region.offset + region.size] = data

    def read(self, region: Region, out: memoryview) -> None:
        out[:] = region.handle.bytes[region.offset : region.offset + region.size]

    def copy(self, dst: Region, src: Region) -> None:
        self.write(dst, src.handle.bytes[src.offset : src.offset + src.size])

    def host_view(self, handle: Memory) -> memoryview:
        return handle.bytes


class QnnDriver(HostDriver):
    """QNN in this process. Handles are ``Memory``, ``Program`` and ``Binding``."""

    def __init__(self, session: Session, chip: Chip) -> None:
        self._session, self.chip = session, chip
        self._programs: list[Program] = []
        with ExitStack() as closing:
            closing.callback(session.close)
            self._memory = _io_memory(session.options.io_memory, chip)
            self._signal = None
            if (seconds := session.options.abort_seconds) is not None:
                self._signal = TimeoutSignal(session.core, session.backend, seconds)
                closing.callback(self._signal.close)
            self._profiler = Profiler(session)
            closing.callback(self._profiler.close)
            self._closing = closing.pop_all()
        self.capabilities = frozenset({Capability.HOST_VISIBLE, Capability.PROFILE})
        if not self._memory.registered:
            self.capabilities |= {Capability.HUGE_PAGES}
        if chip.emulated:  # seen there: an output may lie inside an input, whatever its size
            self.capabilities |= {Capability.ALIASED_IO}
        self.io_alignment = 4 if chip.emulated else 64

    @classmethod
    def open(cls, options: DeviceOptions) -> QnnDriver:
        """Load the libraries and open the device. ``UnavailableError``, ``IncompatibleError``."""
        session = Session.load(find(options.library_dir), options)
        try:
            return cls(session, _chip(session, options))
        except BaseException:
            session.close()
            raise

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        memory = self.allocate_shared(size, pages, alignment)
        memory.close_fd()
        return Allocation(memory, memory.length, memory.granted)

    def allocate_shared(self, size: int, pages: Pages, alignment: int) -> Memory:
        """Allocate, keeping the file descriptor for another process."""
        return self._memory.allocate(size, pages, alignment)

    def free(self, handle: Memory) -> None:
        for program in self._programs:
            program.forget(handle)
        handle.release()

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return self.requirements_of(artifact.path, read_program(artifact), artifact.entries)

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> Program:
        return self.load_program(artifact.path, read_program(artifact), artifact.entries, artifact.manifest.target)

    def requirements_of(
        self, directory: Path, record: ProgramRecord, entries: Mapping[str, EntrySpec]
    ) -> MemoryRequirements:
        """``memory_requirements`` of the binaries in ``directory``."""
        binaries = self._read(directory, record)
        match(record, binaries, entries)
        return requirements(binaries, record, entries)

    def load_program(
        self, directory: Path, record: ProgramRecord, entries: Mapping[str, EntrySpec], target: str
    ) -> Program:
        """``load`` of the binaries in ``directory``, compiled for ``target``."""
        check_record(record, self.chip, target)
        binaries = self._read(directory, record)
        for file, binary in binaries.items():
            check_binary(file, binary, record, self.chip)
        matched = match(record, binaries, entries)
        spill_fill = max((g.spill_fill or 0 for b in binaries.values() for g in b.graphs), default=0)
        program = Program(
            self._session,
            # The emulator plays the chip the artifact is for; a chip is what it is.
            self._session.device(record.soc if self.chip.emulated else None),
            directory,
            matched,
            registered=self._memory.registered,
            spill_fill=spill_fill if self._session.options.share_spill_fill else 0,
            held=emulated_vtcm(record) if self.chip.emulated else None,
        )
        self._programs.append(program)
        return program

    def unload(self, program: Program) -> None:
        self._programs.remove(program)
        program.unload()

    def bind(self, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> Binding:
        return Binding(self._session, program.entries[entry], inputs, outputs, self._signal)

    def rebind(self, binding: Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        binding.rebind(inputs, outputs)

    def unbind(self, binding: Binding) -> None:
        """A binding is host memory only."""

    def execute(self, binding: Binding) -> None:
        binding.execute()

    def profile(self, binding: Binding) -> Sequence[ProfileEvent]:
        binding.execute_profiled(self._profiler.handle)
        return self._profiler.events()

    def close(self) -> None:
        self._closing.close()

    def _read(self, directory: Path, record: ProgramRecord) -> dict[str, ContextBinary]:
        return {file: read_binary(self._session.system, directory / file) for file in record.binaries}


def _chip(session: Session, options: DeviceOptions) -> Chip:
    if options.soc is not None:
        target = parse(options.soc)
        return Chip(emulated(), target.soc, target.arch, session.sdk)
    soc, arch = (None, None) if emulated() else session.chip()
    return Chip(emulated(), soc, arch, session.sdk)


def _io_memory(wanted: IoMemory, chip: Chip) -> HostMemory | DspMemory:
    if wanted is IoMemory.CLIENT or (wanted is IoMemory.AUTO and chip.emulated):
        return HostMemory()
    try:
        return DspMemory(_lib.RpcMemory())
    except UnavailableError:
        if wanted is IoMemory.REGISTERED:
            raise
        return HostMemory()
