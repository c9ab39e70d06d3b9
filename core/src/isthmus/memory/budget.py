"""A limit on memory, kept in books."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError, OutOfMemoryError

BOOKS = ("weights", "activations", "workspace", "io", "kv")


class MemoryBudget:
    """Bytes that may be in use at once, by book. Whoever allocates reserves first; the limit is never exceeded."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise InputError(f"a memory budget of {limit} bytes")
        self.limit = limit
        self.peak = 0
        self._books = dict.fromkeys(BOOKS, 0)

    @property
    def used(self) -> int:
        """Bytes reserved now."""
        return sum(self._books.values())

    @property
    def free(self) -> int:
        """Bytes that can still be reserved."""
        return self.limit - self.used

    @property
    def books(self) -> Mapping[str, int]:
        """Bytes reserved now, by book."""
        return dict(self._books)

    def reserve(self, book: str, size: int, owner: str = "") -> None:
        """Take ``size`` bytes. ``OutOfMemoryError`` shows the books; nothing is taken then."""
        self._check(book, size)
        if size > self.free:
            raise OutOfMemoryError(
                f"{owner or book} needs {size} bytes, the budget of {self.limit} has {self.free} left ({self.describe()})",
                fix="raise the budget, or see what would fit with: isthmus plan",
            )
        self._books[book] += size
        self.peak = max(self.peak, self.used)

    def release(self, book: str, size: int) -> None:
        """Give ``size`` bytes back."""
        self._check(book, size)
        if size > self._books[book]:
            raise InputError(f"releasing {size} bytes of {book}, which holds {self._books[book]}")
        self._books[book] -= size

    def describe(self) -> str:
        """The books in one line."""
        return ", ".join(f"{book} {size}" for book, size in self._books.items())

    def _check(self, book: str, size: int) -> None:
        if book not in self._books:
            raise InputError(f"no book {book!r}; there are: {', '.join(BOOKS)}")
        if size < 0:
            raise InputError(f"size must not be negative: {size}")
