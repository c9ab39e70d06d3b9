"""Reading ONNX graphs: their entries' inputs and outputs, and what makes one impossible to compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from isthmus.errors import CompileError, IsthmusError
from isthmus.types import DType, EntrySpec, TensorSpec
from onnx import TensorProto

_RENAMED = {DType.FLOAT64: "DOUBLE", DType.FLOAT32: "FLOAT"}
ONNX_TYPES: dict[DType, int] = {d: TensorProto.DataType.Value(_RENAMED.get(d, d.name)) for d in DType}
_DTYPES = {number: dtype for dtype, number in ONNX_TYPES.items()}

_DAMAGE = (
    DecodeError, KeyError, TypeError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError
)  # fmt: skip


def entry_file(entry: str) -> str:
    """File of an entry's graph within an artifact."""
    return f"{entry}.onnx"


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn what reading a damaged or forged ``.onnx`` file can raise into ``CompileError``."""
    try:
        yield
    except IsthmusError:
        raise
    except _DAMAGE as error:
        raise CompileError(
            f"{path} is not a valid ONNX model: {type(error).__name__}: {error}", fix="export it again"
        ) from error


def read_model(path: Path) -> onnx.ModelProto:
    """Read an ``.onnx`` file without its external weights."""
    model = onnx.load(path, load_external_data=False)
    if not model.graph.output:
        raise CompileError(f"{path} holds no graph", why="the file is empty or truncated", fix="export it again")
    return model


def entry_spec(model: onnx.ModelProto, entry: str) -> EntrySpec:
    """Inputs and outputs of a graph. ``CompileError`` names a tensor whose shape or type is not fixed."""
    weights = {t.name for t in model.graph.initializer}
    inputs = tuple(_tensor_spec(v, "input", entry) for v in model.graph.input if v.name not in weights)
    if not all(_is_fixed(v) for v in model.graph.output):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return EntrySpec(inputs, tuple(_tensor_spec(v, "output", entry) for v in model.graph.output))


def io_bytes(spec: EntrySpec) -> int:
    """Bytes of an entry's inputs and outputs together."""
    return sum(t.nbytes for t in (*spec.inputs, *spec.outputs))


def _is_fixed(value: onnx.ValueInfoProto) -> bool:
    shape = value.type.tensor_type
    return shape.HasField("shape") and all(d.HasField("dim_value") for d in shape.shape.dim)


def _tensor_spec(value: onnx.ValueInfoProto, kind: str, entry: str) -> TensorSpec:
    what = f"{kind} {value.name!r} of entry {entry!r}"
    if not value.type.HasField("tensor_type"):
        raise CompileError(f"{what} is a {value.type.WhichOneof('value')}, not a tensor")
    tensor = value.type.tensor_type
    dtype = _DTYPES.get(tensor.elem_type)
    if dtype is None:
        raise CompileError(
            f"{what} has element type {TensorProto.DataType.Name(tensor.elem_type)}, which no buffer can hold",
            fix=f"use one of: {', '.join(d.value for d in DType)}",
        )
    if not _is_fixed(value):
        raise _free_dimension(what, tensor, kind)
    return TensorSpec(value.name, dtype, tuple(d.dim_value for d in tensor.shape.dim))


def _free_dimension(what: str, tensor: onnx.TypeProto.Tensor, kind: str) -> CompileError:
    if not tensor.HasField("shape"):
        return CompileError(f"{what} has no shape", why="shapes are fixed when a graph is compiled")
    axis, dim = next((i, d) for i, d in enumerate(tensor.shape.dim) if not d.HasField("dim_value"))
    name = dim.dim_param or "unnamed"
    if kind == "output":
        fix = "its size depends on data: cut the graph before the node that computes it"
    elif dim.dim_param:
        fix = f"python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param {name} --dim_value N IN.onnx OUT.onnx"
    else:
        fix = (
            "python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name NAME --input_shape A,B IN.onnx OUT.onnx"
        )
    return CompileError(
        f"{what} has a free dimension: axis {axis} ({name})", why="shapes are fixed when a graph is compiled", fix=fix
    )
