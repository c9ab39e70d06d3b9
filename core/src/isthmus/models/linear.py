"""Linear layers: the checkpoint's [out, in] weight becomes MatMul's [in, out], with constant factors folded in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graph.builder import GraphBuilder
from .tensors import Tensor

Array = NDArray[Any]


def linear(
    g: GraphBuilder,
    weights: Mapping[str, Tensor],
    x: ir.Value,
    name: str,
    out: int,
    width: int,
    *,
    scale: float = 1.0,
    rows: Tensor | None = None,
) -> ir.Value:
    """``(x @ W.T + b) * scale * rows``; the bias is there if ``weights`` has ``name.bias``.

    ``rows`` is a factor per output channel. The MatMul node is called ``name``.
    """
    read = read_scaled(weights[f"{name}.weight"], scale, rows)
    y = g.op("MatMul", [x, g.weight(f"{name}.weight", (width, out), lambda: read().T)], name)
    if (bias := weights.get(f"{name}.bias")) is None:
        return y
    return g.op("Add", [y, g.weight(f"{name}.bias", (out,), read_scaled(bias, scale, rows))], f"{name}.add_bias")


def read_scaled(tensor: Tensor, scale: float = 1.0, rows: Tensor | None = None) -> Callable[[], Array]:
    """A reader of ``tensor`` times ``scale`` and, along its first dimension, times ``rows``; in float32 if it scales."""
    if scale == 1.0 and rows is None:
        return tensor.read

    def read() -> Array:
        array = tensor.read().astype(np.float32) * np.float32(scale)
        if rows is not None:
            array *= rows.read().astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
        return array

    return read
