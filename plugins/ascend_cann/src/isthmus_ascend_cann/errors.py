"""Turns AscendCL status codes, ATC's E-codes and the text beside them into errors with a cause and a next step.

The words are in ``data/acl_errors.tsv`` (by code) and ``data/message_codes.tsv`` (by the E-code in a text; ``.`` stands
for any character).
"""

from __future__ import annotations

import functools
import re

import attrs
from isthmus.errors import (
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    InputError,
    IsthmusError,
    OutOfMemoryError,
    UnavailableError,
)
from isthmus.types import VendorStatus

from . import _tables

_KINDS: dict[str, type[IsthmusError]] = {
    "memory": OutOfMemoryError,
    "incompatible": IncompatibleError,
    "input": InputError,
    "unavailable": UnavailableError,
    "execution": ExecutionError,
    "lost": DeviceLostError,
}
_CLASSES = {
    1: "the call, its arguments or the environment are wrong",
    2: "the runtime is short of a resource",
    3: "the state does not allow this now",
    5: "an internal error of CANN, its driver or the device",
}
"""First digit of a code, as the vendor groups them."""
_TEXT_LIMIT = 2000
_RECOGNISED = 200
"""Characters by which old text is found again."""
_CODE = r"E[A-Z0-9]{5}"


@attrs.frozen
class Meaning:
    """What a code says."""

    code: str
    symbol: str
    kind: str
    meaning: str
    cause: str
    fix: str


@functools.cache
def codes() -> dict[int, Meaning]:
    """The table of status codes."""
    return {int(row["code"]): Meaning(**row) for row in _tables.rows("acl_errors.tsv")}


@functools.cache
def messages() -> list[Meaning]:
    """The table of E-codes, the most specific row of a code first; ``.`` stands for any character."""
    rows = _tables.rows("message_codes.tsv")
    return [Meaning(r["pattern"], "", "", r["meaning"], r["cause"], r["fix"]) for r in rows]


def meaning(code: int) -> Meaning:
    """The table's row of an AscendCL status code; an unknown code keeps the meaning of its class."""
    return codes().get(code) or Meaning(
        str(code), "", "execution", _CLASSES.get(code // 100_000, "unknown code"), "", ""
    )


def message_codes(text: str) -> list[str]:
    """The E-codes in a vendor's text, in order, each once. Both layouts: ``EL0004: ...`` and ``Title(EL0004): ...``."""
    found = re.findall(rf"^\s*({_CODE}):|\(({_CODE})\):", text, re.MULTILINE)
    return list(dict.fromkeys(a or b for a, b in found))


def message_meaning(code: str) -> Meaning | None:
    """What an E-code says; the most specific row of the table."""
    return next((m for m in messages() if re.fullmatch(m.code, code)), None)


def is_out_of_memory(code: int, text: str) -> bool:
    """All forms of out of memory: its codes, and EL0004 in the text of any other code (a full card fails to start)."""
    return meaning(code).kind == "memory" or "EL0004" in message_codes(text)


def error(call: str, code: int, text: str) -> IsthmusError:
    """The exception for a failed call. ``text`` is what the vendor said about this very call, or empty."""
    row = meaning(code)
    spoken = [m for c in message_codes(text) if (m := message_meaning(c))]
    kind = OutOfMemoryError if is_out_of_memory(code, text) else _KINDS[row.kind]
    causes = [m.cause or m.meaning for m in spoken] + [row.cause or _CLASSES.get(code // 100_000, "")]
    fixes = [m.fix for m in spoken if m.fix] + [row.fix]
    return kind(
        f"{call} failed: {row.meaning}",
        why="; ".join(dict.fromkeys(c for c in causes if c)) or None,
        fix=next((f for f in fixes if f), None),
        status=VendorStatus(call, code, row.symbol, shorten(text)),
    )


def shorten(text: str, limit: int = _TEXT_LIMIT) -> str:
    """The head and the tail of a long text: the first E-code and the last line matter most."""
    text = text.strip()
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


def new_text(before: str, now: str) -> str:
    """What of ``aclGetRecentErrMsg`` is new: its text is never cleared, new text is put before the old.

    ``before`` was read ahead of the failed call, ``now`` after it. The end of the old text may have fallen off.
    """
    start, at = before[:_RECOGNISED], -1
    while start and (at := now.find(start, at + 1)) >= 0:
        if before.startswith(now[at:]):
            return now[:at].strip()
    return now.strip()
