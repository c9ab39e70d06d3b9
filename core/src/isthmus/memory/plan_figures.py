"""Figures of a graph for a memory plan, from its ONNX form; weights are not read and need not be there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper

from ..errors import InputError
from ..graphset import GraphSet
from ..types import DType, EntrySpec, GraphFigures, TensorSpec, WeightFigure
from .arena import max_live
from .lifetime import activation_intervals

_MATRIX_OPERAND = {
    "FusedMatMul": 1,
    "Gemm": 1,
    "MatMul": 1,
    "MatMulInteger": 1,
    "MatMulNBits": 1,
    "QLinearMatMul": 3,
}
_ALIGNMENT = 64
_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4}


def graph_figures(model: onnx.ModelProto) -> GraphFigures:
    """Figures of one graph with static shapes. ``InputError`` names a tensor whose shape is not known.

    The peak of activations is a lower bound, which arenas come within 2 % of (docs/memory-plan.md).
    """
    graph = model.graph
    weights = {t.name for t in graph.initializer}
    spec = EntrySpec(
        tuple(_spec(v) for v in graph.input if v.name not in weights), tuple(_spec(v) for v in graph.output)
    )
    matrices = {
        node.input[at]
        for node in graph.node
        if (at := _MATRIX_OPERAND.get(node.op_type)) is not None and at < len(node.input)
    }
    return GraphFigures(
        spec=spec,
        weights={t.name: _weight(t, t.name in matrices) for t in graph.initializer},
        activations=max_live(activation_intervals(model), _ALIGNMENT),
        float_bits=_float_bits((*spec.inputs, *spec.outputs)),
        nodes=len(graph.node),
    )


def graph_set_figures(source: GraphSet) -> dict[str, GraphFigures]:
    """Figures of every entry of a graph set. ``InputError`` if a file is no ONNX model."""
    return {entry: graph_figures(_load(source.path / file)) for entry, file in source.graphs.items()}


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise InputError(f"{path} is not an ONNX model: {error}") from error


def _weight(tensor: TensorProto, used_as_matrix: bool) -> WeightFigure:
    elements = 1
    for dimension in tensor.dims:
        elements *= dimension
    kind = tensor.data_type
    bits = _BITS.get(kind) or helper.tensor_dtype_to_np_dtype(kind).itemsize * 8
    return WeightFigure(elements, bits, used_as_matrix and len(tensor.dims) == 2)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        raise InputError(f"{value.name!r} has no fixed shape", fix="export the graph with static shapes")
    dtype = DType.of(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return TensorSpec(value.name, dtype, tuple(d.dim_value for d in tensor.shape.dim))


def _float_bits(tensors: Iterable[TensorSpec]) -> int:
    """Of the narrowest float among inputs and outputs; 32 where there is none."""
    floats = [t.dtype.bits for t in tensors if t.dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)]
    return min(floats, default=32)
