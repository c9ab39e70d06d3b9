"""GELU, the exact one: ``x * (1 + erf(x / sqrt(2))) / 2``."""

from __future__ import annotations

import math

import onnx_ir as ir

from ...graph.builder import GraphBuilder


def gelu(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    """Spelled as the dialect asks."""
    return _SPELLINGS[g.dialect.gelu](g, x, name)


def _erf(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    """Div, Erf, Add, Mul, Mul: converters recognise exactly this order."""
    erf = g.op("Erf", [g.op("Div", [x, g.scalar(math.sqrt(2))], f"{name}.div")], f"{name}.erf")
    product = g.op("Mul", [x, g.op("Add", [erf, g.scalar(1.0)], f"{name}.add")], f"{name}.mul")
    return g.op("Mul", [product, g.scalar(0.5)], name)


def _op(g: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
    return g.op("Gelu", [x], name, approximate="none")


_SPELLINGS = {"erf": _erf, "op": _op}
