"""A graph in float64: every float tensor, constant and cast of a model widened, so that ``onnx.reference`` is the truth."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference.op_run import OpRun

from .weights import graphs

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
NOT_DOUBLE = frozenset(
    {"AffineGrid", "CausalConvWithState", "DynamicQuantizeLinear", "GridSample", "LinearAttention", "TfIdfVectorizer"}
)
"""Operators that onnx.reference computes in float32 whatever they are given."""

Array = np.ndarray[Any, np.dtype[Any]]


class Erf(OpRun):
    """Error function in float64; the one of onnx.reference rounds to float32."""

    op_domain = ""
    _erf = staticmethod(np.vectorize(erf, otypes=[np.float64]))

    def _run(self, x: Array) -> tuple[Array]:
        return (self._erf(x).astype(x.dtype, copy=False),)


OPERATORS: list[type[OpRun]] = [Erf]


def widen(model: onnx.ModelProto) -> None:
    """Make every float32, float16 and bfloat16 of ``model`` a float64. Weights are inline here, or not there at all."""
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in NARROW:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            _widen_attributes(node)


def widened(array: Array) -> Array:
    """``array`` in float64 if it is of a narrower float type, else as it is."""
    narrow = array.dtype.name in ("float32", "float16", "bfloat16")
    return array.astype(np.float64) if narrow else array


def _widen_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype", "output_dtype", "output_datatype") and attribute.i in NARROW:
            attribute.i = TensorProto.DOUBLE
        elif attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
    if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
        values = numpy_helper.from_array(np.asarray(onnx.helper.get_attribute_value(node.attribute[0]), np.float64))
        node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", values))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, np.float64))))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        tensor.CopyFrom(numpy_helper.from_array(widened(numpy_helper.to_array(tensor)), tensor.name))


def to_array(data: bytes | memoryview, shape: tuple[int, ...], data_type: int) -> Array:
    """A tensor from its stored bytes, also of the types numpy lacks."""
    return numpy_helper.to_array(TensorProto(dims=shape, data_type=data_type, raw_data=bytes(data)))


def to_bytes(array: Array, data_type: int) -> bytes:
    """The stored bytes of ``array`` rounded to an ONNX element type."""
    with np.errstate(all="ignore"):  # a value beyond float16 is infinite there, as in any other cast
        rounded = np.asarray(array).astype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    raw: bytes = numpy_helper.from_array(rounded).raw_data
    return raw
