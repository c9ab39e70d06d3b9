"""What a model case is."""

from __future__ import annotations

import functools
import hashlib
import inspect
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ...types import DType, EntrySpec, TensorSpec

if TYPE_CHECKING:
    import onnx_ir as ir

    from .build import Graph

Arrays = Mapping[str, NDArray[Any]]
Values = Mapping[str, "ir.Value"]
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]


def normal(scale: float = 1.0) -> Draw:
    """Normally distributed values."""
    return lambda rng, shape: rng.standard_normal(shape) * scale


def below(limit: int) -> Draw:
    """Indices 0 .. limit - 1."""
    return lambda rng, shape: rng.integers(0, limit, shape)


@attrs.frozen
class Input:
    """Shape of an input, how to draw values for it, and its type where that is not the case's float type."""

    shape: tuple[int, ...]
    draw: Draw = attrs.field(factory=normal)
    dtype: DType | None = None


@attrs.frozen
class Entry:
    """One graph: how it is built, and what it computes."""

    inputs: Mapping[str, Input]
    outputs: Mapping[str, tuple[int, ...]]
    build: Callable[[Graph, Values], Values]
    reference: Callable[[Arrays, Arrays], Arrays]
    """From inputs and weights, both in float64 (integers as they are)."""


@attrs.frozen
class Case:
    """Graphs that share weights. ``dtype`` is the float type of weights, inputs and outputs."""

    name: str
    entries: Mapping[str, Entry]
    shapes: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    """Weights by name."""
    dtype: DType = DType.FLOAT32

    @property
    def weights(self) -> Arrays:
        """Weights as the graphs store them."""
        return _weights(self.name, tuple(self.shapes.items()), self.dtype)

    def spec(self, entry: str) -> EntrySpec:
        """What the compiled entry must look like."""
        made = self.entries[entry]
        return EntrySpec(
            tuple(TensorSpec(name, i.dtype or self.dtype, i.shape) for name, i in made.inputs.items()),
            tuple(TensorSpec(name, self.dtype, shape) for name, shape in made.outputs.items()),
        )

    def inputs(self, entry: str, seed: int) -> dict[str, NDArray[Any]]:
        """Input arrays; the same seed gives the same values on every machine."""
        return {
            name: np.ascontiguousarray(
                i.draw(_rng(self.name, entry, name, str(seed)), i.shape).astype((i.dtype or self.dtype).numpy)
            )
            for name, i in self.entries[entry].inputs.items()
        }

    def expected(self, entry: str, inputs: Arrays) -> Arrays:
        """Outputs in float64."""
        found = self.entries[entry].reference(
            {name: _widened(array) for name, array in inputs.items()},
            {name: _widened(array) for name, array in self.weights.items()},
        )
        return {name: found[name].reshape(shape) for name, shape in self.entries[entry].outputs.items()}

    @property
    def fingerprint(self) -> str:
        """Identifies the case and this version of the kit, in artifacts compiled elsewhere."""
        parts = [self.name, repr(self.shapes), self.dtype.value, inspect.getsource(inspect.getmodule(type(self)))]  # type: ignore[arg-type]
        for name, entry in self.entries.items():
            parts += [name, inspect.getsource(inspect.getmodule(entry.build))]  # type: ignore[arg-type]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def _weights(case: str, shapes: tuple[tuple[str, tuple[int, ...]], ...], dtype: DType) -> Arrays:
    """Scaled by the inner dimension, so that results stay near 1."""
    made = {}
    for name, shape in shapes:
        scale = np.sqrt(shape[0] if len(shape) > 1 else 4)
        made[name] = (_rng(case, "weights", name).standard_normal(shape) / scale).astype(dtype.numpy)
    return made


def _rng(*names: str) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(name.encode()) for name in names])


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
