"""RMSNorm over the last dimension: ``x / sqrt(mean(x * x) + eps) * weight``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ...graph.builder import GraphBuilder

Read = Callable[[], NDArray[Any]]


def rms_norm(g: GraphBuilder, x: ir.Value, shape: Sequence[int], read: Read, eps: float, name: str) -> ir.Value:
    """Normalise ``x`` of ``shape``; ``read`` gives the weight, of the last dimension's size."""
    return _SPELLINGS[g.dialect.rms_norm](g, x, shape, read, eps, name)


def _decomposed(g: GraphBuilder, x: ir.Value, shape: Sequence[int], read: Read, eps: float, name: str) -> ir.Value:
    square = g.op("Mul", [x, x], f"{name}.square")
    if g.dialect.opset < 18:
        mean = g.op("ReduceMean", [square], f"{name}.mean", axes=[len(shape) - 1], keepdims=1)
    else:
        mean = g.op("ReduceMean", [square, g.integers(len(shape) - 1)], f"{name}.mean", keepdims=1)
    root = g.op("Sqrt", [g.op("Add", [mean, g.scalar(eps)], f"{name}.eps")], f"{name}.root")
    scaled = g.op("Div", [x, root], f"{name}.div")
    return g.op("Mul", [scaled, g.weight(f"{name}.weight", shape[-1:], read)], name)


def _l2(g: GraphBuilder, x: ir.Value, shape: Sequence[int], read: Read, eps: float, name: str) -> ir.Value:
    """``x / sqrt(sum(x*x) + n*eps) * sqrt(n)``: the eps is one more element before the L2 norm, cut off after it.

    No square of ``x`` leaves the operator, so that a float16 device which accumulates in float32 cannot overflow.
    """
    n, axis = shape[-1], len(shape) - 1
    tail = g.filled((*shape[:-1], 1), math.sqrt(n * eps))
    longer = g.op("Concat", [x, tail], f"{name}.extend", axis=axis)
    unit = g.op("LpNormalization", [longer], f"{name}.l2", axis=axis, p=2)
    cut = g.slice(unit, 0, n, axis, f"{name}.cut")
    weight = g.weight(f"{name}.weight", shape[-1:], lambda: read().astype(np.float32) * np.float32(math.sqrt(n)))
    return g.op("Mul", [cut, weight], name)


def _op(g: GraphBuilder, x: ir.Value, shape: Sequence[int], read: Read, eps: float, name: str) -> ir.Value:
    weight = g.weight(f"{name}.weight", shape[-1:], read)
    return g.op("RMSNormalization", [x, weight], name, axis=len(shape) - 1, epsilon=eps)


_SPELLINGS = {"decomposed": _decomposed, "l2": _l2, "op": _op}
