"""``weights.data``: one file of external tensors, written in order, shared by all graphs of a set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

import attrs
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..errors import UnsupportedError

FILE = "weights.data"
INLINE = 1024
"""Bytes; smaller tensors stay in the graph file."""
_SLAB = 8 << 20
_PAGE = 4096
_LINE = 64


@attrs.frozen
class Weight:
    """An initializer whose values are computed when they are written.

    ``read`` gives an array of ``shape`` in any float type; it is cast to ``dtype`` in slabs.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[Any]] = attrs.field(repr=False, eq=False)

    @property
    def nbytes(self) -> int:
        """Size as stored."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class WeightsFile:
    """Appends tensors to ``directory/weights.data``; tensors of a page or more start on a page, others on a line."""

    def __init__(self, directory: Path) -> None:
        self._file: IO[bytes] = (directory / FILE).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, weight: Weight) -> ir.ExternalTensor:
        """Write one tensor and say where it is."""
        align = _PAGE if weight.nbytes >= _PAGE else _LINE
        self._file.write(b"\0" * (-self._file.tell() % align))
        offset = self._file.tell()
        for slab in slabs(weight):
            self._file.write(raw_bytes(slab))
        return ir.ExternalTensor(
            FILE,
            offset,
            weight.nbytes,
            ir.DataType.from_numpy(weight.dtype),
            shape=ir.Shape(weight.shape),
            name=weight.name,
        )


def inline(weight: Weight) -> ir.TensorProtocol:
    """The tensor as part of the graph file."""
    return ir.tensor(np.concatenate([*slabs(weight)]).reshape(weight.shape), name=weight.name)


def slabs(weight: Weight) -> Iterator[NDArray[Any]]:
    """Rows of the tensor in its stored type, a few MB at a time: a transposed view never becomes a second array."""
    array = weight.read()
    if array.shape != weight.shape:
        raise AssertionError(f"{weight.name}: read {array.shape}, declared {weight.shape}")
    rows = max(1, _SLAB * len(array) // max(1, weight.nbytes))
    for start in range(0, len(array), rows):
        yield _cast(array[start : start + rows], weight)


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy; bfloat16 has no buffer of its own."""
    return array.reshape(-1).view(np.uint8).data


def _cast(array: NDArray[Any], weight: Weight) -> NDArray[Any]:
    with np.errstate(over="raise"):
        try:
            return array.astype(weight.dtype, order="C")
        except FloatingPointError as error:
            raise UnsupportedError(
                f"{weight.name} holds values beyond the range of {weight.dtype.name}",
                fix="build with dtype float32",
            ) from error
