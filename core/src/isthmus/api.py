"""What callers use: ``compile``, ``open_device``, ``Device``, ``Buffer``, ``Program``, ``Binding``.

Everything closable is a context manager and ``close`` is idempotent. A device keeps a ledger of the handles it was
given; closing it releases them, newest first, all of them, and raises what failed as one ``ExceptionGroup``. The
garbage collector never calls a vendor library: a forgotten object warns and its handle waits in the ledger, because a
finaliser can run on any thread. Arguments are checked here, once, before any vendor call.
"""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from . import spi
from ._files import new_directory
from .artifact import Artifact, finish_artifact
from .errors import (
    ClosedError,
    DeviceLostError,
    IncompatibleError,
    InputError,
    InUseError,
    IsthmusError,
    UnsupportedError,
)
from .graphset import GraphSet
from .options import parse_options
from .registry import registry
from .types import (
    Capability,
    DeviceInfo,
    EntrySpec,
    Granted,
    MemoryInfo,
    MemoryRequirements,
    Pages,
    ProfileEvent,
    TensorSpec,
)


def compile(
    backend: str,
    source: GraphSet | Path | str,
    out: Path | str,
    *,
    target: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Artifact:
    """Compile a graph set (or one ``.onnx`` file) into the new directory ``out``.

    ``target`` defaults to the backend's first. ``InputError``: unknown option or target, or ``out`` exists.
    ``CompileError``: the backend refuses the graph. On any failure ``out`` does not exist.
    """
    plugin = registry().backend(backend)
    parsed: Any = parse_options(plugin.compile_options, options or {}, f"compile option of {backend}")
    targets = plugin.targets()
    target = target or (targets[0] if targets else None)
    if target is None:
        raise UnsupportedError(f"backend {backend} has no compiler on this machine", fix="isthmus doctor")
    plugin.dialect(target)  # refuses an unknown target before any work is done
    graphs = source if isinstance(source, GraphSet) else GraphSet.open(source)
    with new_directory(Path(out)) as work:
        report = plugin.compile(graphs, target, work, parsed)
        finish_artifact(
            work,
            graphs,
            report,
            isthmus=version("isthmus"),
            backend=backend,
            plugin=plugin.info.plugin_version,
            target=target,
            options={k: str(v) for k, v in (options or {}).items()},
        )
    return Artifact.open(out)


def open_device(name: str, *, options: Mapping[str, object] | None = None) -> Device:
    """Open ``"backend"`` (its default device) or ``"backend:device"``, e.g. ``"cpu"`` or ``"cpu:reference"``."""
    backend_name, _, device_name = name.partition(":")
    backend = registry().backend(backend_name)
    parsed: Any = parse_options(backend.device_options, options or {}, f"device option of {backend_name}")
    devices = backend.devices()
    if not devices:
        raise UnsupportedError(f"backend {backend_name} lists no device here", fix="isthmus doctor")
    info = next((d for d in devices if d.name == device_name), None) if device_name else devices[0]
    if info is None:
        raise InputError(
            f"backend {backend_name} has no device {device_name!r}; it has: {', '.join(d.name for d in devices)}",
            fix="isthmus backends",
        )
    return Device(info, backend.open(info, parsed))


class _Closing:
    """Open/closed state shared by the public classes."""

    _closed = True  # until __init__ succeeds

    @property
    def closed(self) -> bool:
        """Whether the resource is gone."""
        return self._closed

    def close(self) -> None:
        """Release the resource. Safe to call twice."""
        if not self._closed:
            try:
                self._release()
            finally:
                self._closed = True

    def _release(self) -> None:
        raise NotImplementedError  # pragma: no cover - every subclass has its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)


class Device(_Closing):
    """An open device: allocates memory, loads programs, owns both. Usable from any thread, one call at a time."""

    def __init__(self, info: DeviceInfo, driver: spi.DeviceDriver) -> None:
        self.info = info
        self.capabilities = driver.capabilities
        self._driver = driver
        self._lock = threading.RLock()
        self._ledger: dict[int, Callable[[], None]] = {}
        self._tickets = itertools.count()
        self._pid = os.getpid()
        self._lost = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Device {self.info.id} ({self.info.reality.value})>"

    def memory_info(self) -> MemoryInfo:
        """Free and total memory now; unknown is ``None``."""
        with self._call() as driver:
            return driver.memory_info()

    def allocate(self, size: int, pages: Pages = Pages.NORMAL, *, alignment: int = 64) -> Buffer:
        """Allocate ``size`` bytes (0 is legal). ``Buffer.granted`` says which pages it got. Contents are undefined.

        ``OutOfMemoryError`` says how much was free. ``UnsupportedError``: ``REQUIRE_HUGE`` on a device without.
        """
        if size < 0:
            raise InputError(f"size must not be negative: {size}")
        if alignment < 1 or alignment & (alignment - 1):
            raise InputError(f"alignment must be a power of two: {alignment}")
        if pages is Pages.REQUIRE_HUGE:
            self._require(Capability.HUGE_PAGES)
        with self._call() as driver:
            # Several vendors reject empty allocations, so no driver sees one.
            grant = driver.allocate(size, pages, alignment) if size else spi.Allocation(None, 0, Granted.NORMAL)
            return Buffer(self, size, grant)

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        """What ``load`` will need: weights, workspace and I/O, without loading anything."""
        self._check_artifact(artifact)
        with self._call() as driver:
            return driver.memory_requirements(artifact)

    def load(
        self, artifact: Artifact, *, weights: Buffer | View | None = None, workspace: Buffer | View | None = None
    ) -> Program:
        """Load a program, into caller-owned ``weights`` and ``workspace`` memory where given.

        The buffers stay the caller's: they are pinned while the program is loaded and left alone by its ``close``.
        One workspace may serve several programs that never run at once. ``InputError``: a buffer is too small.
        """
        self._check_artifact(artifact)
        lent = [b for b in (weights, workspace) if b is not None]
        if weights is not None:
            self._require(Capability.CALLER_WEIGHTS)
        if workspace is not None:
            self._require(Capability.CALLER_WORKSPACE)
        memory = None
        if lent:
            need = self.memory_requirements(artifact)
            memory = spi.CallerMemory(
                self._lend("weights", weights, need.weights, need.alignment),
                self._lend("workspace", workspace, need.peak_workspace, need.alignment),
            )
        with self._call() as driver:
            return Program(self, artifact, driver.load(artifact, memory), [b._base for b in lent])

    def _lend(self, what: str, memory: Buffer | View | None, need: int, alignment: int) -> spi.Region | None:
        if memory is None:
            return None
        if memory._base.device is not self:
            raise InputError(f"the {what} buffer belongs to {memory._base.device!r}, not to {self!r}")
        memory._base._check_open()
        region = memory._region
        if region.size < need:
            raise InputError(
                f"the {what} buffer has {region.size} bytes, the artifact needs {need}",
                fix="allocate what Device.memory_requirements (isthmus size) says",
            )
        if region.offset % alignment:
            raise InputError(f"the {what} buffer starts at offset {region.offset}, which is not aligned to {alignment}")
        return spi.Region(region.handle, region.offset, need)

    def _check_artifact(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        if manifest.backend != self.info.backend or manifest.target not in self.info.targets:
            raise IncompatibleError(
                f"{artifact.path} was compiled for {manifest.backend} target {manifest.target}; "
                f"{self.info.id} runs {self.info.backend} targets {', '.join(self.info.targets)}",
                fix=f"isthmus compile GRAPHS --backend {self.info.backend} --target {self.info.targets[0]} -o DIR",
            )

    def _require(self, capability: Capability) -> None:
        if capability not in self.capabilities:
            raise UnsupportedError(
                f"{self.info.id} lacks {capability.value}; it has: "
                f"{', '.join(sorted(c.value for c in self.capabilities)) or 'none of the optional abilities'}"
            )

    def _check_usable(self) -> None:
        if self._closed or self._lost or self._pid != os.getpid():
            why = "lost" if self._lost else "closed" if self._closed else "owned by the parent process"
            fix = "open it again with open_device" if self._lost else None
            raise ClosedError(f"device {self.info.id} is {why}", fix=fix)

    @contextmanager
    def _call(self) -> Iterator[spi.DeviceDriver]:
        """Lend the driver to one thread at a time, in the process that opened it."""
        with self._lock:
            self._check_usable()
            try:
                yield self._driver
            except DeviceLostError:
                self._lost = True
                raise

    def _enter(self, release: Callable[[], None]) -> int:
        ticket = next(self._tickets)
        self._ledger[ticket] = release
        return ticket

    def _settle(self, ticket: int) -> None:
        with self._lock:
            release = self._ledger.pop(ticket, None)
            if release and not self._lost and self._pid == os.getpid():
                try:
                    release()
                except DeviceLostError:
                    self._lost = True  # its handles went with it
                    raise

    def _release(self) -> None:
        errors: list[Exception] = []
        with self._lock:
            for ticket in sorted(self._ledger, reverse=True):
                try:
                    self._settle(ticket)
                except IsthmusError as error:
                    errors.append(error)
            if self._pid == os.getpid():
                try:
                    self._driver.close()
                except IsthmusError as error:
                    errors.append(error)
        if errors:
            raise ExceptionGroup(f"while closing device {self.info.id}", errors)


class _Child(_Closing):
    """A buffer, program or binding: closed with its device at the latest."""

    def __init__(self, device: Device, release: Callable[[], None]) -> None:
        self.device = device
        self._users = 0
        self._ticket = device._enter(release)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the resource, or the device that owns it, is gone."""
        return self._closed or self.device._closed

    def close(self) -> None:
        """Release it. ``InUseError`` while something else needs it."""
        if self._users and not self.closed:
            raise InUseError(
                f"{self!r} is used by {self._users} open program(s) or binding(s)", fix="close those first"
            )
        super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{type(self).__name__} is closed")

    def _release(self) -> None:
        self.device._settle(self._ticket)


class Buffer(_Child):
    """Device memory. Made by ``Device.allocate``. ``buffer[a:b]`` is a view of a part, without a copy."""

    def __init__(self, device: Device, size: int, grant: spi.Allocation) -> None:
        self.size = size
        self.allocated_size = grant.size
        self.granted = grant.granted
        self._region = spi.Region(grant.handle, 0, size)
        self._base = self
        driver, handle = device._driver, grant.handle
        super().__init__(device, (lambda: driver.free(handle)) if size else lambda: None)

    def __repr__(self) -> str:
        return f"<Buffer of {self.size} bytes on {self.device.info.id}>"

    def __getitem__(self, part: slice) -> View:
        return View(self, 0, self.size)[part]

    def view(self, spec: TensorSpec | None = None, *, offset: int = 0) -> View:
        """A view from ``offset`` on: as long as ``spec``, and checked as such when bound; else to the end."""
        size = self.size - offset if spec is None else spec.nbytes
        return View(self, offset, size, spec)

    def write(self, data: Any, offset: int = 0) -> None:
        """Copy host bytes (anything with a C-contiguous buffer, such as an array) into the buffer."""
        self.view(offset=offset).write(data)

    def read_into(self, out: Any, offset: int = 0) -> None:
        """Copy bytes out of the buffer until ``out`` is full."""
        self.view(offset=offset).read_into(out)

    def read(self, size: int | None = None, offset: int = 0) -> bytearray:
        """Copy bytes out into new memory."""
        out = bytearray(self.size - offset if size is None else size)
        self.read_into(out, offset)
        return out


class View:
    """A part of a buffer, optionally typed. Owns nothing; dead once its buffer is closed."""

    __slots__ = ("_base", "_region", "spec")

    def __init__(self, base: Buffer, offset: int, size: int, spec: TensorSpec | None = None) -> None:
        if offset < 0 or size < 0 or offset + size > base.size:
            raise InputError(f"bytes {offset}..{offset + size} of a buffer of {base.size}")
        self._base = base
        self._region = spi.Region(base._region.handle, offset, size)
        self.spec = spec

    def __repr__(self) -> str:
        return f"<View of bytes {self.offset}..{self.offset + self.size} of {self._base!r}>"

    @property
    def offset(self) -> int:
        """First byte within the buffer."""
        return self._region.offset

    @property
    def size(self) -> int:
        """Bytes."""
        return self._region.size

    def __getitem__(self, part: slice) -> View:
        start = 0 if part.start is None else part.start
        stop = self.size if part.stop is None else part.stop
        if part.step is not None or not 0 <= start <= stop <= self.size:
            raise InputError(f"slice [{part.start}:{part.stop}:{part.step}] of {self.size} bytes")
        return View(self._base, self.offset + start, stop - start)

    def write(self, data: Any) -> None:
        """Copy host bytes in, from the view's first byte on."""
        source = _bytes_of(data)
        region = self._part(source.nbytes)
        if region.size:
            with self._base.device._call() as driver:
                driver.write(region, source)

    def read_into(self, out: Any) -> None:
        """Copy bytes out, from the view's first byte on, until ``out`` is full."""
        target = _bytes_of(out)
        region = self._part(target.nbytes)
        if region.size:
            with self._base.device._call() as driver:
                driver.read(region, target)

    def copy_from(self, source: Buffer | View) -> None:
        """Copy within the device. ``InputError``: sizes differ, ranges overlap, or the devices do."""
        theirs = source._region
        self._base._check_open()
        source._base._check_open()
        if source._base.device is not self._base.device:
            raise InputError("copy_from works within one device; read and write across devices")
        if theirs.size != self.size:
            raise InputError(f"cannot copy {theirs.size} bytes into {self.size}")
        if source._base is self._base and _overlap(theirs, self._region):
            raise InputError("source and destination overlap")
        if self.size:
            with self._base.device._call() as driver:
                driver.copy(self._region, theirs)

    def array(self, spec: TensorSpec | None = None) -> np.ndarray[Any, Any]:
        """The memory itself as a writable array, no copy; valid until the buffer is closed. Needs ``HOST_VISIBLE``."""
        spec = spec or self.spec
        self._base._check_open()
        self._base.device._require(Capability.HOST_VISIBLE)
        with self._base.device._call() as driver:
            memory = driver.host_view(self._region.handle)[self.offset : self.offset + self.size]
        flat = np.frombuffer(memory, np.uint8 if spec is None else spec.dtype.numpy)
        return flat if spec is None else flat[: spec.elements].reshape(spec.shape)

    def _part(self, size: int) -> spi.Region:
        self._base._check_open()
        if size > self.size:
            raise InputError(f"{size} bytes do not fit into {self!r}")
        return spi.Region(self._region.handle, self._region.offset, size)


class Program(_Child):
    """A loaded artifact with its entries. Made by ``Device.load``."""

    def __init__(self, device: Device, artifact: Artifact, handle: spi.Handle, lent: Sequence[Buffer]) -> None:
        self.artifact = artifact
        self.entries: Mapping[str, EntrySpec] = artifact.entries
        self._handle = handle
        self._lent = lent
        for buffer in lent:
            buffer._users += 1
        driver = device._driver
        super().__init__(device, lambda: driver.unload(handle))

    def __repr__(self) -> str:
        return f"<Program {self.artifact.path.name} on {self.device.info.id}>"

    def entry(self, name: str) -> EntrySpec:
        """The inputs and outputs of an entry. ``InputError`` lists the entries there are."""
        try:
            return self.entries[name]
        except KeyError:
            raise InputError(f"{self!r} has no entry {name!r}; it has: {', '.join(self.entries)}") from None

    def bind(self, entry: str, inputs: Mapping[str, Buffer | View], outputs: Mapping[str, Buffer | View]) -> Binding:
        """Check and fix the buffers of an entry once, to execute many times.

        A buffer may be larger than its tensor. ``InputError`` names the tensor: missing, unknown, too small, of
        another dtype or shape (typed views), misaligned, of another device, or overlapping.
        """
        return Binding(self, entry, inputs, outputs)

    def execute(self, entry: str, inputs: Mapping[str, Buffer | View], outputs: Mapping[str, Buffer | View]) -> None:
        """Bind, run to completion, unbind."""
        with self.bind(entry, inputs, outputs) as binding:
            binding.execute()

    def run(self, entry: str, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Arrays in, new arrays out: allocates, copies, executes and frees. For tools and tests, not for loops.

        bfloat16 and 4-bit tensors travel as their raw bytes (uint8 arrays).
        """
        spec = self.entry(entry)
        arrays = {s.name: _checked_array(s, inputs) for s in spec.inputs}
        if unknown := set(inputs) - set(arrays):
            raise InputError(f"entry {entry!r} has no input {sorted(unknown)}; it has: {', '.join(arrays)}")
        buffers: list[Buffer] = []
        try:
            for s in (*spec.inputs, *spec.outputs):
                buffers.append(self.device.allocate(s.nbytes))
            for buffer, s in zip(buffers, spec.inputs):
                buffer.write(arrays[s.name])
            results = buffers[len(spec.inputs) :]
            self.execute(
                entry,
                {s.name: b for s, b in zip(spec.inputs, buffers)},
                {s.name: b for s, b in zip(spec.outputs, results)},
            )
            return {s.name: _read_array(s, b) for s, b in zip(spec.outputs, results)}
        finally:
            for buffer in reversed(buffers):
                buffer.close()

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            for buffer in self._lent:
                buffer._users -= 1


class Binding(_Child):
    """An entry with its buffers fixed. Made by ``Program.bind``; pins the program and the buffers."""

    def __init__(
        self,
        program: Program,
        entry: str,
        inputs: Mapping[str, Buffer | View],
        outputs: Mapping[str, Buffer | View],
    ) -> None:
        self._program = program
        self._entry = entry
        spec = program.entry(entry)
        program._check_open()
        self._specs = (
            {s.name: (i, s) for i, s in enumerate(spec.inputs)},
            {s.name: (i, s) for i, s in enumerate(spec.outputs)},
        )
        for kind, specs, given in zip(("input", "output"), self._specs, (inputs, outputs)):
            if specs.keys() != given.keys():
                missing, unknown = sorted(specs.keys() - given.keys()), sorted(given.keys() - specs.keys())
                raise InputError(f"{kind}s of entry {entry!r}: missing {missing}, unknown {unknown}")
        device = program.device
        regions = tuple(
            [self._check(kind, spec, given[name], device) for name, (_, spec) in specs.items()]
            for kind, specs, given in zip(("input", "output"), self._specs, (inputs, outputs))
        )
        _check_aliasing(device, entry, regions[0], regions[1], [s.name for s in spec.outputs])
        self._regions = regions
        self._buffers = tuple(
            [given[name]._base for name in specs] for specs, given in zip(self._specs, (inputs, outputs))
        )
        with device._call() as driver:
            self._handle = handle = driver.bind(program._handle, entry, *regions)
        for user in self._pinned():
            user._users += 1
        super().__init__(device, lambda: driver.unbind(handle))
        self._run, self._lock = driver.execute, device._lock

    def __repr__(self) -> str:
        return f"<Binding of {self._entry!r} of {self._program!r}>"

    def execute(self) -> None:
        """Run to completion. Outputs are undefined if this raises."""
        device = self.device
        with self._lock:
            if self._closed:
                raise ClosedError("Binding is closed")
            device._check_usable()
            try:
                self._run(self._handle)
            except DeviceLostError:
                device._lost = True
                raise

    def rebind(
        self, inputs: Mapping[str, Buffer | View] | None = None, outputs: Mapping[str, Buffer | View] | None = None
    ) -> None:
        """Replace some buffers, checked like ``bind``. Nothing changes if this raises."""
        self._check_open()
        device, changes = self.device, ({}, {})  # type: tuple[Device, tuple[dict[int, spi.Region], dict[int, spi.Region]]]
        regions = [list(self._regions[0]), list(self._regions[1])]
        buffers = [list(self._buffers[0]), list(self._buffers[1])]
        for side, (kind, given) in enumerate((("input", inputs or {}), ("output", outputs or {}))):
            for name, memory in given.items():
                if name not in self._specs[side]:
                    raise InputError(f"entry {self._entry!r} has no {kind} {name!r}")
                position, spec = self._specs[side][name]
                changes[side][position] = regions[side][position] = self._check(kind, spec, memory, device)
                buffers[side][position] = memory._base
        _check_aliasing(device, self._entry, regions[0], regions[1], list(self._specs[1]))
        with device._call() as driver:
            driver.rebind(self._handle, *changes)
        self._pin(-1)
        self._regions, self._buffers = (regions[0], regions[1]), (buffers[0], buffers[1])
        self._pin(1)

    def profile(self) -> Sequence[ProfileEvent]:
        """Run once and say where the time went. Needs ``PROFILE``."""
        self._check_open()
        self.device._require(Capability.PROFILE)
        with self.device._call() as driver:
            return driver.profile(self._handle)

    def _check(self, kind: str, spec: TensorSpec, memory: Buffer | View, device: Device) -> spi.Region:
        base, region = memory._base, memory._region
        base._check_open()
        what = f"{kind} {spec.name!r} of entry {self._entry!r}"
        if base.device is not device:
            raise InputError(f"{what} is on {base.device!r}, the program is on {device!r}")
        typed = getattr(memory, "spec", None)
        if typed is not None and (typed.dtype, typed.shape) != (spec.dtype, spec.shape):
            raise InputError(
                f"{what} is {spec.dtype.value}{list(spec.shape)}, got {typed.dtype.value}{list(typed.shape)}"
            )
        if region.size < spec.nbytes:
            raise InputError(
                f"{what} needs {spec.nbytes} bytes ({spec.dtype.value}{list(spec.shape)}), got {region.size}"
            )
        if region.offset % device._driver.io_alignment:
            raise InputError(
                f"{what} starts at byte {region.offset}; {device.info.id} needs multiples of {device._driver.io_alignment}"
            )
        return spi.Region(region.handle, region.offset, spec.nbytes)

    def _pinned(self) -> list[_Child]:
        return [self._program, *self._buffers[0], *self._buffers[1]]

    def _pin(self, count: int) -> None:
        for user in self._pinned():
            user._users += count

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            self._pin(-1)


def _overlap(a: spi.Region, b: spi.Region) -> bool:
    return a.handle is b.handle and a.offset < b.offset + b.size and b.offset < a.offset + a.size


def _check_aliasing(
    device: Device, entry: str, inputs: Sequence[spi.Region], outputs: Sequence[spi.Region], names: Sequence[str]
) -> None:
    """Outputs must not overlap each other, nor an input unless the device allows it. O(n log n) in the regions."""
    aliased_ok = Capability.ALIASED_IO in device.capabilities
    marks = [(id(r.handle), r.offset, r.offset + r.size, name) for r, name in zip(outputs, names)]
    if not aliased_ok:
        marks += [(id(r.handle), r.offset, r.offset + r.size, "") for r in inputs]
    marks.sort()
    reach: tuple[int, int, str] | None = None  # furthest end seen in this allocation, and whose it is
    for handle, start, end, name in marks:
        if reach and reach[0] == handle and start < reach[1] and (name or reach[2]):
            raise InputError(f"entry {entry!r}: output {name or reach[2]!r} overlaps another bound tensor")
        if reach is None or reach[0] != handle or end > reach[1]:
            reach = (handle, end, name)


def _bytes_of(data: Any) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise InputError("the data is not C-contiguous", fix="pass numpy.ascontiguousarray(data)")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _checked_array(spec: TensorSpec, inputs: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if spec.name not in inputs:
        raise InputError(f"input {spec} is missing")
    array = np.asarray(inputs[spec.name])
    try:
        wanted = spec.dtype.numpy
    except TypeError:
        if array.dtype == np.uint8 and array.nbytes == spec.nbytes:
            return np.ascontiguousarray(array)
        raise InputError(
            f"input {spec} travels as {spec.nbytes} uint8 bytes, got {array.dtype}{list(array.shape)}"
        ) from None
    if array.dtype != wanted or array.shape != spec.shape:
        raise InputError(f"input {spec} got {array.dtype}{list(array.shape)}")
    return np.ascontiguousarray(array)


def _read_array(spec: TensorSpec, buffer: Buffer) -> np.ndarray[Any, Any]:
    raw = buffer.read(spec.nbytes)
    try:
        return np.frombuffer(raw, spec.dtype.numpy).reshape(spec.shape)
    except TypeError:
        return np.frombuffer(raw, np.uint8)
