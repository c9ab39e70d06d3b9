"""What a wrong tensor looks like says what is likely wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..graphset import GraphSet
from .metrics import FLOAT16_MAX, Figures
from .taps import Tap

_SUBNORMAL = 2.0**-24
"""Smallest number of float16 above 0."""


def likely_cause(tap: Tap, found: Figures, got: NDArray[Any], want: NDArray[Any]) -> str:
    """One line, most telling sign first."""
    return _range(tap, found) or _order(found, got, want) or _scale(found, got, want) or _rest(found)


def changed_weights(reference: GraphSet, subject: GraphSet, entry: str, tap: Tap) -> list[str]:
    """Weights that ``tap``'s node reads and that differ between the two sets: which, and which of their elements."""
    ours, theirs = (_initializers(graphs, entry) for graphs in (subject, reference))
    lines = []
    for name in tap.inputs:
        if name not in ours or name not in theirs:
            continue
        a, b = (values[name].const_value.numpy() for values in (ours, theirs))
        if a.shape != b.shape:
            lines.append(f"weight {name} is {list(a.shape)}, in the reference {list(b.shape)}")
        elif (places := np.flatnonzero(a.ravel() != b.ravel())).size:
            lines.append(
                f"weight {name} differs from the reference's in {places.size} of {a.size} elements, "
                f"the first at {places[0]}, the last at {places[-1]}"
            )
    return lines


def _initializers(graphs: GraphSet, entry: str) -> Any:
    return ir.load(graphs.path / graphs.graphs[entry]).graph.initializers


def _range(tap: Tap, found: Figures) -> str:
    got, want = found.got, found.want
    broken = got.nan + got.infinite + got.saturated > want.nan + want.infinite + want.saturated
    if want.largest > FLOAT16_MAX and (broken or got.largest < want.largest / 2):
        remedy = "spell RMSNorm as rms_norm=l2" if "norm" in tap.name else "scale the tensor down, or use float32/bf16"
        return f"overflow of fp16: the reference reaches {want.largest:.6g}, fp16 ends at 65504; {remedy}"
    if got.nan > want.nan:
        return "NaN: infinity minus infinity, 0/0, or a fully masked row; look at the ranges of the inputs"
    if broken:
        return "saturation: values stand at the end of a 16-bit float's range"
    if got.zero and not want.zero:
        if want.largest < _SUBNORMAL:
            return f"underflow: the reference's largest value {want.largest:.3g} is 0 in fp16"
        return "all zero: the node did not run, its output was not written, or its weights are missing"
    return ""


def _order(found: Figures, got: NDArray[Any], want: NDArray[Any]) -> str:
    g, w = (np.sort(np.asarray(a, np.float64), axis=None) for a in (got, want))
    if not np.isfinite(g).all() or not np.isfinite(w).all() or np.abs(g - w).max(initial=0.0) > found.limit:
        return ""
    return "layout: the same values in another order (a transposition, the pixel shuffle, the order of channels)"


def _scale(found: Figures, got: NDArray[Any], want: NDArray[Any]) -> str:
    if found.cosine < 0.9999 or found.relative_l2 < 0.01:
        return ""
    g, w = (np.asarray(a, np.float64).ravel() for a in (got, want))
    return f"a constant factor: about {float(g @ w) / float(w @ w):.6g} times the reference"


def _rest(found: Figures) -> str:
    if found.cosine > 0.99:
        return "rounding: the direction is right (cosine above 0.99), the precision is too low here"
    return "other values altogether: another weight, input or operator than in the reference"
