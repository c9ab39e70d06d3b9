"""What a plugin implements: two abstract classes.

Callers never see these; they hold the concrete classes in ``isthmus.api``, which check arguments, serialise calls
and own lifetimes. A driver may therefore assume valid sizes, open handles and one call at a time per device, from any
thread. Handles are whatever object the driver likes; the core only hands them back. A driver raises
``isthmus.errors.IsthmusError`` and nothing else.

Adding a method with a default is a minor version; anything else is a major one.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import attrs

from .errors import UnsupportedError
from .types import (
    CANONICAL,
    BackendInfo,
    Capability,
    ConformanceProfile,
    DeviceInfo,
    Dialect,
    EntrySpec,
    Granted,
    GraphFigures,
    MemoryInfo,
    MemoryLimit,
    MemoryRequirements,
    Pages,
    ProfileEvent,
    Reality,
    Tolerance,
)

if TYPE_CHECKING:
    from .artifact import Artifact
    from .explain import Explanation
    from .graphset import GraphSet

SPI_VERSION = (1, 0)

Handle = Any


class Region(NamedTuple):
    """``size`` bytes at ``offset`` of an allocation."""

    handle: Handle
    offset: int
    size: int


@attrs.frozen
class Allocation:
    """Answer to ``allocate``: the handle, the bytes really charged, and the pages really granted."""

    handle: Handle
    size: int
    granted: Granted


@attrs.frozen
class CallerMemory:
    """Memory the caller lends to a program until ``unload``; ``None`` leaves that part to the runtime."""

    weights: Region | None
    workspace: Region | None


@attrs.frozen
class CompileReport:
    """What a compiler did; the core turns it into the artifact's manifest."""

    entries: Mapping[str, EntrySpec]
    memory: MemoryRequirements
    toolchain: Mapping[str, str]
    """Compiler and SDK names with their versions."""
    tolerance: Tolerance
    """How far results may be from the float64 reference of the source graphs, given the precision compiled for."""
    reality: Reality = Reality.REAL
    placement: Mapping[str, str] = attrs.field(factory=dict)
    """Nodes that run anywhere but on the device, with where they run. Empty: all of them run on the device."""
    notes: tuple[str, ...] = ()


@attrs.frozen
class NoOptions:
    """For a backend without options."""


class MemoryRules:
    """What a backend knows of memory before anything is compiled. Every answer has a default; none needs a device."""

    aliased_io: ClassVar[bool] = False
    """Its devices have ``ALIASED_IO``, so that new keys and values need no staging buffers."""
    no_copies: ClassVar[str] = ""
    """Flags of a command that load without the runtime's own copies of weights; empty if it makes none."""
    configurations: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Compile options that trade memory, by name, for ``isthmus compile --sweep-memory``; the first is the reference."""

    def limits(self, target: str) -> Sequence[MemoryLimit]:
        """What the vendor allows at most on ``target``."""
        return ()

    def predict(self, graphs: Mapping[str, GraphFigures], target: str, options: Any) -> MemoryRequirements:
        """What ``compile`` with ``options`` would state of these entries. By default: equal weights once, nothing packed."""
        weights = {name: w.nbytes for g in graphs.values() for name, w in g.weights.items()}
        workspace = {entry: g.activations for entry, g in graphs.items()}
        total = sum(weights.values())
        return MemoryRequirements(
            weights=total,
            workspace=workspace,
            io={entry: g.io_bytes for entry, g in graphs.items()},
            exact=False,
            own_load=total + max(workspace.values(), default=0),
            caller_load=0,
        )

    def sharing(self, target: str) -> Mapping[str, str]:
        """Compile options that keep equal weights of several entries once; empty if they always are, or never."""
        return {}

    def charged(self, size: int) -> int:
        """Bytes that a buffer of ``size`` takes from the device."""
        return size


class Backend(abc.ABC):
    """One plugin. Constructing it loads no vendor library and opens no device."""

    info: ClassVar[BackendInfo]
    compile_options: ClassVar[type] = NoOptions
    """attrs class; each field has a default and ``metadata={"help": ...}``. Unknown keys never reach the plugin."""
    device_options: ClassVar[type] = NoOptions
    """attrs class, likewise, for ``open``."""
    conformance: ClassVar[ConformanceProfile] = ConformanceProfile()
    memory_rules: ClassVar[MemoryRules] = MemoryRules()

    @abc.abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """List the devices here, the default first. ``UnavailableError`` says what is missing and what fixes it."""

    @abc.abstractmethod
    def open(self, device: DeviceInfo, options: Any) -> DeviceDriver:
        """Open a device; the result owns every vendor object until ``close``. ``options`` is a ``device_options``."""

    def targets(self) -> Sequence[str]:
        """Targets ``compile`` accepts, the default first. Needs no device and no vendor library."""
        return ()

    def dialect(self, target: str) -> Dialect:
        """How graphs for ``target`` should be spelled. ``InputError`` for an unknown target."""
        return CANONICAL

    def compile(self, source: GraphSet, target: str, out: Path, options: Any) -> CompileReport:
        """Compile ``source`` into the empty directory ``out``. Needs no device. ``options`` is a ``compile_options``.

        Everything the device needs is written below ``out``; the core adds the manifest and the assets.
        """
        raise UnsupportedError(f"backend {self.info.name} has no compiler on this machine")

    def inspect(self, file: Path) -> Mapping[str, Any] | None:
        """Describe a file of this backend's own format as JSON-ready data; ``None`` if it is not one.

        Needs no device and no vendor hardware. The file may be hostile: ``InputError`` for a damaged one.
        """
        return None

    def explanations(self) -> Sequence[Explanation]:
        """What this vendor's codes and log lines mean. Needs no device and no vendor library; constant."""
        return ()

    def doctor(self) -> Mapping[str, str]:
        """Facts for ``isthmus doctor``: versions and paths found, what was searched. Never raises for a lack."""
        return {}


