"""One row of an error table."""

from __future__ import annotations

import attrs


@attrs.frozen
class Cause:
    """Why something probably happened, and what to do about it; ``fix`` may be empty."""

    why: str
    fix: str = ""


@attrs.frozen
class Explanation:
    """What one code or one kind of log line means.

    A line is explained when it holds one of ``codes`` where a code may stand (``error 1002``, ``status 0x3ea``), one
    of ``symbols`` as a whole word, or a match of ``pattern`` (``re`` syntax).
    """

    id: str
    meaning: str
    source: str
    """Where this is known from."""
    causes: tuple[Cause, ...] = ()
    """The likeliest first."""
    codes: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()
    pattern: str = ""
    catch_all: bool = False
    """The vendor reports many different things this way: any other explanation of the same text says more."""
