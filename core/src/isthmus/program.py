"""Loaded programs, and their entries bound to buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

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
        self._slots = {
            name: (_slots("input", e.inputs), _slots("output", e.outputs)) for name, e in artifact.entries.items()
        }
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
        program.entry(entry)  # refuses an unknown one
        self._slots = program._slots[entry]
        memory: list[list[Buffer | View]] = []
        for slots, given in zip(self._slots, (inputs, outputs)):
            if slots.keys() != given.keys():
                missing, unknown = sorted(slots.keys() - given.keys()), sorted(given.keys() - slots.keys())
                raise InputError(f"tensors of entry {entry!r}: missing {missing}, unknown {unknown}")
            memory.append([given[name] for name in slots])
        with program._call() as driver:
            regions = [
                [self._region(slot, m) for slot, m in zip(slots.values(), side)]
                for slots, side in zip(self._slots, memory)
            ]
            self._check_overlaps(program.device, memory, regions)
            handle = driver.bind(program._handle, entry, *regions)
            super().__init__(program.device, lambda: driver.unbind(handle), _pins(program, memory))
        self._memory, self._regions, self._handle = memory, regions, handle
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
            memory, regions = [list(side) for side in self._memory], [list(side) for side in self._regions]
            changes: tuple[dict[int, spi.Region], dict[int, spi.Region]] = ({}, {})
            for side, given in enumerate((inputs or {}, outputs or {})):
                for name, new in given.items():
                    slot = self._slots[side].get(name)
                    if slot is None:
                        raise InputError(f"entry {self._entry!r} has no {KINDS[side]} {name!r}")
                    region = self._region(slot, new)
                    memory[side][slot.position], regions[side][slot.position] = new, region
                    changes[side][slot.position] = region
            self._check_overlaps(self.device, memory, regions)
            driver.rebind(self._handle, *changes)
            self._memory, self._regions = memory, regions
            self._use(_pins(self._program, memory))

    def profile(self) -> Sequence[ProfileEvent]:
        """Run once and say where the time went. Needs ``PROFILE``."""
        self.device._require(Capability.PROFILE)
        with self._call() as driver:
            return driver.profile(self._handle)

    def _region(self, slot: _Slot, memory: Buffer | View) -> spi.Region:
        """The part of ``memory`` the tensor takes. Under the lock; at every decode step, hence the short way first."""
        device, base, region = self._program.device, memory._base, memory._region
        typed = getattr(memory, "spec", None)
        if (
            base.device is device
            and not base._closed
            and region.size >= slot.nbytes
            and region.offset % device.io_alignment == 0
            and (typed is None or (typed.dtype, typed.shape) == (slot.spec.dtype, slot.spec.shape))
        ):
            return spi.Region(region.handle, region.offset, slot.nbytes)
        base._check_open()
        what = f"{slot.kind} {slot.spec.name!r} of entry {self._entry!r}"
        wanted = f"{slot.spec.dtype.value}{list(slot.spec.shape)}"
        if base.device is not device:
            raise InputError(f"{what} is on {base.device!r}, the program is on {device!r}")
        if region.size < slot.nbytes:
            raise InputError(f"{what} needs {slot.nbytes} bytes ({wanted}), got {region.size}")
        if region.offset % device.io_alignment:
            raise InputError(
                f"{what} starts at byte {region.offset}; {device.info.id} needs multiples of {device.io_alignment}"
            )
        raise InputError(f"{what} is {wanted}, got {typed}")

    def _check_overlaps(
        self, device: Device, memory: Sequence[Sequence[Buffer | View]], regions: Sequence[Sequence[spi.Region]]
    ) -> None:
        """Outputs must overlap neither each other, nor weights, nor an input unless the device allows that."""
        outputs = list(zip(self._slots[1], memory[1], regions[1]))
        for _, m, region in outputs:
            device._ledger.check_no_weights(m._base, region)
        marks = [(id(m._base), r.offset, r.offset + r.size, name) for name, m, r in outputs if r.size]
        if Capability.ALIASED_IO not in device.capabilities:
            inputs = zip(memory[0], regions[0])
            marks += [(id(m._base), r.offset, r.offset + r.size, "") for m, r in inputs if r.size]
        marks.sort()
        reach = (0, 0, "")  # buffer, furthest end seen in it, and whose that is
        for base, start, end, name in marks:
            if reach[0] == base and start < reach[1] and (name or reach[2]):
                raise InputError(f"entry {self._entry!r}: output {name or reach[2]!r} overlaps another bound tensor")
            if reach[0] != base or end > reach[1]:
                reach = (base, end, name)


class _Slot(NamedTuple):
    kind: str
    position: int
    spec: TensorSpec
    nbytes: int


def _slots(kind: str, specs: Sequence[TensorSpec]) -> dict[str, _Slot]:
    return {spec.name: _Slot(kind, i, spec, spec.nbytes) for i, spec in enumerate(specs)}


def _pins(program: Program, memory: Sequence[Sequence[Buffer | View]]) -> list[Child]:
    return [program, *(m._base for side in memory for m in side)]


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
