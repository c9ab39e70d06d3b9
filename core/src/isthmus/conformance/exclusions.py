"""The two lists by which a backend asks the suite to treat it, see ``isthmus.types.ConformanceProfile``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from ..types import ConformanceProfile

HERE = Path(__file__).parent
EVERY_CASE = "every_case"
"""Marks the tests that run for every model case; only they can be unsupported."""
UNSUPPORTED = "unsupported: "


def test_name(item: pytest.Item) -> str:
    """``module::test[parameter]``."""
    return f"{item.path.stem}::{item.name}"


def reason(patterns: Mapping[str, str], name: str) -> str | None:
    """The reason of the first pattern that matches. ``*`` is any text; ``[`` and ``]`` are themselves."""
    for pattern, why in patterns.items():
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name):
            return why
    return None


def apply(profile: ConformanceProfile, items: Iterable[pytest.Item]) -> None:
    """Mark tests by the lists. ``UsageError``: a list excuses a promise, gives no reason, or matches no test."""
    items = list(items)
    for item in items:
        name = test_name(item)
        if (why := reason(profile.unsupported, name)) is not None:
            if item.get_closest_marker(EVERY_CASE) is None:
                raise pytest.UsageError(f"{name} is a promise, not a model case: it cannot be unsupported ({why})")
            item.add_marker(pytest.mark.skip(reason=UNSUPPORTED + why))
        elif (why := reason(profile.expected_failures, name)) is not None:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))
    _check(profile, items)


def _check(profile: ConformanceProfile, items: list[pytest.Item]) -> None:
    entries = {**profile.unsupported, **profile.expected_failures}
    if silent := [pattern for pattern, why in entries.items() if not why.strip()]:
        raise pytest.UsageError(f"excluded without a reason: {', '.join(silent)}")
    whole = {item.path for item in items} == set(HERE.glob("test_*.py"))
    names = [test_name(item) for item in items]
    unused = [pattern for pattern in entries if not any(reason({pattern: "."}, name) for name in names)]
    if whole and unused:
        raise pytest.UsageError(f"excluded tests that do not exist: {', '.join(unused)}")
