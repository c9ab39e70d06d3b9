"""Evaluating a graph node by node with ``onnx.reference``, dropping each result after its last use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from isthmus.errors import CompileError
from onnx.inliner import inline_selected_functions
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction

from .weights import graphs
from .widen import OPERATORS, Array, widen

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What numpy and onnx.reference raise over a graph they cannot evaluate."""


class Evaluation:
    """A graph in float64. ``CompileError`` names an operator without a reference implementation."""

    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, Array], entry: str) -> None:
        """``weights`` are those that ``model`` keeps outside; they are never copied into a protobuf."""
        try:
            wide = _without_functions(_weights_as_inputs(model))
            widen(wide)
            self._evaluator = ReferenceEvaluator(wide, new_ops=OPERATORS)
        except FAILURES as error:
            raise CompileError(
                f"entry {entry!r} cannot be evaluated by onnx.reference {onnx.__version__}: "
                + " ".join(str(error).split()),
                why="only operators of the ONNX standard have a reference implementation",
            ) from error
        self._weights = weights
        self._last_uses = last_uses(wide.graph)

    def run(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Outputs in graph order, as numpy made them."""
        results: dict[str, Any] = {"": None, **self._evaluator.rt_inits_, **self._weights, **inputs}
        for node, done in zip(self._evaluator.rt_nodes_, self._last_uses):
            arguments = [results[name] for name in node.input]
            # A node with a body sees the results around it, as in ReferenceEvaluator.run.
            made = node.run(*arguments, context=results) if node.need_context() else node.run(*arguments)
            results.update(zip(node.output, made))
            for name in done:
                results.pop(name, None)
        return [results[name] for name in self._evaluator.output_names]


def _weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose external weights are inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.external_data:
            copy.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            copy.graph.initializer.append(tensor)
    return copy


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Inline the operators that onnx.reference would expand itself: their float32 constants must be widened too."""
    nodes = ReferenceEvaluator(model, new_ops=OPERATORS).rt_nodes_
    functions = sorted({(n.onnx_node.domain, n.op_type) for n in nodes if isinstance(n, OpFunction)})
    if not functions:
        return model
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for node in model.graph.node:
        if (node.domain, node.op_type) in functions and onnx.defs.has(node.op_type, node.domain):
            _state_defaults(node, onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain))
    return inline_selected_functions(model, functions, inline_schema_functions=True)


def _state_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """Write out the attributes a node leaves to their defaults: inlining would drop them."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def last_uses(graph: onnx.GraphProto) -> list[set[str]]:
    """Per node, the results nobody reads after it. Bodies of control flow read from around them."""
    outputs = {value.name for value in graph.output}
    kept = outputs | {t.name for t in graph.initializer} | {value.name for value in graph.input}
    done: list[set[str]] = []
    seen = set(kept)
    for node in reversed(graph.node):
        names = {n for inner in _bodies(node) for each in inner.node for n in each.input}
        names |= {value.name for inner in _bodies(node) for value in inner.output}
        names |= {*node.input, *node.output}
        done.append({name for name in names - seen if name})
        seen |= names
    return done[::-1]


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Graphs within a node, at any depth."""
    return [g for a in node.attribute for body in (a.g, *a.graphs) if body.node or body.output for g in graphs(body)]
