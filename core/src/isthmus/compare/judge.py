"""From the results of two sides to a verdict. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from ..errors import InputError
from ..types import Tolerance
from .cases import Arrays, Case, Spoken
from .causes import likely_cause
from .metrics import Figures, LogitFigures, as_json, figures, logit_figures, margin
from .side import Steadiness
from .taps import Tap


@attrs.frozen(eq=False)
class Call:
    """What one side computed for one case."""

    case: Case
    outputs: Arrays
    steadiness: Steadiness
    taps: Arrays = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Recording:
    """All one side computed, and who it is."""

    identity: Mapping[str, Any]
    tolerance: Tolerance
    calls: tuple[Call, ...]
    nodes: Mapping[str, tuple[Tap, ...]] = attrs.field(factory=dict)
    """Entry -> its inner tensors, in the order of computation."""
    spoken: Spoken | None = None


@attrs.frozen
class TapVerdict:
    """One inner tensor, or an output measured along with inner tensors."""

    tap: Tap
    figures: Figures


@attrs.frozen
class Divergence:
    """The first tensor below the line, while what it was made from is above it."""

    tap: Tap
    figures: Figures
    cause: str


@attrs.frozen
class CaseVerdict:
    """One case on one backend."""

    case: str
    entry: str
    outputs: Mapping[str, Figures]
    logits: LogitFigures | None
    steadiness: Steadiness
    taps: tuple[TapVerdict, ...]
    first: Divergence | None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every output is within its limit, and the call gives the same bits again."""
        within = all(f.within for f in self.outputs.values())
        return within and self.steadiness.repeats and self.steadiness.forgets


@attrs.frozen
class TextVerdict:
    """Two greedy answers. Never a reason to fail: one coin toss changes all that follows."""

    question: str
    reference: str
    subject: str
    step: int | None
    """First differing token; ``None`` if there is none."""
    reference_margin: float | None
    subject_margin: float | None
    logits: LogitFigures
    """Over the steps up to and including the first difference."""


@attrs.frozen
class Verdict:
    """One backend against the reference."""

    subject: Mapping[str, Any]
    tolerance: Tolerance
    line_db: float
    cases: tuple[CaseVerdict, ...]
    text: TextVerdict | None

    @property
    def passed(self) -> bool:
        """All cases passed."""
        return all(c.passed for c in self.cases)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        cases = [{**attrs.asdict(c, filter=_not_figures), **_figures_json(c)} for c in self.cases]
        text = attrs.asdict(self.text) if self.text else None
        return {**attrs.asdict(self), "cases": cases, "text": text, "passed": self.passed}


def judge(reference: Recording, subject: Recording, line: float) -> Verdict:
    """Compare case by case. ``InputError``: the two were not given the same cases, inputs or shapes."""
    theirs = {call.case.name: call for call in reference.calls}
    names = [call.case.name for call in subject.calls]
    if set(names) != theirs.keys():
        raise InputError(f"the sides ran different cases: {', '.join(sorted(set(names) ^ theirs.keys()))}")
    cases = tuple(judge_call(theirs[c.case.name], c, subject, line) for c in subject.calls)
    return Verdict(subject.identity, subject.tolerance, line, cases, _text(reference.spoken, subject.spoken))


def judge_call(want: Call, got: Call, subject: Recording, line: float) -> CaseVerdict:
    """Compare one case; the first divergence among the taps that both sides have."""
    check_inputs(want.case, got.case)
    if want.outputs.keys() != got.outputs.keys():
        raise InputError(f"case {got.case.name}: outputs {', '.join(want.outputs.keys() ^ got.outputs.keys())} differ")
    outputs = {n: figures(a, want.outputs[n], subject.tolerance) for n, a in got.outputs.items()}
    logits = logit_figures(got.outputs["logits"], want.outputs["logits"]) if "logits" in outputs else None
    taps = tuple(
        TapVerdict(tap, figures(got.taps[tap.name], want.taps[tap.name], subject.tolerance))
        for tap in subject.nodes.get(got.case.entry, ())
        if tap.name in got.taps and tap.name in want.taps
    )
    first = next((t for t in taps if t.figures.sqnr_db < line), None)
    found = None
    if first and not all(f.within for f in outputs.values()):
        name = first.tap.name
        cause = likely_cause(first.tap, first.figures, got.taps[name], want.taps[name])
        found = Divergence(first.tap, first.figures, cause)
    return CaseVerdict(got.case.name, got.case.entry, outputs, logits, got.steadiness, taps, found)


def check_inputs(want: Case, got: Case) -> None:
    """``InputError`` unless both cases hold the same values, up to the element type the two sides take."""
    for name, array in want.inputs.items():
        other = got.inputs.get(name)
        if other is None or other.shape != array.shape:
            raise InputError(f"case {got.name}: input {name} is missing or of another shape")
        kind = min((array.dtype, other.dtype), key=lambda d: d.itemsize)
        if not np.array_equal(array.astype(kind), other.astype(kind), equal_nan=kind.kind == "f"):
            raise InputError(f"case {got.name}: the sides were given different values for input {name}")


def _text(want: Spoken | None, got: Spoken | None) -> TextVerdict | None:
    if want is None or got is None:
        return None
    pairs = zip(want.ids, got.ids)
    step = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    count = min(len(want.ids), len(got.ids)) if step is None else step + 1
    return TextVerdict(
        question=want.question,
        reference=want.text,
        subject=got.text,
        step=step,
        reference_margin=None if step is None else margin(want.logits[step]),
        subject_margin=None if step is None else margin(got.logits[step]),
        logits=logit_figures(got.logits[:count], want.logits[:count]),
    )


def _not_figures(field: Any, _: Any) -> bool:
    return field.name not in ("outputs", "taps", "first")


def _figures_json(case: CaseVerdict) -> dict[str, Any]:
    first = case.first
    return {
        "passed": case.passed,
        "outputs": {name: as_json(f) for name, f in case.outputs.items()},
        "taps": [{**attrs.asdict(t.tap), "figures": as_json(t.figures)} for t in case.taps],
        "first": {**attrs.asdict(first.tap), "figures": as_json(first.figures), "cause": first.cause}
        if first
        else None,
    }
