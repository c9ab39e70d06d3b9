"""Operators that models are made of, one or a few at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...types import DType
from .case import Arrays, Case, Entry, Input, Values, below, normal

if TYPE_CHECKING:
    from .build import Graph


def softmax(x: NDArray[Any]) -> NDArray[Any]:
    """Over the last dimension."""
    e: NDArray[Any] = np.exp(x - x.max(-1, keepdims=True))
    shares: NDArray[Any] = e / e.sum(-1, keepdims=True)
    return shares


def matmul_bias(g: Graph, x: Values) -> Values:
    """y = x w + b."""
    return {"y": g.op("Add", g.op("MatMul", x["x"], g.weight("w")), g.weight("b"))}


def matmul_bias_reference(x: Arrays, w: Arrays) -> Arrays:
    """y = x w + b."""
    return {"y": x["x"] @ w["w"] + w["b"]}


def broadcast(g: Graph, x: Values) -> Values:
    """y = (a + b) c, where b lacks rows and c lacks columns."""
    return {"y": g.op("Mul", g.op("Add", x["a"], x["b"]), x["c"])}


def layer_norm(g: Graph, x: Values) -> Values:
    """LayerNormalization over the last dimension, epsilon 1e-5."""
    norm = g.op("LayerNormalization", x["x"], g.weight("gamma"), g.weight("beta"), axis=-1, epsilon=1e-5)
    return {"y": norm}


def layer_norm_reference(x: Arrays, w: Arrays) -> Arrays:
    """(x - mean) / sqrt(variance + 1e-5) gamma + beta."""
    centred = x["x"] - x["x"].mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return {"y": centred / scale * w["gamma"] + w["beta"]}


def gelu(g: Graph, x: Values) -> Values:
    """GELU in the dialect's spelling."""
    from ...models.spelling.gelu import gelu as spelled

    return {"y": spelled(g.builder, x["x"], "gelu")}


def silu(g: Graph, x: Values) -> Values:
    """SiLU in the dialect's spelling."""
    from ...models.spelling.silu import silu as spelled

    return {"y": spelled(g.builder, x["x"], "silu")}


def patches(g: Graph, x: Values) -> Values:
    """A vision tower's first step: a convolution with stride = kernel, then patches as rows."""
    conv = g.op("Conv", x["pixels"], g.weight("w"), g.weight("b"), kernel_shape=[4, 4], strides=[4, 4])
    return {"y": g.op("Transpose", g.op("Reshape", conv, g.ints(1, 24, 16)), perm=[0, 2, 1])}


def patches_reference(x: Arrays, w: Arrays) -> Arrays:
    """Each 4 x 4 patch times the kernel."""
    tiles = x["pixels"].reshape(1, 3, 4, 4, 4, 4)  # batch, channel, row, y, column, x
    return {"y": np.einsum("bcrysx,kcyx->brsk", tiles, w["w"]).reshape(1, 16, 24) + w["b"]}


def layout(g: Graph, x: Values) -> Values:
    """Heads apart, halves swapped, a slice, heads together: data moves and nothing is computed."""
    heads = g.op("Transpose", g.op("Reshape", x["x"], g.ints(1, 8, 4, 16)), perm=[0, 2, 1, 3])
    first, second = g.split(heads, 3, 4, 12)
    swapped = g.op("Concat", second, first, axis=3)
    kept = g.op("Slice", swapped, g.ints(2), g.ints(8), g.ints(2))
    return {"y": g.op("Reshape", g.op("Transpose", kept, perm=[0, 2, 1, 3]), g.ints(1, 6, 64))}


def layout_reference(x: Arrays, w: Arrays) -> Arrays:
    """The same moves in numpy."""
    heads = x["x"].reshape(1, 8, 4, 16).transpose(0, 2, 1, 3)
    swapped = np.concatenate([heads[..., 4:], heads[..., :4]], -1)[:, :, 2:8]
    return {"y": swapped.transpose(0, 2, 1, 3)}


def gather(g: Graph, x: Values) -> Values:
    """Rows of a table, then one row of an input, by int32 indices."""
    rows = g.op("Gather", g.weight("table"), x["ids"], axis=0)
    last = g.op("Gather", x["x"], x["last"], axis=1)
    return {"rows": rows, "row": last}


