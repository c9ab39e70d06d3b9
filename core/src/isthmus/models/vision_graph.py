"""The ``vision`` entry: InternViT, pixel shuffle and projector as one static graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graph.builder import GraphBuilder
from ..types import Dialect
from .linear import linear, read_scaled
from .spelling.gelu import gelu
from .spelling.rms_norm import rms_norm
from .tensors import Tensor
from .vision_config import VisionConfig

_PROJECTOR_EPS = 1e-5  # torch.nn.LayerNorm's default, which both sources use here


def build_vision(
    c: VisionConfig,
    text_hidden: int,
    weights: Mapping[str, Tensor],
    *,
    tiles: int,
    dialect: Dialect,
    dtype: np.dtype[Any],
) -> GraphBuilder:
    """``pixel_values`` [tiles, 3, S, S] -> ``image_features`` [tiles, tokens, text_hidden]."""
    return _Vision(c, weights, tiles, GraphBuilder("vision", dialect, dtype)).build(text_hidden)


class _Vision:
    def __init__(self, c: VisionConfig, weights: Mapping[str, Tensor], tiles: int, g: GraphBuilder) -> None:
        self.c, self.w, self.tiles, self.g = c, weights, tiles, g
        self.shape = (tiles, c.grid**2 + 1, c.hidden)

    def build(self, text_hidden: int) -> GraphBuilder:
        x = self.embed(self.g.input("pixel_values", (self.tiles, 3, self.c.image, self.c.image)))
        for i in range(self.c.layers):
            x = self.layer(x, f"vision.layers.{i}")
        x = self.project(self.shuffle(x), text_hidden)
        self.g.output(x, "image_features", (self.tiles, self.c.tokens, text_hidden))
        return self.g

    def embed(self, pixels: ir.Value) -> ir.Value:
        """Patches with their positions, behind the class token with its own."""
        c, g, w = self.c, self.g, self.w
        patches, edge = c.grid**2, [c.patch, c.patch]
        weight = g.weight("vision.patch.weight", (c.hidden, 3, *edge), w["vision.patch.weight"].read)
        bias = g.weight("vision.patch.bias", (c.hidden,), w["vision.patch.bias"].read)
        x = g.op("Conv", [pixels, weight, bias], "vision.patch", kernel_shape=edge, strides=edge)
        x = g.reshape(x, [self.tiles, c.hidden, patches], "vision.patch.flat")
        x = g.transpose(x, [0, 2, 1], "vision.patch.tokens")
        position = g.weight("vision.position", (1, patches, c.hidden), lambda: w["vision.position"].read()[:, 1:])
        x = g.op("Add", [x, position], "vision.embed.patches")
        cls = g.weight("vision.class", (self.tiles, 1, c.hidden), self.read_class)
        return g.op("Concat", [cls, x], "vision.embed", axis=1)

    def read_class(self) -> NDArray[np.float32]:
        first = self.w["vision.position"].read()[:, :1].astype(np.float32)
        cls: NDArray[np.float32] = self.w["vision.class"].read().astype(np.float32) + first
        return np.repeat(cls, self.tiles, axis=0)

    def layer(self, x: ir.Value, at: str) -> ir.Value:
        """``x += s1 * attention(norm1(x)); x += s2 * mlp(norm2(x))``, s1 and s2 folded into the last linear."""
        g, c = self.g, self.c
        y = self.attention(self.norm(x, f"{at}.norm1"), at)
        y = self.linear(y, f"{at}.attn.o", c.hidden, c.hidden, rows=self.w[f"{at}.scale1"])
        x = g.op("Add", [x, y], f"{at}.attn.residual")
        y = self.linear(self.norm(x, f"{at}.norm2"), f"{at}.mlp.fc1", c.intermediate, c.hidden)
        y = self.linear(
            gelu(g, y, f"{at}.mlp.gelu"), f"{at}.mlp.fc2", c.hidden, c.intermediate, rows=self.w[f"{at}.scale2"]
        )
        return g.op("Add", [x, y], f"{at}.mlp.residual")

    def attention(self, x: ir.Value, at: str) -> ir.Value:
        g, c = self.g, self.c
        tiles, tokens, hidden = self.shape
        scale = (hidden // c.heads) ** -0.5
        heads = {}
        for part in "qkv":
            name = f"{at}.attn.{part}"
            norm = c.qk_norm and part != "v"
            y = self.linear(x, name, hidden, hidden, scale=scale if part == "q" and not norm else 1.0)
            if norm:
                read = read_scaled(self.w[f"{name}_norm"], scale if part == "q" else 1.0)
                y = rms_norm(g, y, self.shape, read, c.qk_norm_eps, f"{name}_norm")
            y = g.reshape(y, [tiles, tokens, c.heads, hidden // c.heads], f"{name}.split")
            heads[part] = g.transpose(y, [0, 2, 1, 3], f"{name}.heads")
        keys = g.transpose(heads["k"], [0, 1, 3, 2], f"{at}.attn.k.transposed")
        scores = g.op("MatMul", [heads["q"], keys], f"{at}.attn.scores")
        mix = g.op("MatMul", [g.op("Softmax", [scores], f"{at}.attn.softmax", axis=3), heads["v"]], f"{at}.attn.mix")
        return g.reshape(g.transpose(mix, [0, 2, 1, 3], f"{at}.attn.tokens"), self.shape, f"{at}.attn.joined")

    def shuffle(self, x: ir.Value) -> ir.Value:
        """Drop the class token, then fold ``shuffle`` x ``shuffle`` patches into the channels."""
        g, c = self.g, self.c
        n, r, m = c.grid, c.shuffle, c.grid // c.shuffle
        x = g.slice(x, 1, n * n + 1, 1, "vision.shuffle.patches")
        x = g.reshape(x, [self.tiles, n, m, c.hidden * r], "vision.shuffle.columns")
        x = g.transpose(x, [0, 2, 1, 3], "vision.shuffle.swap")
        x = g.reshape(x, [self.tiles, m, m, c.merged], "vision.shuffle.rows")
        if not c.transposed:
            x = g.transpose(x, [0, 2, 1, 3], "vision.shuffle.swap_back")
        return g.reshape(x, [self.tiles, c.tokens, c.merged], "vision.shuffle")

    def project(self, x: ir.Value, text_hidden: int) -> ir.Value:
        at = "vision.projector"
        x = self.layer_norm(x, f"{at}.norm", self.c.merged, _PROJECTOR_EPS)
        x = gelu(self.g, self.linear(x, f"{at}.fc1", text_hidden, self.c.merged), f"{at}.gelu")
        return self.linear(x, f"{at}.fc2", text_hidden, text_hidden)

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        if self.c.norm == "layer_norm":
            return self.layer_norm(x, name, self.c.hidden, self.c.norm_eps)
        return rms_norm(self.g, x, self.shape, self.w[f"{name}.weight"].read, self.c.norm_eps, name)

    def layer_norm(self, x: ir.Value, name: str, size: int, eps: float) -> ir.Value:
        scale, bias = (self.g.weight(f"{name}.{p}", (size,), self.w[f"{name}.{p}"].read) for p in ("weight", "bias"))
        return self.g.op("LayerNormalization", [x, scale, bias], name, axis=2, epsilon=eps)

    def linear(
        self, x: ir.Value, name: str, out: int, width: int, *, scale: float = 1.0, rows: Tensor | None = None
    ) -> ir.Value:
        return linear(self.g, self.w, x, name, out, width, scale=scale, rows=rows)
