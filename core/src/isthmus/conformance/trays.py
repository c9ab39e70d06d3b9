"""Buffers of a run, laid out so that what must not be touched shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffer import Buffer, View, as_array
from ..device import Device
from ..program import Binding, Program
from ..types import TensorSpec, Tolerance
from .cases import Arrays, Case

POISON = 0xFF
"""Fills buffers before a run: an element left unwritten is NaN."""
GAP = 320
"""Poisoned bytes between tensors."""


def assert_bytes(got: bytes | bytearray, want: bytes | bytearray, what: str = "the bytes") -> None:
    """``AssertionError`` names the first byte that differs. A plain assert would let pytest diff megabytes, for minutes."""
    if got != want:
        place = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise AssertionError(f"{what}: {len(got)} bytes for {len(want)}, the first that differs is byte {place}")


class Tray:
    """The tensors of one side of an entry, each in the middle of one poisoned buffer."""

    def __init__(self, device: Device, specs: Sequence[TensorSpec], *, poison: int = POISON, odd: bool = False) -> None:
        self.specs = specs
        self._poison = poison
        step = device.io_alignment if odd else max(64, device.io_alignment)
        self._offsets: dict[str, int] = {}
        end = GAP
        for spec in specs:
            start = -(-end // step) * step
            start += step if odd and start // step % 2 == 0 else 0  # an odd multiple: aligned to no more than asked
            self._offsets[spec.name] = start
            end = start + spec.nbytes + GAP
        self.buffer: Buffer = device.allocate(end, alignment=max(64, device.io_alignment))
        self.buffer.write(self._background())

    @property
    def views(self) -> dict[str, View]:
        """What to bind."""
        return {s.name: self.buffer.view(s, offset=self._offsets[s.name]) for s in self.specs}

    def put(self, arrays: Arrays) -> None:
        """Write the tensors."""
        for name, view in self.views.items():
            view.write(arrays[name])

    def get(self) -> dict[str, NDArray[Any]]:
        """Read the tensors."""
        found = {}
        for spec in self.specs:
            found[spec.name] = as_array(self.buffer.read(spec.nbytes, self._offsets[spec.name]), spec)
        return found

    def surroundings_are_untouched(self) -> bool:
        """Whether every byte that belongs to no tensor still has its poison."""
        now, expected = np.frombuffer(self.buffer.read(), np.uint8), self._background()
        outside = np.ones(self.buffer.size, bool)
        for spec in self.specs:
            outside[self._offsets[spec.name] : self._offsets[spec.name] + spec.nbytes] = False
        return bool((now[outside] == expected[outside]).all())

    def _background(self) -> NDArray[np.uint8]:
        return np.full(self.buffer.size, self._poison, np.uint8)


class Bench:
    """An entry bound to two trays."""

    def __init__(self, program: Program, entry: str, inputs: Tray, outputs: Tray, binding: Binding) -> None:
        self.program, self.entry, self.inputs, self.outputs, self.binding = program, entry, inputs, outputs, binding

    def run(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Write inputs, execute, read outputs."""
        self.inputs.put(arrays)
        self.binding.execute()
        return self.outputs.get()


@contextmanager
def bench(program: Program, entry: str, *, odd: bool = False) -> Iterator[Bench]:
    """Bind an entry to buffers of its own. ``odd``: tensors are aligned to no more than the device asks for."""
    spec, device = program.entry(entry), program.device
    inputs, outputs = (Tray(device, side, odd=odd) for side in (spec.inputs, spec.outputs))
    with inputs.buffer, outputs.buffer, program.bind(entry, inputs.views, outputs.views) as binding:
        yield Bench(program, entry, inputs, outputs, binding)


def check(case: Case, entry: str, inputs: Arrays, got: Arrays, tolerance: Tolerance) -> None:
    """Compare with the reference: ``|got - want| <= atol + rtol * max|want|`` per tensor. NaN is never close."""
    for name, want in case.expected(entry, inputs).items():
        assert got[name].shape == want.shape, f"{name} has shape {got[name].shape}, not {want.shape}"
        error = np.abs(got[name].astype(np.float64) - want)
        bound = tolerance.atol + tolerance.rtol * float(np.abs(want).max())
        worst = float(np.max(np.where(np.isnan(error), np.inf, error)))
        assert worst <= bound, f"{case.name}/{entry}: {name} is {worst:.3g} off, the tolerance allows {bound:.3g}"


def same(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> bool:
    """Equal bit for bit."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
