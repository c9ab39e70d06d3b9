"""Finds in a text what the tables explain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from .explanation import Explanation

LINE_LIMIT = 8192
"""Characters of a line that are searched."""

# A number counts as a code only where a code may stand: behind such a word, behind the name of a vendor's call, as the
# first thing of a line, or in hexadecimal.
_WORD = r"(?:code|err|error|errno|status|result|ret|retcode|rc|returns|returned|returning|failed|failure|exception)"
_GAP = r"[\s:=,;(\[\"'#>-]{0,4}(?:(?:is|with|code|value)\b[\s:=]{0,3})?"
_NUMBER = r"(?P<{0}>0[xX][0-9a-fA-F]{{1,8}}|\d{{4,6}})(?![\w.])"
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?i:(?<![a-z]){_WORD}|_ERROR|Error){_GAP}{_NUMBER.format('n')}",
        r"\b(?:rt|acl|aclrt|aclmdl|ge|Qnn|qnn)[A-Z_]\w*\W{1,4}" + _NUMBER.format("n"),
        r"(?:;|->)\s*" + _NUMBER.format("n"),
        r"^\s*" + _NUMBER.format("n") + r"\s*(?:$|[:;(,])",
        r"(?<![\w.])(?P<n>0[xX][0-9a-fA-F]{3,8})(?![\w.])",
    )
)
_SYMBOL = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|\bE[A-Z0-9]\d{4}\b")


@attrs.frozen
class Finding:
    """A line of the text and what it means."""

    backend: str
    """Whose table knew it."""
    explanation: Explanation
    line: str
    """The vendor's own words, the first line that says so."""
    number: int
    """Of that line, from 1."""
    count: int
    """How many lines say so."""


def decode(lines: Iterable[str], tables: Mapping[str, Sequence[Explanation]]) -> tuple[Finding, ...]:
    """What ``tables`` (by backend) know about a text, what says most about the cause first.

    A line that names a cause goes before a code, a code before a catch-all; otherwise the order is that of the text.
    Lines may be of any length; ``LINE_LIMIT`` characters of each are searched.
    """
    index = _Index(tables)
    found: dict[tuple[str, str], Finding] = {}
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        for backend, row in index.explain(line[:LINE_LIMIT]):
            known = found.get((backend, row.id))
            found[backend, row.id] = (
                attrs.evolve(known, count=known.count + 1) if known else Finding(backend, row, line, number, 1)
            )
    return tuple(sorted(found.values(), key=lambda f: (*_generality(f.explanation), f.number)))


def _generality(row: Explanation) -> tuple[bool, bool]:
    return row.catch_all, not row.pattern


_Row = tuple[str, Explanation]


class _Index:
    """Tables by what they are looked up with; a log may have millions of lines, most of them seen before."""

    def __init__(self, tables: Mapping[str, Sequence[Explanation]]) -> None:
        self._codes: dict[int, list[_Row]] = {}
        self._symbols: dict[str, list[_Row]] = {}
        self._patterns: list[tuple[re.Pattern[str], _Row]] = []
        for backend, rows in tables.items():
            for row in rows:
                self._add(backend, row)

    def explain(self, line: str) -> list[_Row]:
        """Each row that explains the line, once."""
        rows = [row for code in _codes_in(line) for row in self._codes.get(code, ())]
        rows += [row for symbol in _SYMBOL.findall(line) for row in self._symbols.get(symbol, ())]
        rows += [row for pattern, row in self._patterns if pattern.search(line)]
        return list({(backend, row.id): (backend, row) for backend, row in rows}.values())

    def _add(self, backend: str, row: Explanation) -> None:
        for code in row.codes:
            self._codes.setdefault(code, []).append((backend, row))
        for symbol in row.symbols:
            self._symbols.setdefault(symbol, []).append((backend, row))
        if row.pattern:
            self._patterns.append((re.compile(row.pattern), (backend, row)))


def _codes_in(line: str) -> list[int]:
    """Numbers that stand where a code may stand, in the order of the text, each once."""
    found = sorted((m.start("n"), m["n"]) for place in _PLACES for m in place.finditer(line))
    return list(dict.fromkeys(int(text, 16) if text[:2].lower() == "0x" else int(text) for _, text in found))
