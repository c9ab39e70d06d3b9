"""ONNX operators as numpy functions of arrays and attributes. Source: the ONNX operator specification, opset 17."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(x: Array, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    result: Array = e / e.sum(axis, keepdims=True)
    return result


def layer_norm(x: Array, gamma: Array, beta: Array | float = 0.0, axis: int = -1, epsilon: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + epsilon) gamma + beta over the axes from ``axis`` on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    result: Array = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon) * gamma + beta
    return result


def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """x[start:end:step] along the given axes."""
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        index[axis] = slice(int(starts[i]), int(ends[i]), 1 if steps is None else int(steps[i]))
    return x[tuple(index)]


def split(x: Array, sizes: Array, axis: int = 0) -> list[Array]:
    """Parts of the given sizes."""
    return np.split(x, np.cumsum(sizes)[:-1], axis)


OPERATORS: dict[str, Callable[..., Array | list[Array]]] = {
    "Add": np.add,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "Div": np.divide,
    "Erf": np.vectorize(math.erf, otypes=[np.float32]),
    "Gather": lambda x, at, axis=0: np.take(x, at, axis),
    "Identity": lambda x: x,
    "LayerNormalization": layer_norm,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "ReduceMean": lambda x, axes, keepdims=1: x.mean(tuple(axes), keepdims=bool(keepdims)),
    "Reshape": lambda x, shape: x.reshape([int(d) or x.shape[i] for i, d in enumerate(shape)]),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Transpose": lambda x, perm: x.transpose(perm),
}


def evaluate(op: str, inputs: list[Array], attributes: dict[str, Any]) -> list[Array]:
    """Run one node. float16 is computed in float32, as accelerators do, and rounded once."""
    half = any(x.dtype == np.float16 for x in inputs)
    wide = [x.astype(np.float32) if x.dtype == np.float16 else x for x in inputs]
    found = OPERATORS[op](*wide, **attributes)
    results = found if isinstance(found, list) else [found]
    return [r.astype(np.float16) if half and r.dtype == np.float32 else r for r in results]
