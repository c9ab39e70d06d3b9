"""A device whose QNN lives in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from isthmus.artifact import Artifact
from isthmus.errors import DeviceLostError, InputError, OutOfMemoryError, UnavailableError
from isthmus.spi import Allocation, CallerMemory, Region
from isthmus.types import Capability, Granted, MemoryRequirements, Pages, ProfileEvent

from . import binary
from .checks import Chip
from .child import Child
from .device_options import DeviceOptions
from .driver import HostDriver
from .layout import read_program
from .libraries import find
from .memory import map_shared
from .wire import CONVERTER, execute_frame, rebind_frame


@attrs.define(eq=False)
class _Buffer:
    id: int
    bytes: memoryview


@attrs.frozen(eq=False)
class _Binding:
    id: int
    name: str
    execute: bytes
    """The frame that asks for an execute."""


class IsolatedDriver(HostDriver):
    """Buffers are mapped here and there; the rest is asked of the process.

    Whatever kills that process raises ``DeviceLostError`` here and nothing else happens.
    """

    def __init__(self, options: DeviceOptions) -> None:
        """``UnavailableError``, ``IncompatibleError``: as ``QnnDriver.open``."""
        libraries = find(options.library_dir)  # before a process is started in vain
        self._child = Child(options.watchdog_seconds)
        try:
            hello = self._child.call("open", options=attrs.evolve(options, library_dir=str(libraries.directory)))
        except DeviceLostError as error:
            raise UnavailableError(
                f"the libraries in {libraries.directory} cannot be used: {error.what}",
                why=error.why,
                fix="isthmus doctor",
            ) from error
        except BaseException:
            self._child.kill()
            raise
        self._child.forget_words()
        self.capabilities = frozenset(map(Capability, hello["capabilities"]))
        self.io_alignment = hello["io_alignment"]

    @property
    def pid(self) -> int:
        """The process that runs QNN."""
        return self._child.pid

    def chip(self) -> Chip:
        """What the device is."""
        return CONVERTER.structure(self._child.call("chip"), Chip)

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        answer, fd = self._child.call_for_fd("allocate", size=size, pages=pages, alignment=alignment)
        granted = Granted(answer["granted"])
        try:
            memory = map_shared(fd, answer["length"], answer["offset"], size, granted)
        except OutOfMemoryError:
            self._child.release("free", memory=answer["id"])
            raise
        return Allocation(_Buffer(answer["id"], memory.bytes), memory.length, granted)

    def free(self, handle: _Buffer) -> None:
        handle.bytes = memoryview(b"")  # unmapped here, unless the caller still looks at it
        self._child.release("free", memory=handle.id)

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return CONVERTER.structure(self._child.call("requirements", **_program(artifact)), MemoryRequirements)

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> int:
        return int(self._child.call("load", **_program(artifact), target=artifact.manifest.target))

    def unload(self, program: int) -> None:
        self._child.release("unload", program=program)

    def bind(self, program: int, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> _Binding:
        number = self._child.call(
            "bind", program=program, entry=entry, inputs=_regions(inputs), outputs=_regions(outputs)
        )
        return _Binding(number, f"execute of {entry!r}", execute_frame(number))

    def rebind(self, binding: _Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        sides = [{p: (r.handle.id, r.offset) for p, r in side.items()} for side in (inputs, outputs)]
        self._child.send("rebind", rebind_frame(binding.id, sides))

    def unbind(self, binding: _Binding) -> None:
        self._child.release("unbind", binding=binding.id)

    def execute(self, binding: _Binding) -> None:
        self._child.send(binding.name, binding.execute)

    def profile(self, binding: _Binding) -> Sequence[ProfileEvent]:
        return CONVERTER.structure(self._child.call("profile", binding=binding.id), tuple[ProfileEvent, ...])

    def close(self) -> None:
        try:
            self._child.call("close")
        except DeviceLostError:
            return  # it is closed, then
        finally:
            self._child.close()


def inspect(path: Path | str, library_dir: str | None = None) -> binary.ContextBinary:
    """Metadata of a context binary, read in a process of its own: a hostile file costs that process.

    ``IntegrityError``, ``IncompatibleError``: not a usable context binary. ``InputError``: it killed the reader.
    """
    libraries = find(library_dir)
    child = Child(60.0)
    try:
        answer = child.call("inspect", path=str(Path(path).absolute()), library_dir=str(libraries.directory))
    except DeviceLostError as error:
        if not child.killed:
            raise
        raise InputError(f"{path} is not a usable context binary: reading it failed", why=error.what) from error
    finally:
        child.close()
    return binary.from_json(answer)


def probe() -> Chip:
    """What chip this machine has, asked of the libraries in a process of their own. Untested on silicon."""
    driver = IsolatedDriver(DeviceOptions())
    try:
        return driver.chip()
    finally:
        driver.close()


def _program(artifact: Artifact) -> dict[str, Any]:
    record = read_program(artifact)
    return {"directory": str(artifact.path.absolute()), "record": record, "entries": dict(artifact.entries)}


def _regions(regions: Sequence[Region]) -> list[tuple[int, int, int]]:
    return [(region.handle.id, region.offset, region.size) for region in regions]
