"""A thin layer over onnx-ir that gives every node, value and initializer a stable name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ..types import Dialect
from .weights import Weight

Shape = Sequence[int]


class GraphBuilder:
    """Collects one static graph in ``dtype`` for ``dialect``. Weights are declared, not read."""

    def __init__(self, name: str, dialect: Dialect, dtype: np.dtype[Any]) -> None:
        self.name = name
        self.dialect = dialect
        self.dtype = dtype
        self.weights: dict[str, Weight] = {}
        self._initializers: dict[str, ir.Value] = {}
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []

    def input(self, name: str, shape: Shape, dtype: ir.DataType | None = None) -> ir.Value:
        """Declare a graph input; floats by default."""
        self._inputs.append(self._value(name, shape, dtype or ir.DataType.from_numpy(self.dtype)))
        return self._inputs[-1]

    def output(self, value: ir.Value, name: str, shape: Shape) -> None:
        """Make ``value`` a float output called ``name``."""
        value.name = name
        value.shape, value.type = ir.Shape(shape), ir.TensorType(ir.DataType.from_numpy(self.dtype))
        self._outputs.append(value)

    def ops(self, kind: str, inputs: Sequence[ir.Value], name: str, outputs: int, **attributes: Any) -> list[ir.Value]:
        """Add a node called ``name`` with several outputs, ``name.0``, ``name.1`` ..."""
        values = [ir.Value(name=f"{name}.{i}" if outputs > 1 else name) for i in range(outputs)]
        self._nodes.append(ir.node(kind, inputs, attributes, outputs=values, name=name))
        return values

    def op(self, kind: str, inputs: Sequence[ir.Value], name: str, **attributes: Any) -> ir.Value:
        """Add a node called ``name``; its output has the same name."""
        return self.ops(kind, inputs, name, 1, **attributes)[0]

    def weight(self, name: str, shape: Shape, read: Callable[[], NDArray[Any]]) -> ir.Value:
        """An initializer in the graph's float type; ``read`` is called when the weights are written."""
        if name not in self._initializers:
            self.weights[name] = Weight(name, tuple(shape), self.dtype, read)
            self._initializers[name] = self._value(name, shape, ir.DataType.from_numpy(self.dtype))
        return self._initializers[name]

    def integers(self, *values: int) -> ir.Value:
        """A 1-D int64 constant, shared by all its users."""
        array = np.array(values, np.int64)
        return self._constant("const.i64." + "_".join(map(str, values)), array)

    def scalar(self, value: float) -> ir.Value:
        """A float constant without dimensions, shared by all its users."""
        return self._constant(f"const.{value:.9g}", np.array(value, self.dtype))

    def filled(self, shape: Shape, value: float) -> ir.Value:
        """A float constant of one repeated value."""
        name = f"const.{value:.9g}." + "_".join(map(str, shape))
        return self.weight(name, shape, lambda: np.full(shape, value, np.float64))

    def reshape(self, x: ir.Value, shape: Shape, name: str) -> ir.Value:
        """Reshape to a static shape."""
        return self.op("Reshape", [x, self.integers(*shape)], name)

    def transpose(self, x: ir.Value, perm: Sequence[int], name: str) -> ir.Value:
        """Permute the dimensions."""
        return self.op("Transpose", [x], name, perm=list(perm))

    def slice(self, x: ir.Value, start: int, stop: int, axis: int, name: str) -> ir.Value:
        """``x[start:stop]`` along one axis."""
        return self.op("Slice", [x, self.integers(start), self.integers(stop), self.integers(axis)], name)

    def model(self) -> ir.Model:
        """The finished graph. Initializers have no values yet, see ``isthmus.graph.weights``."""
        opset = self.dialect.opset
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            name=self.name,
            opset_imports={"": opset},
        )
        version = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
        return ir.Model(graph, ir_version=version, producer_name="isthmus")

    def _constant(self, name: str, array: NDArray[Any]) -> ir.Value:
        if name not in self._initializers:
            value = self._value(name, array.shape, ir.DataType.from_numpy(array.dtype))
            value.const_value = ir.tensor(array, name=name)
            self._initializers[name] = value
        return self._initializers[name]

    @staticmethod
    def _value(name: str, shape: Shape, dtype: ir.DataType) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
