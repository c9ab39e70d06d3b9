"""How far one tensor is from another. Everything is computed in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..types import Tolerance

FLOAT16_MAX = 65504.0
SATURATED = (FLOAT16_MAX, 131008.0)
"""Where fp16 arithmetic stops: IEEE, and the HTP's own format that spends the infinity codes on numbers."""
EXACT_DB = 400.0
"""SQNR that stands for equal, so that it can be plotted and written as JSON."""


@attrs.frozen
class Ranges:
    """What values a tensor holds."""

    low: float | None
    """Smallest finite value; ``None`` without any."""
    high: float | None
    nan: int
    infinite: int
    saturated: int
    """Elements at the largest number of a 16-bit float format."""
    zero: bool
    """All elements are 0."""
    size: int

    @property
    def largest(self) -> float:
        """Largest finite magnitude."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))


@attrs.frozen
class Figures:
    """Distance of ``got`` from ``want``."""

    max_abs: float
    """``max |got - want|``; infinite if only one side is finite anywhere."""
    relative_l2: float
    """``|got - want| / |want|`` in the Euclidean norm."""
    cosine: float
    sqnr_db: float
    """``20 log10(|want| / |got - want|)``; 400 for equal tensors, -400 if an element is finite on one side only."""
    limit: float
    """``atol + rtol * max |want|``: what ``max_abs`` may be."""
    got: Ranges
    want: Ranges

    @property
    def within(self) -> bool:
        """Whether ``max_abs`` keeps to the limit."""
        return self.max_abs <= self.limit


@attrs.frozen
class LogitFigures:
    """What a difference of logits does to the choice of tokens. Rows are positions."""

    kl: float
    """Largest ``KL(want || got)`` of the softmax distributions, nats."""
    top1: float
    """Share of rows with the same best token."""
    top5: float
    """Mean share of the five best tokens that both have."""
    margin: float
    """Smallest best minus second-best logit of the reference: below the error, a differing token is a coin toss."""


def ranges(array: NDArray[Any]) -> Ranges:
    """Describe ``array``, of any numeric dtype."""
    values = np.asarray(array, np.float64)
    finite = values[np.isfinite(values)]
    return Ranges(
        low=float(finite.min()) if finite.size else None,
        high=float(finite.max()) if finite.size else None,
        nan=int(np.isnan(values).sum()),
        infinite=int(np.isinf(values).sum()),
        saturated=int(np.isin(np.abs(finite), SATURATED).sum()),
        zero=bool(values.size and not values.any()),
        size=values.size,
    )


def figures(got: NDArray[Any], want: NDArray[Any], tolerance: Tolerance) -> Figures:
    """Compare two arrays of one shape. ``InputError`` for two shapes. NaN equals NaN, and an infinity itself."""
    if got.shape != want.shape:
        raise InputError(f"cannot compare shapes {list(got.shape)} and {list(want.shape)}")
    g, w = np.asarray(got, np.float64).ravel(), np.asarray(want, np.float64).ravel()
    both = np.isfinite(g) & np.isfinite(w)
    torn = bool((~both & ~((g == w) | (np.isnan(g) & np.isnan(w)))).any())
    g, w = g[both], w[both]
    error, size = float(np.linalg.norm(g - w)), float(np.linalg.norm(w))
    return Figures(
        max_abs=math.inf if torn else float(np.abs(g - w).max(initial=0.0)),
        relative_l2=math.inf if torn else _ratio(error, size),
        cosine=_cosine(g, w),
        sqnr_db=-EXACT_DB if torn else _decibels(error, size),
        limit=tolerance.atol + tolerance.rtol * float(np.abs(w).max(initial=0.0)),
        got=ranges(got),
        want=ranges(want),
    )


def logit_figures(got: NDArray[Any], want: NDArray[Any]) -> LogitFigures:
    """Compare logits [..., V]. ``InputError`` for two shapes, or fewer than two tokens to choose from."""
    if got.shape != want.shape or want.ndim < 1 or want.shape[-1] < 2 or not want.size:
        raise InputError(f"cannot compare logits {list(got.shape)} and {list(want.shape)}")
    g, w = (np.asarray(a, np.float64).reshape(-1, a.shape[-1]) for a in (got, want))
    best = [np.argsort(-a, axis=-1, kind="stable")[:, :5] for a in (g, w)]
    shared = [len(set(a) & set(b)) / len(b) for a, b in zip(best[0].tolist(), best[1].tolist())]
    ordered = np.sort(w, axis=-1)
    return LogitFigures(
        kl=_kl(g, w),
        top1=float((best[0][:, 0] == best[1][:, 0]).mean()),
        top5=float(np.mean(shared)),
        margin=float((ordered[:, -1] - ordered[:, -2]).min()),
    )


def margin(logits: NDArray[Any]) -> float:
    """Best minus second-best logit of one row [V]."""
    ordered = np.sort(np.asarray(logits, np.float64).ravel())
    return float(ordered[-1] - ordered[-2])


def line_db(tolerance: Tolerance) -> float:
    """SQNR below which an inner tensor counts as wrong: an error of ``rtol`` times the whole tensor's norm."""
    return -20.0 * math.log10(tolerance.rtol) if tolerance.rtol > 0 else EXACT_DB


def as_json(found: Figures | LogitFigures) -> Mapping[str, Any]:
    """JSON-ready data; ``Figures`` with its verdict."""
    data = attrs.asdict(found)
    if isinstance(found, Figures):
        data["within"] = found.within
    return data


def _ratio(error: float, size: float) -> float:
    if size == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / size


def _cosine(g: NDArray[np.float64], w: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(g)) * float(np.linalg.norm(w))
    if norms == 0.0:
        return 1.0 if not g.any() and not w.any() else 0.0
    return float(g @ w) / norms


def _decibels(error: float, size: float) -> float:
    if error == 0.0:
        return EXACT_DB
    if size == 0.0:
        return -EXACT_DB
    return float(np.clip(20.0 * math.log10(size / error), -EXACT_DB, EXACT_DB))


def _kl(g: NDArray[np.float64], w: NDArray[np.float64]) -> float:
    if not (np.isfinite(g).all() and np.isfinite(w).all()):
        return math.inf
    log_g, log_w = (a - a.max(-1, keepdims=True) for a in (g, w))
    log_g, log_w = (a - np.log(np.exp(a).sum(-1, keepdims=True)) for a in (log_g, log_w))
    return float(max(0.0, (np.exp(log_w) * (log_w - log_g)).sum(-1).max()))
