"""SiLU: ``x * sigmoid(x)``."""

from __future__ import annotations

import onnx_ir as ir

from ...graph.builder import GraphBuilder


def silu(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    """Spelled as the dialect asks."""
    return _SPELLINGS[g.dialect.silu](g, x, name)


def _sigmoid(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    return g.op("Mul", [x, g.op("Sigmoid", [x], f"{name}.sigmoid")], name)


def _op(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    return g.op("Swish", [x], name)


_SPELLINGS = {"sigmoid": _sigmoid, "op": _op}
