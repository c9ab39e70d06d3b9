"""What a command prints: results on stdout, everything else on stderr."""

from __future__ import annotations

import json as _json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import IsthmusError
from ..types import Reality

stderr = Console(stderr=True, highlight=False, soft_wrap=True)
stdout = Console(highlight=False, soft_wrap=True)

_json_mode = False
_emitted = False


def json_mode(value: bool) -> bool:
    """Callback of every ``--json`` flag: from here on, results and errors are JSON on stdout."""
    global _json_mode
    _json_mode = value
    return value


def in_json_mode() -> bool:
    """Whether stdout belongs to one JSON document."""
    return _json_mode


def emit(result: Mapping[str, Any], *tables: Table | str) -> None:
    """Print a result once: as JSON in JSON mode, else the tables or lines made for people."""
    global _emitted
    _emitted = True
    if _json_mode:
        print(_json.dumps(_finite(result), indent=1, ensure_ascii=False))
        return
    for table in tables:
        stdout.print(table, markup=False) if isinstance(table, str) else stdout.print(table)


def emitted() -> bool:
    """Whether the command has printed its result."""
    return _emitted


def fail(error: IsthmusError) -> int:
    """Report an error the way the mode asks for; the exit code to leave with."""
    if _json_mode:
        print(_json.dumps({**error.as_dict(), "exit_code": error.exit_code}, indent=1, ensure_ascii=False))
    stderr.print(f"error: {error}", style="red", markup=False)
    return error.exit_code


def note(text: str) -> None:
    """A line on stderr."""
    stderr.print(text, style="dim", markup=False)


def label(reality: Reality) -> str:
    """How results of a device are marked: nothing for silicon, a loud word otherwise."""
    return "" if reality is Reality.REAL else f" [{reality.value}]"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table; numbers are aligned right. Text is shown as it is: brackets are not markup."""
    made = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, name in enumerate(columns):
        numeric = rows and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    return made


def human(size: int | None) -> str:
    """Bytes in binary units: ``1.50 MiB``; ``unknown`` for ``None``."""
    if size is None:
        return "unknown"
    exponent = min(int(math.log2(size)) // 10, 4) if size > 0 else 0
    return f"{size} B" if exponent == 0 else f"{size / 1024**exponent:.2f} {'KMGT'[exponent - 1]}iB"


class Work:
    """One line of progress on stderr: ``step`` renames it, ``report`` moves its bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def step(self, text: str) -> None:
        """Start a new piece of work."""
        self._progress.reset(self._task, total=None, description=text)

    def report(self, done: int, total: int) -> None:
        """``done`` of ``total``."""
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def working() -> Iterator[Work]:
    """Show progress while something long runs; gone when it is done, silent where stderr is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Work(progress)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become ``null``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
