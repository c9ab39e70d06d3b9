"""``isthmus explain``: what a vendor's code or log means, and the next step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from ..errors import InputError, IsthmusError
from ..explain import Explanation, Finding, decode, general
from ..registry import registry
from . import flags
from .output import emit, note

_GENERAL = "any"
_SHOWN_LINE = 500


def explain(
    text: Annotated[
        list[str] | None, typer.Argument(help="Codes or lines of a log, e.g. 1002 or 'error:507011'; - is stdin.")
    ] = None,
    file: Annotated[list[Path] | None, typer.Option("--file", "-f", help="A log file; repeat for several.")] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", "-b", help="Only this vendor's tables; default: those of all backends.")
    ] = None,
    json: flags.Json = False,
) -> None:
    """Say what a vendor's code or log line means: likely causes, next step. Exit code 1: nothing in it is known."""
    findings = decode(_lines(text or [], file or []), _tables(backend))
    if not findings:
        emit({"findings": []}, "nothing in this text is known")
        note("give the lines around it: the first error of a log says most; a bare code may need --backend")
        raise typer.Exit(1)
    facts = [{**attrs.asdict(f.explanation), **_where(f)} for f in findings]
    emit({"findings": facts}, *(_lines_of(f) for f in findings))


def _tables(backend: str | None) -> dict[str, Sequence[Explanation]]:
    """A plugin that cannot be imported has no table here, and is named."""
    tables: dict[str, Sequence[Explanation]] = {_GENERAL: general()}
    for name in [backend] if backend else registry().names():
        try:
            tables[name] = registry().backend(name).explanations()
        except IsthmusError as error:
            if backend:
                raise
            note(f"without the tables of {name}: {error}")
    return tables


def _lines(text: list[str], files: list[Path]) -> Iterator[str]:
    if "-" in text or not (text or files):
        yield from sys.stdin.buffer.read().decode("utf-8", "replace").splitlines()
    for part in text:
        if part != "-":
            yield from part.splitlines()
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                yield from lines
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error


def _where(finding: Finding) -> dict[str, Any]:
    return {"backend": finding.backend, "line": finding.line, "number": finding.number, "count": finding.count}


def _lines_of(finding: Finding) -> str:
    row = finding.explanation
    cut = " ..." if len(finding.line) > _SHOWN_LINE else ""
    times = f" (and {finding.count - 1} more such lines)" if finding.count > 1 else ""
    shown = [
        f"{finding.backend}: {row.id}: {row.meaning}",
        f"  line {finding.number}: {finding.line[:_SHOWN_LINE]}{cut}{times}",
    ]
    for rank, cause in enumerate(row.causes, 1):
        shown.append(f"  {rank}. {cause.why}")
        if cause.fix:
            shown.append(f"     next: {cause.fix}")
    return "\n".join([*shown, f"  source: {row.source}", ""])
