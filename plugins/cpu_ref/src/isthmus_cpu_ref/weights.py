"""All weights of an artifact in one aligned file, each stored once."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from isthmus._files import inside
from isthmus.errors import CompileError, IntegrityError
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


def move_weights(
    model: onnx.ModelProto, source: Path, weights: WeightsFile, widen: frozenset[str] = frozenset()
) -> None:
    """Move every initializer of ``model`` of ``INLINE`` bytes or more into ``weights``.

    ``source`` is the file the model was read from, beside which its external data lies. The float16 tensors named in
    ``widen`` become float32. Weights in attributes and in bodies of control flow come inside the ``.onnx`` file.
    """
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            data = tensor_bytes(tensor, source)
            dtype: np.dtype[Any] = data.dtype
            if tensor.name in widen:
                data, dtype = data.view(np.float16), np.dtype(np.float32)
                tensor.data_type = TensorProto.FLOAT
            if data.size * dtype.itemsize < INLINE or graph is not model.graph:
                _set_inline(tensor, data.astype(dtype).tobytes())
            else:
                _set_external(tensor, *weights.add(data, dtype))
        for tensor in _attribute_tensors(graph):
            if uses_external_data(tensor):
                _set_inline(tensor, tensor_bytes(tensor, source).tobytes())


def _attribute_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t


def fold_casts(model: onnx.ModelProto) -> frozenset[str]:
    """Replace Cast(float16 weight) to float32 by a weight of that name, still float16: the names to ``widen``.

    ONNX Runtime inserts these casts where its CPU has no float16 kernel, and would run them at every execute.
    """
    graph = model.graph
    halves = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
    outputs = {o.name for o in graph.output}
    folded = [n for n in graph.node if _widens(n) and n.input[0] in halves and n.output[0] not in outputs]
    for node in folded:
        graph.node.remove(node)
        graph.initializer.add().CopyFrom(halves[node.input[0]])
        graph.initializer[-1].name = node.output[0]
    read = {name for inner in graphs(graph) for node in inner.node for name in node.input} | outputs
    for name, tensor in halves.items():
        if name not in read:
            graph.initializer.remove(tensor)
    return frozenset(node.output[0] for node in folded)


def _widens(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.FLOAT for a in node.attribute)


def map_weights(directory: Path) -> mmap.mmap | bytes:
    """``weights.data`` of a compiled directory, mapped; the pages are shared by all who map it."""
    with (directory / WEIGHTS).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def fill_weights(directory: Path, target: memoryview) -> memoryview:
    """Read ``weights.data`` of a compiled directory into ``target``, and return it. ``IntegrityError``: it is short."""
    with (directory / WEIGHTS).open("rb") as file:
        if (got := file.readinto(target)) != target.nbytes:
            raise IntegrityError(f"{directory / WEIGHTS} has {got} bytes, the manifest says {target.nbytes}")
    return target


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


def _set_inline(tensor: TensorProto, raw: bytes) -> None:
    fresh = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=raw)
    tensor.CopyFrom(fresh)


def _set_external(tensor: TensorProto, offset: int, length: int) -> None:
    fresh = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
    fresh.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", offset), ("length", length)):
        fresh.external_data.add(key=key, value=str(value))
    tensor.CopyFrom(fresh)
