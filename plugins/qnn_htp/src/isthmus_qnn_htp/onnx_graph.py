"""Reading ONNX graphs, without their weights: inputs and outputs, external data, names for nodes that have none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from isthmus._files import inside
from isthmus.errors import CompileError, InputError
from isthmus.types import DType, EntrySpec, TensorSpec
from onnx import TensorProto

_RENAMED = {DType.FLOAT64: "DOUBLE", DType.FLOAT32: "FLOAT"}
_DTYPES = {TensorProto.DataType.Value(_RENAMED.get(d, d.name)): d for d in DType}
_FIXED = "python -m onnxruntime.tools.make_dynamic_shape_fixed"


def read_model(path: Path) -> onnx.ModelProto:
    """Read an ``.onnx`` file without its external weights, shapes inferred, every node named.

    ``CompileError``: not an ONNX model, or not one whose shapes can be inferred.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise CompileError(f"{path} is not an ONNX model: {error}", fix="export it again") from error
    if not model.graph.output:
        raise CompileError(f"{path} holds no graph", why="the file is empty or truncated", fix="export it again")
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise CompileError(f"{path} is not a valid graph: {error}", fix="export it again") from error
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    return model


def entry_spec(model: onnx.ModelProto, entry: str) -> EntrySpec:
    """Inputs and outputs of a graph. ``CompileError`` names a tensor whose shape or type is not fixed."""
    weights = {t.name for t in model.graph.initializer}
    return EntrySpec(
        tuple(_spec(v, f"input {v.name!r} of entry {entry!r}") for v in model.graph.input if v.name not in weights),
        tuple(_spec(v, f"output {v.name!r} of entry {entry!r}") for v in model.graph.output),
    )


def describe(value: onnx.ValueInfoProto) -> str:
    """``float32[1,4]``, with ``?`` for what is not known."""
    tensor = value.type.tensor_type
    dtype = _DTYPES.get(tensor.elem_type)
    name = dtype.value if dtype else TensorProto.DataType.Name(tensor.elem_type).lower()
    return f"{name}[{','.join(str(size) if size is not None else '?' for size in shape_of(value))}]"


def shape_of(value: onnx.ValueInfoProto) -> list[int | None]:
    """Dimensions, ``None`` for a free one."""
    return [d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim]


def values(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Every tensor of the graph whose type is known, weights too, by name."""
    graph = model.graph
    made = [onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in graph.initializer]
    return {v.name: v for v in (*made, *graph.value_info, *graph.input, *graph.output)}


def external(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, dict[str, str]]]:
    """Weights that lie in other files, each with its ``location``, ``offset`` and ``length``."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor, {e.key: e.value for e in tensor.external_data}


def complete_external(model: onnx.ModelProto, folder: Path) -> None:
    """State the length of every external weight, which the QNN EP needs, and check that its file holds it.

    ``InputError``: a file is missing or too short, or lies outside ``folder``.
    """
    for tensor, where in external(model):
        bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
        if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
            bits = 4
        length = (math.prod(tensor.dims) * bits + 7) // 8
        file = inside(folder, where.get("location", ""))
        end = int(where.get("offset") or 0) + length
        size = file.stat().st_size if file.is_file() else None
        if size is None or size < end:
            found = "is missing" if size is None else f"has {size} bytes"
            raise InputError(
                f"weight {tensor.name!r} is bytes {end - length} to {end} of {file}, which {found}",
                why="an incomplete copy or export",
                fix="export the graphs again",
            )
        if "length" not in where:
            tensor.external_data.add(key="length", value=str(length))


def _spec(value: onnx.ValueInfoProto, what: str) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise CompileError(f"{what} is a {value.type.WhichOneof('value')}, not a tensor")
    dtype = _DTYPES.get(value.type.tensor_type.elem_type)
    if dtype is None:
        raise CompileError(
            f"{what} is {describe(value)}, a type no buffer can hold",
            fix=f"use one of: {', '.join(d.value for d in DType)}",
        )
    return TensorSpec(value.name, dtype, _fixed_shape(value, what))


def _fixed_shape(value: onnx.ValueInfoProto, what: str) -> tuple[int, ...]:
    why = "the HTP compiler takes fixed shapes only"
    if not value.type.tensor_type.HasField("shape"):
        raise CompileError(f"{what} has no shape", why=why, fix="export the graph with fixed shapes")
    fixed = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            name = dim.dim_param or "unnamed"
            how = f"--dim_param {name} --dim_value N" if dim.dim_param else "--input_name NAME --input_shape A,B"
            raise CompileError(
                f"{what} has a free dimension: axis {axis} ({name})", why=why, fix=f"{_FIXED} {how} IN.onnx OUT.onnx"
            )
        fixed.append(dim.dim_value)
    return tuple(fixed)
