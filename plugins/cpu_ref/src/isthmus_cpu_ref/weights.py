"""All weights of an artifact in one aligned file, each stored once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from isthmus._files import inside
from isthmus.errors import CompileError
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from .memory import round_up

WEIGHTS = "weights.data"
PAGE = 4096
LINE = 64
INLINE = 1024
"""Tensors of fewer bytes stay inside the ``.onnx`` file, where shape inference can see them."""
CHUNK = 16 << 20
"""Elements handled at once."""

_FOUR_BITS = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1})

Flat = np.ndarray[tuple[int], np.dtype[Any]]


class WeightsFile:
    """Appends tensors to ``weights.data``; equal contents share one place. Memory is bounded by a chunk, not a tensor."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / WEIGHTS).open("wb")
        self._places: dict[bytes, int] = {}
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def add(self, data: Flat, dtype: np.dtype[Any]) -> tuple[int, int]:
        """Offset and length of ``data``, converted to ``dtype``, in the file; written only if it is not there yet."""
        digest = hashlib.sha256()
        for chunk in _chunks(data, dtype):
            digest.update(chunk)
        length = data.size * dtype.itemsize
        key = digest.digest()
        if key not in self._places:
            offset = self._places[key] = round_up(self.size, PAGE if length >= PAGE else LINE)
            self._file.write(bytes(offset - self.size))
            for chunk in _chunks(data, dtype):
                self._file.write(chunk)
            self.size = offset + length
        return self._places[key], length


def _chunks(data: Flat, dtype: np.dtype[Any]) -> Iterator[memoryview]:
    for start in range(0, data.size, CHUNK):
        yield data[start : start + CHUNK].astype(dtype, copy=False).data.cast("B")


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the graphs in its control-flow nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from graphs(inner)


def move_weights(model: onnx.ModelProto, source: Path, weights: WeightsFile) -> None:
    """Move every initializer of ``model`` (read from beside ``source``) of ``INLINE`` bytes or more into ``weights``."""
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            data = tensor_bytes(tensor, source)
            if data.nbytes < INLINE:
                _set_inline(tensor, data)
            else:
                _set_external(tensor, *weights.add(data, data.dtype))


def tensor_bytes(tensor: TensorProto, source: Path) -> Flat:
    """The stored bytes of an initializer, mapped if external. ``CompileError``: they are not where it says."""
    if not uses_external_data(tensor):
        if not tensor.HasField("raw_data"):
            tensor = numpy_helper.from_array(numpy_helper.to_array(tensor))
        return np.frombuffer(tensor.raw_data, np.uint8)
    info = ExternalDataInfo(tensor)
    file, offset, length = inside(source.parent, info.location), info.offset or 0, _length(tensor)
    if not length:
        return np.zeros(0, np.uint8)
    available = file.stat().st_size if file.is_file() else 0
    if offset + length > available or (info.length or length) != length:
        raise CompileError(
            f"{source.name}: tensor {tensor.name!r} needs {length} bytes at {offset} of {file.name}, "
            f"which has {available}; the model says {info.length}",
            why="the weights file is missing, incomplete, or of another model",
            fix="export the model again",
        )
    return np.memmap(file, np.uint8, "r", offset, (length,))


def _length(tensor: TensorProto) -> int:
    number = tensor.data_type
    bits = 4 if number in _FOUR_BITS else 8 * onnx.helper.tensor_dtype_to_np_dtype(number).itemsize
    return int(math.prod(tensor.dims) * bits + 7) // 8


def _set_inline(tensor: TensorProto, data: Flat) -> None:
    fresh = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data.tobytes())
    tensor.CopyFrom(fresh)


def _set_external(tensor: TensorProto, offset: int, length: int) -> None:
    fresh = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    fresh.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
        fresh.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(fresh)
