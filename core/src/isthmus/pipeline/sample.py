"""Picks the next token from logits: the largest, or at random among the likely ones."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError, InputError


def _finite(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")


@attrs.frozen
class Sampling:
    """How to pick. The default is greedy. ``InputError``: a value out of range.

    Filters apply in the order of transformers: temperature, top-k, top-p.
    """

    temperature: float = 0.0
    """0 is greedy: the largest logit, the lowest id on a tie."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 is all. On a tie at the border the lower ids stay."""
    top_p: float = 1.0
    """Only the likeliest tokens whose probabilities first add up to p."""
    seed: int | None = None
    """Of the random numbers; ``None`` takes a new one each time."""

    def __attrs_post_init__(self) -> None:
        _finite("temperature", self.temperature)
        _finite("top_p", self.top_p)
        if self.temperature < 0:
            raise InputError(f"temperature must not be negative: {self.temperature}", fix="0 is greedy")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1: {self.top_p}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"top_k must be an integer of at least 0: {self.top_k!r}", fix="0 switches it off")
        if self.seed is not None and (not isinstance(self.seed, int) or self.seed < 0):
            raise InputError(f"seed must be an integer of at least 0: {self.seed!r}")


GREEDY = Sampling()


class Sampler:
    """Applies a ``Sampling`` to one sequence of logits. The same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Token id for logits [V]. ``ExecutionError``: they are not finite, which means the device overflowed."""
        best = int(np.argmax(logits))  # the first NaN counts as largest, so this one check finds them all
        if not math.isfinite(logits[best]):
            raise ExecutionError(
                f"logit {best} is {logits[best]}",
                why="a float16 overflow on the device, or damaged weights",
                fix="compare with another backend: isthmus evaluate --backend cpu",
            )
        sampling = self._sampling
        if sampling.temperature == 0 or sampling.top_k == 1:
            return best
        with np.errstate(over="ignore"):  # a tiny temperature makes -inf, whose exp is the 0 it should be
            weights = np.exp((logits.astype(np.float64) - float(logits[best])) / sampling.temperature)
        if sampling.top_k == 0 and sampling.top_p == 1:
            return self._draw(weights)
        ids = _largest(weights, sampling.top_k or len(weights), sampling.top_p)
        return int(ids[self._draw(weights[ids])])

    def _draw(self, weights: NDArray[np.float64]) -> int:
        """Index with probability proportional to its weight; one random number each."""
        edges = np.cumsum(weights)
        return int(min(np.searchsorted(edges, self._random.random() * edges[-1], side="right"), len(edges) - 1))


def _largest(weights: NDArray[np.float64], top_k: int, top_p: float) -> NDArray[np.intp]:
    """Ids of the top-k, then top-p weights, largest first. Sorts no more of the vocabulary than it keeps (times 8)."""
    k = min(top_k, len(weights))
    total = float(weights.sum()) if k == len(weights) else None
    few = k if total is None else min(k, 64)
    while True:
        ids = _top(weights, few)
        reached = np.cumsum(weights[ids])
        goal = top_p * (reached[-1] if total is None else total)
        if few == k or reached[-1] >= goal:
            return ids[: int(np.searchsorted(reached, goal)) + 1]
        few = min(k, few * 8)


def _top(weights: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    """Ids of the k largest, by falling weight, then rising id."""
    border = np.partition(weights, len(weights) - k)[len(weights) - k]
    above = np.flatnonzero(weights > border)
    ids = np.concatenate([above, np.flatnonzero(weights == border)[: k - len(above)]])
    return ids[np.lexsort((ids, -weights[ids]))]
