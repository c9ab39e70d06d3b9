"""Small helpers over ONNX graphs: shapes, dtypes, sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import onnx
from onnx import TensorProto

# ONNX element type -> (ACL data type, bytes)
ACL_DTYPES: Mapping[int, tuple[int, int]] = {
    TensorProto.FLOAT: (0, 4),
    TensorProto.FLOAT16: (1, 2),
    TensorProto.INT8: (2, 1),
    TensorProto.INT32: (3, 4),
    TensorProto.UINT8: (4, 1),
    TensorProto.INT16: (6, 2),
    TensorProto.UINT16: (7, 2),
    TensorProto.UINT32: (8, 4),
    TensorProto.INT64: (9, 8),
    TensorProto.UINT64: (10, 8),
    TensorProto.DOUBLE: (11, 8),
    TensorProto.BOOL: (12, 1),
}
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


class Shape(tuple[int, ...]):
    """Dimensions with -1 for those that are open."""

    @property
    def open(self) -> bool:
        """True when a dimension is open."""
        return any(d < 0 for d in self)

    @property
    def elements(self) -> int:
        """Number of elements; 0 when open."""
        return 0 if self.open else prod(self)


def shape_of(value: onnx.ValueInfoProto) -> Shape:
    """Shape of a value, -1 for symbols."""
    dims = value.type.tensor_type.shape.dim
    return Shape(d.dim_value if d.HasField("dim_value") else -1 for d in dims)


def set_shape(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    """Give a value a shape; an open dimension keeps or gets a symbol."""
    dims = value.type.tensor_type.shape.dim
    names = [d.dim_param for d in dims] + [""] * len(shape)
    del dims[:]
    for index, size in enumerate(shape):
        if size < 0:
            dims.add().dim_param = names[index] or f"{value.name}_{index}"
        else:
            dims.add().dim_value = size


def dtype_of(value: onnx.ValueInfoProto) -> int:
    """ONNX element type."""
    return int(value.type.tensor_type.elem_type)


def element_size(dtype: int) -> int:
    """Bytes of one element; 2 for bfloat16, which ACL knows and numpy does not."""
    return 2 if dtype == TensorProto.BFLOAT16 else ACL_DTYPES[dtype][1]


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Inputs that are no initializers."""
    constants = {i.name for i in graph.initializer}
    return [i for i in graph.input if i.name not in constants]


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Value of an attribute."""
    for found in node.attribute:
        if found.name == name:
            return onnx.helper.get_attribute_value(found)
    return default
