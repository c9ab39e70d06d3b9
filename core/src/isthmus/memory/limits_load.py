"""The check that ``Device.load`` makes before a vendor library sees anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..errors import OutOfMemoryError
from ..types import MemoryInfo, MemoryRequirements
from .ledger import MemoryLedger

_log = logging.getLogger("isthmus.memory")


def load_books(need: MemoryRequirements, *, weights_lent: bool, workspace_lent: bool) -> dict[str, int]:
    """What the runtime will allocate itself, by book, given what the caller lends."""
    if weights_lent:
        load = need.caller_load if workspace_lent else min(need.own_load, need.caller_load + need.peak_workspace)
    else:
        load = max(need.own_load - (need.peak_workspace if workspace_lent else 0), need.caller_load)
    workspace = 0 if workspace_lent else min(need.peak_workspace, load)
    return {"weights": load - workspace, "workspace": workspace}


def check_load(what: str, books: Mapping[str, int], info: MemoryInfo, ledger: MemoryLedger, *, force: bool) -> None:
    """``OutOfMemoryError`` with a table if ``books`` do not fit into what is free or into the budget.

    With ``force`` a warning is logged instead; the vendor may still refuse.
    """
    need = sum(books.values())
    places = {"are free": info.free, "are left of the budget": ledger.budget.free if ledger.budget else None}
    for where, room in places.items():
        if room is None or need <= room:
            continue
        error = OutOfMemoryError(
            f"{what} needs {need} bytes, {room} {where} ({need - room} short); nothing was allocated\n"
            + _table(books, info, ledger),
            fix="isthmus plan MODEL names what would make it fit; load(..., force=True), or --force, tries all the same",
        )
        if not force:
            raise error
        _log.warning("forced: %s", error.what)


def _table(books: Mapping[str, int], info: MemoryInfo, ledger: MemoryLedger) -> str:
    rows = {f"needed: {book}": size for book, size in books.items()}
    rows |= {f"held: {book}": size for book, size in ledger.books.items() if size}
    if info.free is not None:
        rows["free"] = info.free
    if ledger.budget is not None:
        rows["budget"] = ledger.budget.limit
    return "\n".join(f"  {name:<20} {size:>16}" for name, size in rows.items())
