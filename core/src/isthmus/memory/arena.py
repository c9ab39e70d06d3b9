"""Offsets in one arena for tensors with known lifetimes (offline dynamic storage allocation).

The problem is NP-hard; the lower bound is the largest sum of sizes alive at one step. Largest-first first-fit comes
close on neural networks (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020); where
it does not, blocks that end at the peak are moved to the front of the order and placed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

ROUNDS = 200
"""Placements tried per starting order before the best one is taken."""


@attrs.frozen
class Interval:
    """A tensor of ``size`` bytes alive from step ``first`` to step ``last``, both included."""

    name: str
    size: int
    first: int
    last: int


@attrs.frozen
class Arena:
    """Where each interval lies, and how large the arena is."""

    intervals: tuple[Interval, ...]
    offsets: tuple[int, ...]
    size: int
    """Bytes of the arena: the largest end of any block."""
    lower_bound: int
    """No arena can be smaller: the most bytes alive at one step."""


def max_live(intervals: Sequence[Interval], alignment: int = 1) -> int:
    """The most bytes alive at one step, each size rounded up to ``alignment``. O(n log n)."""
    if not intervals:
        return 0
    changes: dict[int, int] = {}
    for i in intervals:
        size = _round_up(i.size, alignment)
        changes[i.first] = changes.get(i.first, 0) + size
        changes[i.last + 1] = changes.get(i.last + 1, 0) - size
    return int(np.cumsum([changes[step] for step in sorted(changes)]).max())


def plan_arena(intervals: Sequence[Interval], alignment: int = 64) -> Arena:
    """Place every interval so that no two alive at once overlap; sizes and offsets are multiples of ``alignment``."""
    bound = max_live(intervals, alignment)
    sizes = np.array([_round_up(i.size, alignment) for i in intervals], np.int64)
    first = np.array([i.first for i in intervals], np.int64)
    last = np.array([i.last for i in intervals], np.int64)
    starts = (
        np.lexsort((first, -sizes)),
        np.argsort(-(sizes * (last - first + 1)), kind="stable"),
        _fullest_step_first(sizes, first, last),
    )
    offsets, top = np.zeros(0, np.int64), 0
    for order in starts if intervals else ():
        found, found_top = _improve(list(map(int, order)), bound, sizes, first, last)
        if not len(offsets) or found_top < top:
            offsets, top = found, found_top
        if top == bound:
            break
    return Arena(tuple(intervals), tuple(int(o) for o in offsets), top, bound)


def _improve(
    order: list[int], bound: int, sizes: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Place; then again and again with a block that ends at the peak moved to the front. The best; deterministic."""
    best = offsets = _place(order, sizes, first, last)
    best_top = _top(offsets, sizes)
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        if best_top == bound:
            break
        peak = np.flatnonzero(offsets + sizes == _top(offsets, sizes))
        mover = int(rng.choice(peak))
        order = [mover, *(i for i in order if i != mover)]
        offsets = _place(order, sizes, first, last)
        if (found := _top(offsets, sizes)) < best_top:
            best, best_top = offsets, found
    return best, best_top


def _fullest_step_first(
    sizes: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Blocks by the fullest step they live in; within a step the longest-lived first, then the largest."""
    live = np.zeros(int(last.max(initial=0)) + 2, np.int64)
    np.add.at(live, first, sizes)
    np.subtract.at(live, last + 1, sizes)
    live = np.cumsum(live)
    fullest = np.array([live[f : e + 1].max() for f, e in zip(first, last)], np.int64)
    return np.lexsort((-sizes, first - last, -fullest))


def _place(
    order: Sequence[int], sizes: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """First fit in the given order: each block at the lowest offset free during its whole life."""
    offsets = np.full(len(sizes), -1, np.int64)
    for i in order:
        rivals = np.flatnonzero((offsets >= 0) & (first <= last[i]) & (first[i] <= last))
        rivals = rivals[np.argsort(offsets[rivals], kind="stable")]
        ends = np.concatenate(([0], np.maximum.accumulate(offsets[rivals] + sizes[rivals])))
        gaps = np.append(offsets[rivals], np.iinfo(np.int64).max) - ends
        offsets[i] = ends[int(np.argmax(gaps >= sizes[i]))]
    return offsets


def _top(offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    return int((offsets + sizes).max()) if len(sizes) else 0


def _round_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
