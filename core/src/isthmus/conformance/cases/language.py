"""Parts of language models: the norm that overflows, rotary positions, masked attention, prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .case import Arrays, Case, Entry, Input, Values, normal
from .operators import matmul_bias, matmul_bias_reference, one, softmax

if TYPE_CHECKING:
    import onnx_ir as ir

    from .build import Graph

MASKED = -1e4
HIDDEN = 32
SLOTS = 8
"""Slots of the cache; a graph of N tokens reads the SLOTS - N before them."""


def rms_norm(g: Graph, x: Values) -> Values:
    """RMSNorm in the dialect's spelling."""
    from ...models.spelling.rms_norm import rms_norm as spelled

    return {"y": spelled(g.builder, x["x"], (1, 16, HIDDEN), lambda: g.array("norm.weight"), 1e-6, "norm")}


def rms_norm_reference(x: Arrays, w: Arrays) -> Arrays:
    """x / sqrt(mean(x x) + 1e-6) weight."""
    return {"y": x["x"] / np.sqrt((x["x"] ** 2).mean(-1, keepdims=True) + 1e-6) * w["norm.weight"]}


def rotary(g: Graph, x: Values) -> Values:
    """Rotary positions of 4 tokens with 2 heads of 16, in the dialect's spelling."""
    from ...models.spelling.rope import angles
    from ...models.spelling.rope import rope as spelled

    at = angles(g.builder, x["cos"], x["sin"], 4, 8)
    return {"y": spelled(g.builder, x["x"], (1, 4, 2, 16), at, "rope")}


def rotary_reference(x: Arrays, w: Arrays) -> Arrays:
    """[a, b] -> [a cos - b sin, b cos + a sin] for the halves of each head."""
    a, b = x["x"][..., :8], x["x"][..., 8:]
    cos, sin = (x[name].reshape(1, 4, 1, 8) for name in ("cos", "sin"))
    return {"y": np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)}


def causal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """An additive mask: finite, and every row keeps its first slots."""
    kept = rng.integers(1, shape[-1] + 1, (*shape[:-1], 1))
    return np.where(np.arange(shape[-1]) < kept, 0.0, MASKED)


def attention(g: Graph, x: Values) -> Values:
    """softmax(q k^T + mask) v, the scale folded into q."""
    scores = g.op("MatMul", x["q"], g.op("Transpose", x["k"], perm=[0, 1, 3, 2]))
    return {"y": g.op("MatMul", g.op("Softmax", g.op("Add", scores, x["mask"]), axis=-1), x["v"])}


def attention_reference(x: Arrays, w: Arrays) -> Arrays:
    """The same in numpy."""
    return {"y": softmax(x["q"] @ x["k"].swapaxes(-1, -2) + x["mask"]) @ x["v"]}


def step(g: Graph, x: Values) -> Values:
    """New tokens attend to past keys and their own; only the new keys come out, as in a language model's graph."""
    new = g.op("MatMul", x["x"], g.weight("wk"))
    keys: ir.Value = g.op("Concat", x["past_key"], new, axis=1)
    scores = g.op("MatMul", x["x"], g.op("Transpose", keys, perm=[0, 2, 1]))
    mixed = g.op("MatMul", g.op("Softmax", g.op("Add", scores, x["mask"]), axis=-1), keys)
    return {"y": g.op("MatMul", mixed, g.weight("wo")), "new_key": new}


def step_reference(x: Arrays, w: Arrays) -> Arrays:
    """The same in numpy."""
    new = x["x"] @ w["wk"]
    keys = np.concatenate([x["past_key"], new], 1)
    return {"y": softmax(x["x"] @ keys.swapaxes(1, 2) + x["mask"]) @ keys @ w["wo"], "new_key": new}


def tokens(n: int) -> Entry:
    """The graph of ``n`` new tokens over a cache of ``SLOTS``."""
    return Entry(
        {
            "x": Input((1, n, HIDDEN), normal(0.5)),
            "past_key": Input((1, SLOTS - n, HIDDEN), normal(0.5)),
            "mask": Input((1, n, SLOTS), causal),
        },
        {"y": (1, n, HIDDEN), "new_key": (1, n, HIDDEN)},
        step,
        step_reference,
    )


HEADS = (1, 4, 8, 16)

CASES = (
    one(
        "rms_norm_of_large_values",  # whose squares no float16 can hold
        Entry({"x": Input((1, 16, HIDDEN), normal(300.0))}, {"y": (1, 16, HIDDEN)}, rms_norm, rms_norm_reference),
        {"norm.weight": (HIDDEN,)},
    ),
    one(
        "rotary",
        Entry(
            {"x": Input((1, 4, 2, 16)), "cos": Input((1, 1, 4, 8)), "sin": Input((1, 1, 4, 8))},
            {"y": (1, 4, 2, 16)},
            rotary,
            rotary_reference,
        ),
    ),
    one(
        "attention",
        Entry(
            {
                "q": Input(HEADS, normal(0.5)),
                "k": Input(HEADS),
                "v": Input(HEADS),
                "mask": Input((1, 1, 8, 8), causal),
            },
            {"y": HEADS},
            attention,
            attention_reference,
        ),
    ),
    Case(
        "prefill_and_decode",
        {"prefill": tokens(4), "decode": tokens(1)},
        {"wk": (HIDDEN, HIDDEN), "wo": (HIDDEN, HIDDEN)},
    ),
    one(
        "large_weights",
        Entry({"x": Input((1, 4, 1024))}, {"y": (1, 4, 1024)}, matmul_bias, matmul_bias_reference),
        {"w": (1024, 1024), "b": (1024,)},
    ),
)
