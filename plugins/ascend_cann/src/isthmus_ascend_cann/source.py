"""What the compiler needs to know of an ONNX graph: its inputs and outputs, its operators, the size of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import onnx
from isthmus.errors import CompileError, InputError
from isthmus.types import DType, TensorSpec
from onnx import external_data_helper, shape_inference

from . import _tables

MAX_OPSET = 18
"""Newest opset for which ATC registers operator parsers (grep of ``ai.onnx::N::Op`` in hicann/ops-nn and ops-math)."""


@attrs.frozen
class Value:
    """A graph input or output; -1 is a dynamic dimension."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def fixed(self, shape: Sequence[int]) -> TensorSpec:
        """The tensor with a shape filled in."""
        return TensorSpec(self.name, self.dtype, tuple(shape))


@attrs.frozen
class Source:
    """One graph of a graph set."""

    entry: str
    path: Path
    model: onnx.ModelProto
    """Without external data."""
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weight_bytes: int

    @property
    def opset(self) -> int:
        """Of the standard operators."""
        return max((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=0)

    def outputs_of(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """The outputs' shapes for given input shapes, by ONNX's inference. ``CompileError``: it cannot tell."""
        if all(min(v.shape, default=0) >= 0 for v in (*self.inputs, *self.outputs)):
            return tuple(v.fixed(v.shape) for v in self.outputs)
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        for value, spec in zip(_real_inputs(model), inputs):
            for dim, size in zip(value.type.tensor_type.shape.dim, spec.shape):
                dim.dim_value = size
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        try:
            inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except shape_inference.InferenceError as error:
            raise CompileError(f"entry {self.entry!r} does not take inputs {_shown(inputs)}: {error}") from error
        found = [_value(v, self.entry) for v in inferred.graph.output]
        if any(min(v.shape, default=0) < 0 for v in found):
            raise CompileError(
                f"entry {self.entry!r}: the output shapes for inputs {_shown(inputs)} cannot be told",
                fix="build a graph with fixed shapes: isthmus export",
            )
        return tuple(v.fixed(v.shape) for v in found)


def read_source(entry: str, path: Path) -> Source:
    """Read a graph. ``InputError``: not ONNX, or external data that is missing or cut short."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise InputError(f"{path} cannot be read as ONNX: {error}") from error
    if not model.graph.output or not model.opset_import:
        raise InputError(f"{path} is not an ONNX graph: it has no outputs or no opset")
    return Source(
        entry,
        path,
        model,
        tuple(_value(v, entry) for v in _real_inputs(model)),
        tuple(_value(v, entry) for v in model.graph.output),
        _weight_bytes(model, path),
    )


def check_operators(source: Source) -> None:
    """Refuse what ATC has no parser for, in seconds rather than after minutes. ``CompileError`` lists the operators."""
    if source.opset > MAX_OPSET:
        raise CompileError(
            f"entry {source.entry!r} is of opset {source.opset}; ATC parses up to {MAX_OPSET}",
            fix="build the graphs with this backend's dialect (opset 17): isthmus export --backend ascend",
        )
    instead = _unsupported()
    found = sorted({n.op_type for n in source.model.graph.node if n.domain in ("", "ai.onnx")} & instead.keys())
    if found:
        raise CompileError(
            f"entry {source.entry!r} uses {', '.join(found)}, which ATC does not parse",
            why="; ".join(f"{op}: {instead[op]}" for op in found),
            fix="build the graphs with this backend's dialect: isthmus export --backend ascend",
        )


def _unsupported() -> Mapping[str, str]:
    return {row["operator"]: row["instead"] for row in _tables.rows("atc_operators.tsv")}


def _real_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constant = {i.name for i in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in constant]


def _value(info: onnx.ValueInfoProto, entry: str) -> Value:
    tensor = info.type.tensor_type
    try:
        dtype = DType.of(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (TypeError, KeyError) as error:
        raise InputError(
            f"{info.name} of entry {entry!r} has an element type without a counterpart: {error}"
        ) from error
    shape = (d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
    return Value(info.name, dtype, tuple(shape))


def _weight_bytes(model: onnx.ModelProto, path: Path) -> int:
    total = 0
    for tensor in model.graph.initializer:
        if external_data_helper.uses_external_data(tensor):
            total += _external_bytes(tensor, path)
        else:
            total += tensor.ByteSize()
    return total


def _external_bytes(tensor: onnx.TensorProto, path: Path) -> int:
    """Bytes of one tensor outside; the side file must hold them, since ATC reads zeros past its end."""
    about = external_data_helper.ExternalDataInfo(tensor)
    file = path.parent / about.location
    elements = int(np.prod(tensor.dims, dtype=np.int64))
    length = about.length or elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    have = file.stat().st_size if file.is_file() else -1
    if have < (about.offset or 0) + length:
        raise InputError(
            f"{file} {'is missing' if have < 0 else f'has {have} bytes'}; "
            f"{tensor.name} of {path.name} needs {length} bytes at {about.offset or 0}",
            why="the external data was not copied with the graph",
            fix="copy the whole graph set, or export it again",
        )
    return int(length)


def _shown(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(str(s) for s in inputs)
