"""Change the element type of a graph's inputs and outputs, as the option ``io_dtype`` asks.

The compiler has no such option that works without a CPU fallback, so the ONNX graph is edited before it sees it.
"""

from __future__ import annotations

import math

import onnx
from isthmus.errors import CompileError
from onnx import TensorProto, helper

from .options import IoDtype

_INTERNAL = "/isthmus_io"


def apply_io_dtype(model: onnx.ModelProto, io_dtype: IoDtype) -> None:
    """Edit ``model`` in place. The scales of integers are in the compiled binary.

    ``CompileError``: quantised I/O is asked of a graph without QuantizeLinear or DequantizeLinear at its boundary.
    """
    if io_dtype is IoDtype.FLOAT16:
        _to_float16(model.graph)
    elif io_dtype is IoDtype.QUANTIZED:
        edited = [*_quantized_inputs(model.graph), *_quantized_outputs(model.graph)]
        if not edited:
            raise CompileError(
                "io_dtype=quantized, but no input feeds a QuantizeLinear alone and no output is a DequantizeLinear's",
                fix="quantise the graph first, or leave io_dtype=as_graph",
            )


def _to_float16(graph: onnx.GraphProto) -> None:
    casts = []
    for value in _inputs(graph):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            inner = value.name + _INTERNAL
            _rename_uses(graph, value.name, inner)
            casts.append(helper.make_node("Cast", [value.name], [inner], inner, to=TensorProto.FLOAT))
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    tail = []
    for value in graph.output:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            inner = value.name + _INTERNAL
            _rename_uses(graph, value.name, inner)
            _rename_makers(graph, value.name, inner)
            tail.append(helper.make_node("Cast", [inner], [value.name], inner, to=TensorProto.FLOAT16))
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    nodes = [*casts, *graph.node, *tail]
    del graph.node[:]
    graph.node.extend(nodes)


def _quantized_inputs(graph: onnx.GraphProto) -> list[str]:
    edited = []
    for value in _inputs(graph):
        users = [node for node in graph.node if value.name in node.input]
        if len(users) == 1 and users[0].op_type == "QuantizeLinear" and users[0].input[0] == value.name:
            value.type.tensor_type.elem_type = _stored_type(graph, users[0])
            _rename_uses(graph, users[0].output[0], value.name)
            graph.node.remove(users[0])
            edited.append(value.name)
    return edited


def _quantized_outputs(graph: onnx.GraphProto) -> list[str]:
    edited = []
    makers = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    for value in graph.output:
        maker = makers.get(value.name)
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        stored = maker.input[0]
        used = any(value.name in node.input for node in graph.node)
        if not used and stored in makers and stored not in outputs:
            value.type.tensor_type.elem_type = _stored_type(graph, maker)
            graph.node.remove(maker)
            _rename_uses(graph, stored, value.name)
            _rename_makers(graph, stored, value.name)
            edited.append(value.name)
    return edited


def _stored_type(graph: onnx.GraphProto, node: onnx.NodeProto) -> int:
    """Integer type of a Quantize- or DequantizeLinear: its zero point's, uint8 without one."""
    tensors = {t.name: t for t in graph.initializer}
    parameters = [name for name in node.input[1:] if name]
    if not all(name in tensors for name in parameters):
        raise CompileError(f"node {node.name!r} ({node.op_type}) has parameters that are not constants")
    if math.prod(tensors[parameters[0]].dims) != 1:
        raise CompileError(
            f"node {node.name!r} ({node.op_type}) quantises an input or output per channel",
            why="the HTP takes one scale per input or output",
        )
    return tensors[parameters[1]].data_type if len(parameters) > 1 else int(TensorProto.UINT8)


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    weights = {t.name for t in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _rename_makers(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.output[:] = [new if name == old else name for name in node.output]
