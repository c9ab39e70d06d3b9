"""Find the first tensor that is wrong while everything it was made from is right, with few taps at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from .taps import Tap

Measure = Callable[[Sequence[str]], Mapping[str, bool]]
"""Whether each of these tensors is right; those that cannot be looked at are left out. A call costs a compile and a run."""


def spread(taps: Sequence[Tap], count: int) -> list[str]:
    """At most ``count`` (>= 1) names, evenly spaced, the last one always among them."""
    step = max(1, -(-len(taps) // count))
    return [tap.name for tap in taps[::-1][::step]][::-1]


def first_wrong(taps: Sequence[Tap], measure: Measure, *, at_once: int, known: Mapping[str, bool]) -> Tap | None:
    """The first wrong tensor, or ``None`` if none of those measured is wrong.

    ``taps`` are in the order of computation. ``known`` are results there already. A tensor before the last right one
    of the order may be wrong too (another branch); therefore the answer's own inputs are measured before it is given.
    """
    results: dict[str, bool | None] = dict(known)
    by_name = {tap.name: tap for tap in taps}

    def ask(names: Collection[str]) -> None:
        if missing := [n for n in names if n not in results]:
            results.update({**dict.fromkeys(missing), **measure(missing)})

    if not any(tap.name in results for tap in taps):
        ask(spread(taps, at_once))
    while True:
        wrong = next((i for i, tap in enumerate(taps) if results.get(tap.name) is False), None)
        if wrong is None:
            return None
        right = max((i for i in range(wrong) if results.get(taps[i].name)), default=-1)
        between = [tap for tap in taps[right + 1 : wrong] if tap.name not in results]
        if between:
            ask(spread(between, at_once))
            continue
        inputs = [name for name in taps[wrong].inputs if name in by_name and name not in results]
        if not inputs:
            return taps[wrong]
        ask(inputs)
