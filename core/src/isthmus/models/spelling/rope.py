"""Rotary embedding, rotate-half: ``[a, b] -> [a*cos - b*sin, b*cos + a*sin]`` for the halves of each head."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import onnx_ir as ir

from ...graph.builder import GraphBuilder


@attrs.frozen
class Angles:
    """The graph's cos and sin, each in the shape its spelling wants."""

    cos: ir.Value
    sin: ir.Value


def angles(g: GraphBuilder, cos: ir.Value, sin: ir.Value, tokens: int, half: int) -> Angles:
    """Make the inputs [1, 1, tokens, half] fit token-major heads [1, tokens, heads, 2 * half]."""
    if g.dialect.rope == "op":
        shape = [1, tokens, half]
    elif tokens > 1:
        shape = [1, tokens, 1, half]
    else:
        return Angles(cos, sin)
    return Angles(g.reshape(cos, shape, "llm.rope.cos"), g.reshape(sin, shape, "llm.rope.sin"))


def rope(g: GraphBuilder, x: ir.Value, shape: Sequence[int], at: Angles, name: str) -> ir.Value:
    """Rotate ``x`` of ``shape`` [1, tokens, heads, head_dim]."""
    return _SPELLINGS[g.dialect.rope](g, x, shape, at, name)


def _split(g: GraphBuilder, x: ir.Value, shape: Sequence[int], at: Angles, name: str) -> ir.Value:
    half = shape[3] // 2
    a, b = g.ops("Split", [x, g.integers(half, half)], f"{name}.split", 2, axis=3)
    return _rotate(g, a, b, at, name)


def _slice(g: GraphBuilder, x: ir.Value, shape: Sequence[int], at: Angles, name: str) -> ir.Value:
    half = shape[3] // 2
    a, b = g.slice(x, 0, half, 3, f"{name}.first"), g.slice(x, half, 2 * half, 3, f"{name}.second")
    return _rotate(g, a, b, at, name)


def _op(g: GraphBuilder, x: ir.Value, shape: Sequence[int], at: Angles, name: str) -> ir.Value:
    """RotaryEmbedding takes token-major heads only when they are joined to three dimensions."""
    _, tokens, heads, dim = shape
    joined = g.reshape(x, [1, tokens, heads * dim], f"{name}.join")
    turned = g.op("RotaryEmbedding", [joined, at.cos, at.sin], f"{name}.rotary", num_heads=heads, interleaved=0)
    return g.reshape(turned, shape, name)


def _rotate(g: GraphBuilder, a: ir.Value, b: ir.Value, at: Angles, name: str) -> ir.Value:
    first = g.op(
        "Sub",
        [g.op("Mul", [a, at.cos], f"{name}.a_cos"), g.op("Mul", [b, at.sin], f"{name}.b_sin")],
        f"{name}.real",
    )
    second = g.op(
        "Add",
        [g.op("Mul", [b, at.cos], f"{name}.b_cos"), g.op("Mul", [a, at.sin], f"{name}.a_sin")],
        f"{name}.imag",
    )
    return g.op("Concat", [first, second], name, axis=3)


_SPELLINGS = {"split": _split, "slice": _slice, "op": _op}
