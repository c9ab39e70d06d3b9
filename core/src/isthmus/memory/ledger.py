"""Who holds how much memory of a device, what the most was, and what changed in each phase of the work."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import attrs

from ..errors import InputError
from ..types import Granted
from .budget import BOOKS, MemoryBudget

_PACKAGE = str(Path(__file__).parents[1])
_PASSING = {__file__, contextlib.__file__, *(str(Path(_PACKAGE, name)) for name in ("device.py", "_lifetime.py"))}
_log = logging.getLogger("isthmus.memory")


@attrs.frozen
class Record:
    """One live allocation: a buffer, or what a runtime states it takes for a program."""

    book: str
    owner: str
    size: int
    """Bytes charged."""
    granted: Granted
    site: str | None = None
    """Where the caller asked for it, ``file:line``; only if call sites are recorded."""

    def __str__(self) -> str:
        where = f" ({self.site})" if self.site else ""
        return f"{self.size} bytes of {self.book} for {self.owner or 'its caller'}{where}"


@attrs.frozen
class BookFigures:
    """Bytes of one book."""

    live: int
    peak: int


@attrs.frozen
class PhaseFigures:
    """A phase of the work: what it left behind, and the most that was live during it, in bytes."""

    name: str
    delta: int
    peak: int


@attrs.frozen
class MemoryReport:
    """The state of a ledger."""

    books: Mapping[str, BookFigures]
    live: int
    peak: int
    allocations: Sequence[Record]
    phases: Sequence[PhaseFigures]


class MemoryLedger:
    """Books of one device. Kept under the device's lock; reports may be taken from any thread.

    With a ``budget`` everything recorded here is reserved there first, so that the limit is never exceeded.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.budget: MemoryBudget | None = None
        self.sites = False
        """Whether to record the Python call site of every allocation."""
        self._live: dict[int, list[Record]] = {}
        self._books = dict.fromkeys(BOOKS, 0)
        self._peaks = dict.fromkeys(BOOKS, 0)
        self._total = self._peak = 0
        self._phases: list[PhaseFigures] = []
        self._phase_peaks: list[int] = []

    def reserve(self, book: str, size: int, owner: str) -> None:
        """Take ``size`` bytes of the budget, before anything is allocated. ``OutOfMemoryError`` shows its books."""
        if book not in self._books:
            raise InputError(f"no book {book!r}; there are: {', '.join(BOOKS)}")
        if self.budget is not None:
            self.budget.reserve(book, size, owner)

    def give_back(self, book: str, size: int) -> None:
        """Undo ``reserve`` for what was not allocated after all."""
        if self.budget is not None:
            self.budget.release(book, size)

    def add(self, ticket: int, book: str, size: int, owner: str, granted: Granted = Granted.UNKNOWN) -> None:
        """Record an allocation under the handle's ticket. What it takes of the budget has been reserved."""
        site = _call_site() if self.sites else None
        self._live.setdefault(ticket, []).append(Record(book, owner, size, granted, site))
        self._books[book] += size
        self._total += size
        self._peaks[book] = max(self._peaks[book], self._books[book])
        self._peak = max(self._peak, self._total)
        self._phase_peaks = [max(p, self._total) for p in self._phase_peaks]

    def remove(self, ticket: int) -> None:
        """Forget all that was recorded under a ticket; nothing if nothing was."""
        for record in self._live.pop(ticket, ()):
            self._books[record.book] -= record.size
            self._total -= record.size
            self.give_back(record.book, record.size)

    def warn_live(self) -> None:
        """Log what is still held when the device closes; the device gives it back itself."""
        if records := self.records():
            named = "; ".join(map(str, records[:8])) + ("; ..." if len(records) > 8 else "")
            _log.warning("device %s is closed with %d live allocation(s): %s", self.name, len(records), named)

    def records(self) -> list[Record]:
        """Live allocations, oldest first."""
        return [record for records in list(self._live.values()) for record in records]

    @property
    def live(self) -> int:
        """Bytes held now."""
        return self._total

    @property
    def books(self) -> Mapping[str, int]:
        """Bytes held now, by book."""
        return dict(self._books)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note what the work inside leaves behind, and its peak. Phases of one name are noted once each, the last 64."""
        before = self._total
        self._phase_peaks.append(before)
        try:
            yield
        finally:
            self._phases.append(PhaseFigures(name, self._total - before, self._phase_peaks.pop()))
            del self._phases[:-64]

    def report(self) -> MemoryReport:
        """Books, live allocations and phases."""
        books = {book: BookFigures(self._books[book], self._peaks[book]) for book in BOOKS}
        return MemoryReport(books, self._total, self._peak, self.records(), list(self._phases))


def _call_site() -> str | None:
    """The innermost frame that did not just pass the call on, and the innermost outside this package."""
    frame: FrameType | None = sys._getframe(1)
    inner = None
    while frame is not None:
        file, place = frame.f_code.co_filename, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if file not in _PASSING:
            inner = inner or place.removeprefix(f"{_PACKAGE}{os.sep}")
            if not file.startswith(_PACKAGE):
                return place if inner == place else f"{inner}, from {place}"
        frame = frame.f_back
    return inner
