"""Names of Ascend chips: what ``--soc_version`` takes, and the mistakes made with it.

Source of the table: ``data/platform_config`` of CANN 8.1.RC1. Chips it does not have yet are taken from the installed
toolkit's own ``platform_config``, and none of their rules is then known.
"""

from __future__ import annotations

import difflib
import functools

import attrs
from isthmus.errors import InputError

from . import _tables, toolkit

DEFAULT = "Ascend910B4"


@attrs.frozen
class Soc:
    """One chip. ``None`` is unknown."""

    name: str
    """Our target name; equal to ``version`` but for the ambiguous Ascend910B."""
    family: str | None
    """310, 310B, 310P, 910 (first generation), A2 or A3."""
    version: str
    """Value of ``--soc_version`` and of ``aclrtGetSocName``."""
    memory_gib: float | None
    range_shapes: bool | None
    """Whether it runs models with ranges (``1~8``) in their shapes."""
    bf16: bool | None


def names() -> list[str]:
    """All target names, the default first."""
    known = list(_table())
    return known + sorted(toolkit.platform_names() - {s.version for s in _table().values()})


def find(name: str) -> Soc:
    """The chip of a target name. ``InputError`` explains the classic mistakes and names near matches."""
    if soc := _table().get(name):
        return soc
    if name == "Ascend910B":
        raise InputError(
            "Ascend910B is the first-generation 910, not the A2 generation that is commonly called 910B",
            why="an A2 chip needs its full name; an .om for Ascend910B does not load on it",
            fix="use Ascend910B1, B2, B3 or B4 as `npu-smi info` names it; for the old part: Ascend910B-gen1",
        )
    if name in toolkit.platform_names():
        return Soc(name, None, name, None, None, None)
    raise InputError(f"no target {name!r}", why=_mistake(name), fix=f"use one of: {', '.join(names())}")


def of_version(version: str) -> Soc:
    """The chip that ``aclrtGetSocName`` names; an unlisted one is taken as it is."""
    found = next((s for s in _table().values() if s.version == version), None)
    return found or Soc(version, None, version, None, None, None)


@functools.cache
def _table() -> dict[str, Soc]:
    socs = [
        Soc(
            row["name"],
            row["family"],
            row["soc_version"],
            float(row["memory_gib"]) if row["memory_gib"] else None,
            row["range_shapes"] == "yes",
            row["bf16"] == "yes",
        )
        for row in _tables.rows("soc.tsv")
    ]
    return {s.name: s for s in socs}


_FAMILIES = {
    "310p": "Ascend310P is a family; its chips are Ascend310P1, P3, P5 and P7 (Atlas 300I Duo: Ascend310P3)",
    "310b": "Ascend310B is a family; its chips are Ascend310B1 to B4",
    "910": "Ascend910 is a family: first generation Ascend910A and Pro, A2 Ascend910B1 to B4, A3 Ascend910_93xx",
    "910b": "A2 chips are Ascend910B1 to B4; Ascend910B alone is the first generation",
    "910c": "910C is a product name; its chips are Ascend910_9362 to Ascend910_9392 (A3)",
    "910_93": "A3 chips have four digits: Ascend910_9362 to Ascend910_9392",
}


def _mistake(name: str) -> str | None:
    bare = name.lower().removeprefix("ascend").strip("-_ ")
    if bare in _FAMILIES:
        return _FAMILIES[bare]
    short = {n.lower().removeprefix("ascend"): n for n in names()}
    near = difflib.get_close_matches(bare, short, n=1)
    return f"did you mean {short[near[0]]}?" if near else None
