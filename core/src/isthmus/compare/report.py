"""The comparison as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from .judge import CaseVerdict, Recording, TextVerdict, Verdict

_WIDTH, _HEIGHT = 900, 220
_TOP_DB = 160.0
"""Better than this is drawn at the top."""


def write(reference: Recording, verdicts: Sequence[Verdict]) -> str:
    """HTML with plots as inline SVG and the figures as JSON inside."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["short"] = _short
    template = environment.get_template("report.html.j2")
    return template.render(
        reference=reference.identity,
        verdicts=verdicts,
        passed=all(v.passed for v in verdicts),
        plot=_plot,
        histogram=_histogram,
        text_diff=_text_diff,
        data=_script_json({"verdicts": [v.to_json() for v in verdicts], "reference": dict(reference.identity)}),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plot(case: CaseVerdict, line_db: float) -> dict[str, Any]:
    """Points of the SQNR over the tensors in order of computation, in pixels."""
    count = max(1, len(case.taps) - 1)
    points = [
        {
            "x": round(40 + i * (_WIDTH - 60) / count, 1),
            "y": _y(tap.figures.sqnr_db),
            "bad": tap.figures.sqnr_db < line_db,
            "first": case.first is not None and tap.tap.name == case.first.tap.name,
            "title": f"{tap.tap.name} ({tap.tap.op}): {tap.figures.sqnr_db:.1f} dB",
        }
        for i, tap in enumerate(case.taps)
    ]
    return {"points": points, "path": " ".join(f"{p['x']},{p['y']}" for p in points), "line": _y(line_db)}


def _y(decibels: float) -> float:
    share = min(max(decibels, 0.0), _TOP_DB) / _TOP_DB
    return round(_HEIGHT - 20 - share * (_HEIGHT - 40), 1)


def _histogram(case: CaseVerdict) -> list[dict[str, Any]]:
    """How many of the inner tensors have which SQNR, in steps of 10 dB."""
    values = [min(max(t.figures.sqnr_db, 0.0), _TOP_DB - 1) for t in case.taps]
    counts, edges = np.histogram(values, bins=np.arange(0.0, _TOP_DB + 10, 10))
    tallest = max(1, int(counts.max(initial=0)))
    wide = (_WIDTH - 60) / len(counts)
    return [
        {
            "x": round(40 + i * wide, 1),
            "y": round(90 - 80 * int(n) / tallest, 1),
            "w": round(wide - 2, 1),
            "h": round(80 * int(n) / tallest, 1),
            "title": f"{edges[i]:.0f} to {edges[i + 1]:.0f} dB: {n} tensors",
            "label": f"{edges[i]:.0f}",
        }
        for i, n in enumerate(counts)
    ]


def _text_diff(text: TextVerdict) -> list[tuple[str, str]]:
    """Pieces of both answers: ``same``, ``gone`` (only the reference's) or ``new``."""
    a, b = text.reference, text.subject
    pieces: list[tuple[str, str]] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(a=a, b=b, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", a[i:j]))
            continue
        pieces += [(name, piece) for name, piece in (("gone", a[i:j]), ("new", b[k:m])) if piece]
    return pieces


def _script_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in; not a number becomes text."""
    return json.dumps(_plain(data)).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
