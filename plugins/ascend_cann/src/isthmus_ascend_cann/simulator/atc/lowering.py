"""Rewrites a graph so that ONNX Runtime's float32 kernels round where the device would.

A tensor that is half precision on the device is float32 here, and goes through Cast to float16 and back after the
operator that writes it: what a half-precision operator with a wide accumulator gives. Left alone, ONNX Runtime's CPU
provider runs chains of float16 operators in float32 and rounds once at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import tables
from .precision import Plan

MOVES = tables.words("precision", "moves")
HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Inputs that are parameters of the operator, not data.
_NOT_DATA: Mapping[str, frozenset[int]] = {"Resize": frozenset({1, 2}), "Upsample": frozenset({1})}


class Lowering:
    """One rewriting. ``dtypes`` are the types of the graph's tensors, ``io`` those its inputs and outputs shall have.

    After ``run``, ``narrow`` names the tensors that are in half precision on the device, ``narrow_weights`` the
    initializers that are stored so, and ``wide_weights`` those that some operator reads as they are.
    """

    def __init__(self, graph: onnx.GraphProto, plan: Plan, dtypes: Mapping[str, int], io: Mapping[str, int]) -> None:
        self._graph = graph
        self._plan = plan
        self._dtypes = {**dtypes, **{i.name: io[i.name] for i in graph.input if i.name in io}}
        self._outputs = {o.name: io.get(o.name, dtypes[o.name]) for o in graph.output}
        self._weights = {i.name for i in graph.initializer}
        self._values: dict[str, str] = {}  # tensors whose float32 value has another name
        self._rounded: dict[str, str] = {}  # float32 tensors that some operator reads in half precision
        self._nodes: list[onnx.NodeProto] = []
        self.narrow: set[str] = set()
        self.narrow_weights: set[str] = set()
        self.wide_weights: set[str] = set()

    def run(self) -> None:
        """Replace the graph's nodes and the types of its inputs and outputs."""
        for node in self._graph.node:
            self._lower(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        for value in self._graph.input:
            value.type.tensor_type.elem_type = self._dtypes[value.name]
        for value in self._graph.output:
            value.type.tensor_type.elem_type = self._outputs[value.name]
        del self._graph.value_info[:]

    def _lower(self, source: onnx.NodeProto) -> None:
        node = onnx.NodeProto()
        node.CopyFrom(source)
        _widen_attributes(node)
        data = [i for i in range(len(node.input)) if i not in _NOT_DATA.get(node.op_type, ())]
        floats = [i for i in data if self._is_float(node.input[i])]
        for index, name in enumerate(source.input):
            narrow = index in floats and self._plan.narrows_inputs(source)
            node.input[index] = self._round_value(name) if narrow else self._value(name)
        exact = node.op_type in MOVES and all(self._is_rounded(source.input[i]) for i in floats)
        self._nodes.append(node)
        for index, name in enumerate(source.output):
            self._write(node, index, name, source, exact)

    def _write(self, node: onnx.NodeProto, index: int, name: str, source: onnx.NodeProto, exact: bool) -> None:
        """Round an output if it is half precision, and give graph outputs their type."""
        if not self._is_float(name):
            return
        final = self._outputs.get(name, TensorProto.FLOAT)
        result = name
        if self._is_half(name) or final != TensorProto.FLOAT:
            result = self._values[name] = f"{name}__value"
        node.output[index] = result
        if self._is_half(name) or self._plan.narrows_outputs(source):
            self.narrow.add(name)
            if not exact:
                node.output[index] = f"{name}__wide"
                self._round(node.output[index], result, self._half_type(name))
        if name in self._outputs and result != name:
            self._cast(result, name, final)

    def _is_rounded(self, name: str) -> bool:
        return name in self.narrow or name in self._rounded

    def _is_half(self, name: str) -> bool:
        return self._dtypes.get(name) in HALVES

    def _is_float(self, name: str) -> bool:
        return self._dtypes.get(name) == TensorProto.FLOAT or self._is_half(name)

    def _half_type(self, name: str) -> int:
        return self._dtypes[name] if self._is_half(name) else self._plan.narrow

    def _value(self, name: str) -> str:
        """The float32 tensor with the value of ``name``, or ``name`` if it is not of half precision."""
        if self._is_half(name) and name not in self._values:  # an input or a constant
            self._values[name] = f"{name}__value"
            self.narrow.add(name)
            self._cast(name, f"{name}__value", TensorProto.FLOAT)
        if name in self._weights:
            self.wide_weights.add(name)
        return self._values.get(name, name)

    def _round_value(self, name: str) -> str:
        """The float32 tensor with the value that half precision has of ``name``."""
        if self._is_half(name) or name in self.narrow - self._weights:
            return self._value(name)
        if name not in self._rounded:
            self._rounded[name] = f"{name}__narrow"
            if name in self._weights:
                self.narrow_weights.add(name)
                self._cast(f"{name}__stored", f"{name}__narrow", TensorProto.FLOAT)
            else:
                self._round(self._value(name), f"{name}__narrow", self._plan.narrow)
        return self._rounded[name]

    def _round(self, source: str, target: str, narrow: int) -> None:
        self._cast(source, f"{target}__half", narrow)
        self._cast(f"{target}__half", target, TensorProto.FLOAT)

    def _cast(self, source: str, target: str, dtype: int) -> None:
        self._nodes.append(helper.make_node("Cast", [source], [target], name=f"cast_{target}", to=dtype))


def _widen_attributes(node: onnx.NodeProto) -> None:
    """Half types that a node names in its attributes become float32; its outputs are rounded after it."""
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i in HALVES:
            attribute.i = TensorProto.FLOAT
        if attribute.name == "value" and attribute.t.data_type in HALVES:
            wide = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
