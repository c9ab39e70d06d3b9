"""Loaded programs, and their entries bound to buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from . import spi
from ._lifetime import Child
from .artifact import Artifact
from .buffer import Buffer, View, as_array
from .errors import ClosedError, DeviceLostError, InputError
from .types import Capability, EntrySpec, ProfileEvent, TensorSpec

if TYPE_CHECKING:
    from .device import Device

KINDS = ("input", "output")


class Program(Child):
    """A loaded artifact with its entries. Made by ``Device.load``."""

    def __init__(self, device: Device, artifact: Artifact, handle: spi.Handle, lent: Sequence[Buffer]) -> None:
        self.artifact = artifact
        self.entries: Mapping[str, EntrySpec] = artifact.entries
        self._handle = handle
        driver = device._ledger.driver
        super().__init__(device, lambda: driver.unload(handle), lent)

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
        if unknown := sorted(inputs.keys() - {s.name for s in spec.inputs}):
            names = ", ".join(s.name for s in spec.inputs)
            raise InputError(f"entry {entry!r} has no input {', '.join(unknown)}; it has: {names}")
        arrays = [_checked_array(s, inputs) for s in spec.inputs]
        with ExitStack() as stack:
            sources, results = (
                {s.name: stack.enter_context(self.device.allocate(s.nbytes)) for s in side}
                for side in (spec.inputs, spec.outputs)
            )
            for buffer, array in zip(sources.values(), arrays):
                buffer.write(array)
            self.execute(entry, sources, results)
            return {s.name: as_array(results[s.name].read(), s) for s in spec.outputs}


class Binding(Child):
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
        self._specs = (spec.inputs, spec.outputs)
        for kind, specs, given in zip(KINDS, self._specs, (inputs, outputs)):
            names = {s.name for s in specs}
            if names != given.keys():
                missing, unknown = sorted(names - given.keys()), sorted(given.keys() - names)
                raise InputError(f"{kind}s of entry {entry!r}: missing {missing}, unknown {unknown}")
        self._memory = ([inputs[s.name] for s in spec.inputs], [outputs[s.name] for s in spec.outputs])
        with program._call() as driver:
            handle = driver.bind(program._handle, entry, *self._check(program.device, self._memory))
            super().__init__(program.device, lambda: driver.unbind(handle), self._pins())
        self._handle = handle
        self._run, self._lock = driver.execute, self._ledger.lock

    def __repr__(self) -> str:
        return f"<Binding of {self._entry!r} of {self._program!r}>"

    def execute(self) -> None:
        """Run to completion. Outputs are undefined if this raises."""
        ledger = self._ledger
        if ledger.foreign:
            ledger.check()
        with self._lock:  # Ledger.call by hand: this is the hot path
            if self._closed or ledger.closed or ledger.lost:
                ledger.check()
                raise ClosedError("Binding is closed")
            try:
                self._run(self._handle)
            except DeviceLostError:
                ledger.lost = True
                raise

    def rebind(
        self, inputs: Mapping[str, Buffer | View] | None = None, outputs: Mapping[str, Buffer | View] | None = None
    ) -> None:
        """Replace some buffers, checked like ``bind``. Nothing changes if this raises."""
        with self._call() as driver:
            memory = (list(self._memory[0]), list(self._memory[1]))
            changed: tuple[list[int], list[int]] = ([], [])
            for side, given in enumerate((inputs or {}, outputs or {})):
                for name, new in given.items():
                    position = self._position(side, name)
                    memory[side][position] = new
                    changed[side].append(position)
            regions = self._check(self.device, memory)
            driver.rebind(self._handle, *({i: regions[side][i] for i in changed[side]} for side in (0, 1)))
            self._memory = memory
            self._use(self._pins())

    def profile(self) -> Sequence[ProfileEvent]:
        """Run once and say where the time went. Needs ``PROFILE``."""
        self.device._require(Capability.PROFILE)
        with self._call() as driver:
            return driver.profile(self._handle)

    def _position(self, side: int, name: str) -> int:
        for position, spec in enumerate(self._specs[side]):
            if spec.name == name:
                return position
        raise InputError(f"entry {self._entry!r} has no {KINDS[side]} {name!r}")

    def _pins(self) -> list[Child]:
        return [self._program, *(m._base for side in self._memory for m in side)]

    def _check(
        self, device: Device, memory: tuple[list[Buffer | View], list[Buffer | View]]
    ) -> tuple[list[spi.Region], list[spi.Region]]:
        inputs, outputs = (
            [
                _checked_region(device, f"{kind} {s.name!r} of entry {self._entry!r}", s, m)
                for s, m in zip(specs, memories)
            ]
            for kind, specs, memories in zip(KINDS, self._specs, memory)
        )
        for m, region in zip(memory[1], outputs):
            device._ledger.check_no_weights(m._base, region)
        _check_aliasing(device, self._entry, self._specs[1], memory, (inputs, outputs))
        return inputs, outputs


def _checked_region(device: Device, what: str, spec: TensorSpec, memory: Buffer | View) -> spi.Region:
    base, region = memory._base, memory._region
    if base.device is not device:
        raise InputError(f"{what} is on {base.device!r}, the program is on {device!r}")
    base._check_open()
    typed = getattr(memory, "spec", None)
    if typed is not None and (typed.dtype, typed.shape) != (spec.dtype, spec.shape):
        raise InputError(f"{what} is {spec.dtype.value}{list(spec.shape)}, got {typed.dtype.value}{list(typed.shape)}")
    if region.size < spec.nbytes:
        raise InputError(f"{what} needs {spec.nbytes} bytes ({spec.dtype.value}{list(spec.shape)}), got {region.size}")
    if region.offset % device.io_alignment:
        raise InputError(
            f"{what} starts at byte {region.offset}; {device.info.id} needs multiples of {device.io_alignment}"
        )
    return spi.Region(region.handle, region.offset, spec.nbytes)


def _check_aliasing(
    device: Device,
    entry: str,
    outputs: Sequence[TensorSpec],
    memory: tuple[Sequence[Buffer | View], Sequence[Buffer | View]],
    regions: tuple[Sequence[spi.Region], Sequence[spi.Region]],
) -> None:
    """Outputs must not overlap each other, nor an input unless the device allows it. O(n log n) in the regions."""
    names = ([""] * len(regions[0]), [s.name for s in outputs])
    sides = (1,) if Capability.ALIASED_IO in device.capabilities else (0, 1)
    marks = sorted(
        (id(m._base), r.offset, r.offset + r.size, name)
        for side in sides
        for m, r, name in zip(memory[side], regions[side], names[side])
        if r.size
    )
    reach: tuple[int, int, str] | None = None  # furthest end seen in this buffer, and whose it is
    for base, start, end, name in marks:
        if reach and reach[0] == base and start < reach[1] and (name or reach[2]):
            raise InputError(f"entry {entry!r}: output {name or reach[2]!r} overlaps another bound tensor")
        if reach is None or reach[0] != base or end > reach[1]:
            reach = (base, end, name)


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
