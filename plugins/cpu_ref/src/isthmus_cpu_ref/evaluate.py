"""Evaluating a graph node by node with ``onnx.reference``, dropping each result after its last use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from isthmus.errors import CompileError
from onnx.reference import ReferenceEvaluator

from .weights import graphs
from .widen import OPERATORS, Array, widen

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What numpy and onnx.reference raise over a graph they cannot evaluate."""


class Evaluation:
    """A graph in float64. ``CompileError`` names an operator without a reference implementation."""

    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, Array], entry: str) -> None:
        """``weights`` are those that ``model`` keeps outside; they are never copied into a protobuf."""
        inline = onnx.ModelProto()
        inline.CopyFrom(model)
        del inline.graph.initializer[:]
        inline.graph.initializer.extend(t for t in model.graph.initializer if not t.external_data)
        widen(inline)
        try:
            self._evaluator = ReferenceEvaluator(inline, new_ops=OPERATORS)
        except FAILURES as error:
            raise CompileError(
                f"entry {entry!r} cannot be evaluated by onnx.reference {onnx.__version__}: "
                + " ".join(str(error).split()),
                why="only operators of the ONNX standard have a reference implementation",
            ) from error
        self._weights = weights
        self._last_uses = last_uses(model.graph)

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