def outputs(g: Graph, x: Values) -> Values:
    """Several results of different shapes, one of them used by another."""
    total = g.op("Add", x["x"], g.weight("b"))
    return {
        "total": total,
        "turned": g.op("Transpose", total, perm=[0, 2, 1]),
        "mean": g.mean(x["x"], 2),
    }


def outputs_reference(x: Arrays, w: Arrays) -> Arrays:
    """x + b, its transpose, and the mean of x."""
    total = x["x"] + w["b"]
    return {"total": total, "turned": total.transpose(0, 2, 1), "mean": x["x"].mean(2)}


def exact_gelu(x: NDArray[Any]) -> NDArray[Any]:
    """x (1 + erf(x / sqrt 2)) / 2."""
    erf: NDArray[Any] = np.vectorize(math.erf)(x / math.sqrt(2))
    result: NDArray[Any] = x * (1 + erf) / 2
    return result


ROWS = {"x": Input((1, 16, 32))}
SAME = {"y": (1, 16, 32)}
MATMUL = Entry({"x": Input((2, 16, 32))}, {"y": (2, 16, 24)}, matmul_bias, matmul_bias_reference)
MATMUL_SHAPES = {"w": (32, 24), "b": (24,)}
NORM = Entry({"x": Input((1, 16, 32), normal(3.0))}, SAME, layer_norm, layer_norm_reference)
NORM_SHAPES = {"gamma": (32,), "beta": (32,)}


def one(
    name: str, entry: Entry, shapes: Mapping[str, tuple[int, ...]] | None = None, dtype: DType = DType.FLOAT32
) -> Case:
    """A case of the one entry ``main``."""
    return Case(name, {"main": entry}, shapes or {}, dtype)


CASES = (
    one("matmul_bias", MATMUL, MATMUL_SHAPES),
    one("matmul_bias_float16", MATMUL, MATMUL_SHAPES, DType.FLOAT16),
    one(
        "broadcast",
        Entry(
            {"a": Input((1, 8, 16)), "b": Input((1, 1, 16)), "c": Input((1, 8, 1))},
            {"y": (1, 8, 16)},
            broadcast,
            lambda x, w: {"y": (x["a"] + x["b"]) * x["c"]},
        ),
    ),
    one(
        "softmax",
        Entry(
            {"x": Input((1, 4, 8, 32), normal(5.0))},
            {"y": (1, 4, 8, 32)},
            lambda g, x: {"y": g.op("Softmax", x["x"], axis=-1)},
            lambda x, w: {"y": softmax(x["x"])},
        ),
    ),
    one("layer_norm", NORM, NORM_SHAPES),
    one("layer_norm_float16", NORM, NORM_SHAPES, DType.FLOAT16),
    one("gelu", Entry(ROWS, SAME, gelu, lambda x, w: {"y": exact_gelu(x["x"])})),
    one("silu", Entry(ROWS, SAME, silu, lambda x, w: {"y": x["x"] / (1 + np.exp(-x["x"]))})),
    one(
        "patches",
        Entry({"pixels": Input((1, 3, 16, 16))}, {"y": (1, 16, 24)}, patches, patches_reference),
        {"w": (24, 3, 4, 4), "b": (24,)},
    ),
    one("layout", Entry({"x": Input((1, 8, 64))}, {"y": (1, 6, 64)}, layout, layout_reference)),
    one(
        "gather",
        Entry(
            {
                "ids": Input((1, 6), below(20), DType.INT32),
                "x": Input((1, 8, 16)),
                "last": Input((1,), below(8), DType.INT32),
            },
            {"rows": (1, 6, 16), "row": (1, 1, 16)},
            gather,
            lambda x, w: {"rows": w["table"][x["ids"]], "row": x["x"][:, x["last"]]},
        ),
        {"table": (20, 16)},
    ),
    one(
        "reduce_mean",
        Entry(
            {"x": Input((1, 16, 32))},
            {"y": (1, 1, 32)},
            lambda g, x: {"y": g.mean(x["x"], 1)},
            lambda x, w: {"y": x["x"].mean(1)},
        ),
    ),
    one(
        "several_outputs",
        Entry(
            {"x": Input((1, 12, 16))},
            {"total": (1, 12, 16), "turned": (1, 16, 12), "mean": (1, 12, 1)},
            outputs,
            outputs_reference,
        ),
        {"b": (16,)},
    ),
)
