"""Language-model entries: AR-N over a context of C slots, see docs/graph-contract.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph.builder import GraphBuilder
from ..types import Dialect
from .linear import linear, read_scaled
from .spelling.rms_norm import rms_norm
from .spelling.rope import Angles, angles, rope
from .spelling.silu import silu
from .tensors import Tensor
from .text_config import TextConfig


def build_llm(
    c: TextConfig,
    weights: Mapping[str, Tensor],
    *,
    name: str,
    tokens: int,
    context: int,
    dialect: Dialect,
    dtype: np.dtype[Any],
) -> GraphBuilder:
    """One graph that takes ``tokens`` new tokens after ``context - tokens`` past slots."""
    return _Llm(c, weights, tokens, context, GraphBuilder(name, dialect, dtype)).build()


class _Llm:
    def __init__(
        self, c: TextConfig, weights: Mapping[str, Tensor], tokens: int, context: int, g: GraphBuilder
    ) -> None:
        self.c, self.w, self.n, self.context, self.g = c, weights, tokens, context, g
        self.past = context - tokens
        self.shape = (1, tokens, c.hidden)
        self.scale = c.head_dim**-0.5
        self.mask: ir.Value
        self.angles: Angles

    def build(self) -> GraphBuilder:
        c, g, n = self.c, self.g, self.n
        half = c.head_dim // 2
        x = g.input("inputs_embeds", self.shape)
        mask = g.input("attention_mask", (1, 1, n, self.context))
        self.mask = g.reshape(mask, [1, n, self.context], "llm.mask")
        cos, sin = g.input("cos", (1, 1, n, half)), g.input("sin", (1, 1, n, half))
        last = g.input("last_index", (1,), ir.DataType.INT32) if n > 1 else None
        self.angles = angles(g, cos, sin, n, half)
        new = []
        for i in range(c.layers):
            x, *keys_values = self.layer(x, i)
            new.append(keys_values)
        g.output(self.logits(x, last), "logits", (1, 1, c.vocab))
        for i, (key, value) in enumerate(new):
            g.output(key, f"new_key_{i}", (1, n, c.kv_heads, c.head_dim))
            g.output(value, f"new_value_{i}", (1, n, c.kv_heads, c.head_dim))
        return g

    def logits(self, x: ir.Value, last: ir.Value | None) -> ir.Value:
        """Of one token only: the last real one of the chunk."""
        if last is not None:
            x = self.g.op("Gather", [x, last], "llm.last", axis=1)
        x = rms_norm(self.g, x, (1, 1, self.c.hidden), self.w["llm.norm"].read, self.c.rms_eps, "llm.norm")
        return linear(self.g, self.w, x, "llm.head", self.c.vocab, self.c.hidden)

    def layer(self, x: ir.Value, i: int) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The residual stream after layer ``i``, its new keys and its new values."""
        g, c, at = self.g, self.c, f"llm.layers.{i}"
        y = self.norm(x, f"{at}.norm1")
        q = self.rotated(y, f"{at}.attn.q", c.heads, self.scale)
        k = self.rotated(y, f"{at}.attn.k", c.kv_heads, 1.0)
        v = self.heads(y, f"{at}.attn.v", c.kv_heads, 1.0)
        y = self.attention(q, self.with_past(k, "key", i), self.with_past(v, "value", i), f"{at}.attn")
        y = linear(g, self.w, y, f"{at}.attn.o", c.hidden, c.heads * c.head_dim)
        x = g.op("Add", [x, y], f"{at}.attn.residual")
        y = self.mlp(self.norm(x, f"{at}.norm2"), f"{at}.mlp")
        return g.op("Add", [x, y], f"{at}.mlp.residual"), k, v

    def heads(self, x: ir.Value, name: str, heads: int, scale: float) -> ir.Value:
        """A projection as token-major heads [1, n, heads, head_dim]."""
        y = linear(self.g, self.w, x, name, heads * self.c.head_dim, self.c.hidden, scale=scale)
        return self.g.reshape(y, [1, self.n, heads, self.c.head_dim], f"{name}.heads")

    def rotated(self, x: ir.Value, name: str, heads: int, scale: float) -> ir.Value:
        """Queries or keys: heads, normalised where the family does so, rotated; ``scale`` is folded into weights."""
        shape = (1, self.n, heads, self.c.head_dim)
        y = self.heads(x, name, heads, 1.0 if self.c.qk_norm else scale)
        if self.c.qk_norm:
            y = rms_norm(self.g, y, shape, read_scaled(self.w[f"{name}_norm"], scale), self.c.rms_eps, f"{name}_norm")
        return rope(self.g, y, shape, self.angles, f"{name}.rope")

    def with_past(self, new: ir.Value, kind: str, i: int) -> ir.Value:
        """Past slots then new tokens, [context, K, d]."""
        g, c, name = self.g, self.c, f"llm.layers.{i}.attn.{kind[0]}"
        if self.past:
            past = g.input(f"past_{kind}_{i}", (1, self.past, c.kv_heads, c.head_dim))
            new = g.op("Concat", [past, new], f"{name}.all", axis=1)
        return g.reshape(new, [self.context, c.kv_heads, c.head_dim], f"{name}.slots")

    def attention(self, q: ir.Value, keys: ir.Value, values: ir.Value, at: str) -> ir.Value:
        """Queries that share a key/value head are rows of one matrix, so that keys and values are not expanded.

        Three dimensions, heads first, because then runtimes read the token-major cache in place: ONNX Runtime fuses
        these transposes into its MatMul, and does not do so with a leading batch dimension.
        """
        g, c = self.g, self.c
        rows = c.heads // c.kv_heads * self.n
        keys = g.transpose(g.transpose(keys, [1, 0, 2], f"{at}.k.by_head"), [0, 2, 1], f"{at}.k.transposed")
        scores = g.op("MatMul", [self.grouped(q, rows, at), keys], f"{at}.scores")
        shares = self.masked_softmax(scores, rows, at)
        mix = g.op("MatMul", [shares, g.transpose(values, [1, 0, 2], f"{at}.v.by_head")], f"{at}.mix")
        if self.n > 1:
            mix = g.reshape(mix, [c.heads, self.n, c.head_dim], f"{at}.ungrouped")
            mix = g.transpose(mix, [1, 0, 2], f"{at}.tokens")
        return g.reshape(mix, [1, self.n, c.heads * c.head_dim], f"{at}.joined")

    def grouped(self, q: ir.Value, rows: int, at: str) -> ir.Value:
        """Queries [1, n, H, d] as [K, rows, d]; one token needs no transpose."""
        if self.n > 1:
            q = self.g.transpose(q, [0, 2, 1, 3], f"{at}.q.by_head")
        return self.g.reshape(q, [self.c.kv_heads, rows, self.c.head_dim], f"{at}.q.grouped")

    def masked_softmax(self, scores: ir.Value, rows: int, at: str) -> ir.Value:
        """The mask [1, n, C] is added per head; with one token or one query per group it broadcasts as it is."""
        g, c = self.g, self.c
        regroup = self.n > 1 and c.heads != c.kv_heads
        if regroup:
            scores = g.reshape(scores, [c.heads, self.n, self.context], f"{at}.scores.by_head")
        shares = g.op("Softmax", [g.op("Add", [scores, self.mask], f"{at}.masked")], f"{at}.softmax", axis=2)
        return g.reshape(shares, [c.kv_heads, rows, self.context], f"{at}.shares") if regroup else shares

    def mlp(self, x: ir.Value, at: str) -> ir.Value:
        g, c = self.g, self.c
        gate = silu(g, linear(g, self.w, x, f"{at}.gate", c.intermediate, c.hidden), f"{at}.silu")
        y = g.op("Mul", [gate, linear(g, self.w, x, f"{at}.up", c.intermediate, c.hidden)], f"{at}.gated")
        return linear(g, self.w, y, f"{at}.down", c.hidden, c.intermediate)

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        return rms_norm(self.g, x, self.shape, self.w[name].read, self.c.rms_eps, name)
