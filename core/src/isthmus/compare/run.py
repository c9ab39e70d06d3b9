"""Run both sides on the same cases, and look inside where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import attrs
import numpy as np

from .bisect import first_wrong, spread
from .cases import Arrays, Case, Spoken
from .causes import changed_weights
from .judge import Call, CaseVerdict, Recording, Verdict, judge
from .metrics import figures
from .side import Side
from .taps import Tap, taps_of

AT_ONCE = 32
"""Taps per compile: more outputs slow compilers down and change what they fuse."""

Step = Callable[[str], object]


class Taps(StrEnum):
    """How far to look inside."""

    NONE = "none"
    AUTO = "auto"
    """A few tensors of every entry; where an output misses, as many as it takes to find the first."""
    ALL = "all"


def record(side: Side, cases: Sequence[Case], spoken: Spoken | None, step: Step) -> Recording:
    """Run all cases on one side, without taps."""
    calls = []
    for case in cases:
        step(f"{case.name} on {side.label}")
        ran = side.run(case)
        calls.append(Call(case, ran.outputs, ran.steadiness))
    return Recording(side.identity(), side.artifact.manifest.tolerance, tuple(calls), {}, spoken)


def shared_taps(reference: Side, subject: Side, entry: str) -> tuple[Tap, ...]:
    """Tensors that both sides' graphs have, by name and shape; ``inputs`` skip over those that only one side has."""
    assert reference.graphs is not None
    assert subject.graphs is not None
    theirs = {tap.name: tap.shape for tap in taps_of(reference.graphs, entry)}
    ours = taps_of(subject.graphs, entry)
    producers = {tap.name: tap for tap in ours}
    shared = {tap.name for tap in ours if theirs.get(tap.name) == tap.shape}

    def sources(tap: Tap) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name in tap.inputs:
            inner = name in producers and name not in shared
            found |= dict.fromkeys(sources(producers[name]) if inner else (name,))
        return tuple(found)

    return tuple(attrs.evolve(tap, inputs=sources(tap)) for tap in ours if tap.name in shared)


def with_taps(
    side: Side, recording: Recording, nodes: dict[str, tuple[Tap, ...]], names: dict[str, list[str]]
) -> Recording:
    """The recording with tensors ``names`` (by entry) added to those it has."""
    calls = list(recording.calls)
    for entry, wanted in names.items():
        own = [c for c in calls if c.case.entry == entry]
        if not own or not wanted:
            continue
        found = side.taps(entry, wanted, [c.case for c in own])
        calls = [
            attrs.evolve(c, taps={**c.taps, **_pick(found[c.case.name], wanted)}) if c in own else c for c in calls
        ]
    return attrs.evolve(recording, calls=tuple(calls), nodes=nodes)


def _pick(found: Arrays, wanted: Sequence[str]) -> Arrays:
    return {name: found[name] for name in wanted if name in found}


def compare(
    reference: Side, subject: Side, want: Recording, got: Recording, line: float, taps: Taps, step: Step
) -> tuple[Verdict, Recording, Recording]:
    """Judge ``got`` against ``want``; with taps, both are given back with the inner tensors that were looked at."""
    if taps is Taps.NONE or reference.graphs is None or subject.graphs is None:
        return judge(want, got, line), want, got
    nodes = {e: shared_taps(reference, subject, e) for e in {c.case.entry: None for c in got.calls}}
    names = {e: [t.name for t in n] if taps is Taps.ALL else spread(n, AT_ONCE) for e, n in nodes.items() if n}
    sides = [(reference, want), (subject, got)]

    def look(more: dict[str, list[str]]) -> None:
        step(f"looking at {sum(map(len, more.values()))} inner tensors")
        for i, (side, recording) in enumerate(sides):
            sides[i] = side, with_taps(side, recording, nodes, more)

    look(names)
    verdict = judge(sides[0][1], sides[1][1], line)
    for entry in {c.entry: None for c in verdict.cases if not all(f.within for f in c.outputs.values())}:
        index = next(i for i, c in enumerate(verdict.cases) if c.entry == entry and not c.passed)

        def measure(names: Sequence[str], entry: str = entry, index: int = index) -> dict[str, bool]:
            look({entry: list(names)})
            theirs, ours = sides[0][1].calls[index].taps, sides[1][1].calls[index].taps
            both = [n for n in names if n in ours and n in theirs]
            return {n: figures(ours[n], theirs[n], got.tolerance).sqnr_db >= line for n in both}

        known = {t.tap.name: t.figures.sqnr_db >= line for t in verdict.cases[index].taps}
        first_wrong(nodes[entry], measure, at_once=AT_ONCE, known=known)
    want, got = sides[0][1], sides[1][1]
    verdict = judge(want, got, line)
    cases = tuple(_explained(c, reference, subject, got) for c in verdict.cases)
    return attrs.evolve(verdict, cases=cases), want, got


def _explained(case: CaseVerdict, reference: Side, subject: Side, got: Recording) -> CaseVerdict:
    """The verdict with what the graphs say of the node, and whether looking inside changed the outputs."""
    notes: list[str] = []
    call = next(c for c in got.calls if c.case.name == case.case)
    if not all(f.within for f in case.outputs.values()):
        if case.first is None:
            notes.append("no inner tensor falls below the line: the error grows gradually, or goes away with taps")
        for name in case.outputs.keys() & call.taps.keys():
            if not np.array_equal(call.taps[name], call.outputs[name], equal_nan=True):
                notes.append(f"{name} is not the same with taps: the compiler fuses differently then")
    if lost := sorted(reference.untappable | subject.untappable):
        notes.append(f"not looked at, the compiler needs them inside: {', '.join(lost)}")
    first = case.first
    if first is not None and reference.graphs is not None and subject.graphs is not None:
        lines = changed_weights(reference.graphs, subject.graphs, case.entry, first.tap)
        if lines:
            case = attrs.evolve(case, first=attrs.evolve(first, cause="; ".join(lines)))
    return attrs.evolve(case, notes=tuple(notes))


def tap_all(side: Side, recording: Recording, taps: Taps) -> Recording:
    """The recording with inner tensors, for a judge elsewhere: all, or about as many as fit one compile per entry."""
    if taps is Taps.NONE or side.graphs is None:
        return recording
    graphs = side.graphs
    nodes = {e: tuple(taps_of(graphs, e)) for e in {c.case.entry: None for c in recording.calls}}
    names = {e: [t.name for t in n] if taps is Taps.ALL else spread(n, AT_ONCE) for e, n in nodes.items() if n}
    return with_taps(side, recording, nodes, names)