class DeviceDriver(abc.ABC):
    """An open device."""

    capabilities: frozenset[Capability]
    io_alignment: int = 1
    """Alignment of the offset of an input or output region."""

    @abc.abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Free and total memory; unknown is ``None``, never 0."""

    @abc.abstractmethod
    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        """Allocate at least ``size`` (> 0) bytes; ``alignment`` is a power of two. Contents are undefined."""

    @abc.abstractmethod
    def free(self, handle: Handle) -> None:
        """Free one allocation, once. No program or binding uses it any more; a caller may still hold a host view."""

    @abc.abstractmethod
    def write(self, region: Region, data: memoryview) -> None:
        """Copy host bytes in, ``data.nbytes == region.size``. ``data`` may be reused as soon as this returns."""

    @abc.abstractmethod
    def read(self, region: Region, out: memoryview) -> None:
        """Copy device bytes out, ``out.nbytes == region.size``."""

    @abc.abstractmethod
    def copy(self, dst: Region, src: Region) -> None:
        """Copy within the device, same size, not overlapping."""

    def host_view(self, handle: Handle) -> memoryview:
        """A writable view of an allocation, valid until ``free``. Needs ``HOST_VISIBLE``."""
        raise UnsupportedError("buffers of this device are not host visible")

    @abc.abstractmethod
    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        """What ``load`` will need, without loading."""

    @abc.abstractmethod
    def load(self, artifact: Artifact, memory: CallerMemory | None) -> Handle:
        """Make an artifact runnable, in the caller's memory where given.

        The caller's weights buffer arrives with undefined contents; ``load`` fills it. The artifact's files are
        verified. ``IncompatibleError`` when the binary does not have the entries its manifest states.
        """

    @abc.abstractmethod
    def unload(self, program: Handle) -> None:
        """Undo ``load``, once, after its bindings are gone. Caller memory is left alone."""

    @abc.abstractmethod
    def bind(self, program: Handle, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> Handle:
        """Fix the regions of an entry's inputs and outputs, in the order of its spec, sizes exact. Runs nothing.

        Inputs may overlap one another, and all regions may lie in one allocation.
        """

    @abc.abstractmethod
    def rebind(self, binding: Handle, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        """Replace some regions, by position."""

    @abc.abstractmethod
    def unbind(self, binding: Handle) -> None:
        """Undo ``bind``, once."""

    @abc.abstractmethod
    def execute(self, binding: Handle) -> None:
        """Run to completion. Outputs are undefined if this raises."""

    def profile(self, binding: Handle) -> Sequence[ProfileEvent]:
        """Run once and say where the time went. Needs ``PROFILE``."""
        raise UnsupportedError("this device reports no profile")

    @abc.abstractmethod
    def close(self) -> None:
        """Release the device. Every other handle has been released before, unless the device is lost."""
