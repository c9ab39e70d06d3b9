"""One reservation of device memory, handed out in blocks.

Best fit with coalescing. A block that comes back with the same owner and size gets its old address if that is free, so
that unloading and loading again moves nothing.
"""

from __future__ import annotations

import bisect
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..errors import InputError, InUseError, OutOfMemoryError
from ..types import Granted, Pages
from .budget import MemoryBudget

if TYPE_CHECKING:
    from ..buffer import Buffer, View
    from ..device import Device


class Block:
    """Memory from a pool; a context manager. ``view`` goes where a buffer goes: bind it, lend it to ``load``."""

    def __init__(self, pool: Pool, offset: int, size: int, book: str, owner: str) -> None:
        self.offset = offset
        self.size = size
        """Bytes charged: what was asked, rounded up to the pool's alignment."""
        self.book = book
        self.owner = owner
        self._pool: Pool | None = pool

    @property
    def view(self) -> View:
        """The memory. ``InputError`` once the block is closed."""
        if self._pool is None:
            raise InputError(f"the block of {self.owner or self.book} is closed")
        return self._pool._buffer[self.offset : self.offset + self.size]

    def close(self) -> None:
        """Give the memory back. Safe to call twice. Programs and bindings that use it must be closed first."""
        if self._pool is not None:
            self._pool._give_back(self)
            self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Pool:
    """A block of ``capacity`` bytes on a device, shared out. Not thread-safe: one pool per thread that allocates."""

    def __init__(
        self,
        device: Device,
        capacity: int,
        *,
        pages: Pages = Pages.NORMAL,
        alignment: int = 64,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.alignment = alignment
        self.capacity = capacity // alignment * alignment
        if self.capacity <= 0:
            raise InputError(f"a pool of {capacity} bytes with alignment {alignment}")
        self.budget = MemoryBudget(self.capacity) if budget is None else budget
        self.high_water = 0
        self._buffer: Buffer = device.allocate(self.capacity, pages, alignment=max(alignment, 64))
        self._free = [
            (self.capacity, 0)
        ]  # (size, offset), sorted: best fit is a bisection, ties take the lowest offset
        self._by_start = {0: self.capacity}
        self._by_end = {self.capacity: 0}
        self._blocks: dict[int, Block] = {}
        self._homes: dict[tuple[str, int], int] = {}

    @property
    def granted(self) -> Granted:
        """Pages the reservation really got."""
        return self._buffer.granted

    @property
    def used(self) -> int:
        """Bytes handed out now."""
        return sum(b.size for b in self._blocks.values())

    @property
    def largest_free(self) -> int:
        """The largest block that can be had now."""
        return self._free[-1][0] if self._free else 0

    @property
    def fragmentation(self) -> float:
        """Share of the free memory that is outside the largest free block; 0 when nothing is free."""
        free = self.capacity - self.used
        return 1 - self.largest_free / free if free else 0.0

    def allocate(self, size: int, *, book: str = "workspace", owner: str = "") -> Block:
        """A block of at least ``size`` (> 0) bytes. ``OutOfMemoryError`` shows the books and the largest free block."""
        if size <= 0:
            raise InputError(f"size must be positive: {size}")
        need = -(-size // self.alignment) * self.alignment
        offset = self._find(need, owner)
        if offset is None:
            raise OutOfMemoryError(
                f"{owner or book} needs {need} bytes; the pool of {self.capacity} has {self.capacity - self.used} free, "
                f"{self.largest_free} of it in one block ({self.budget.describe()})",
                why="the free memory is in pieces" if need <= self.capacity - self.used else None,
                fix="make the pool larger, or see what would fit with: isthmus plan",
            )
        self.budget.reserve(book, need, owner)
        self._take(offset, need)
        block = Block(self, offset, need, book, owner)
        self._blocks[offset] = block
        self._homes[owner, need] = offset
        self.high_water = max(self.high_water, offset + need)
        return block

    def close(self) -> None:
        """Give the reservation back to the device. ``InUseError`` names the blocks that are still out."""
        if self._blocks:
            names = ", ".join(f"{b.owner or b.book} ({b.size})" for b in self._blocks.values())
            raise InUseError(f"the pool still has {len(self._blocks)} block(s) out: {names}", fix="close those first")
        self._buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _find(self, need: int, owner: str) -> int | None:
        home = self._homes.get((owner, need)) if owner else None
        if home is not None and self._covers(home, need):
            return home
        at = bisect.bisect_left(self._free, (need, 0))
        return self._free[at][1] if at < len(self._free) else None

    def _covers(self, offset: int, need: int) -> bool:
        return any(start <= offset and offset + need <= start + size for size, start in self._free)

    def _take(self, offset: int, need: int) -> None:
        size, start = next((s, o) for s, o in self._candidates(need) if o <= offset and offset + need <= o + s)
        self._drop_free(start, size)
        if start < offset:
            self._add_free(start, offset - start)
        if offset + need < start + size:
            self._add_free(offset + need, start + size - offset - need)

    def _candidates(self, need: int) -> list[tuple[int, int]]:
        return self._free[bisect.bisect_left(self._free, (need, 0)) :]

    def _give_back(self, block: Block) -> None:
        del self._blocks[block.offset]
        self.budget.release(block.book, block.size)
        start, end = block.offset, block.offset + block.size
        if end in self._by_start:
            after = self._by_start[end]
            self._drop_free(end, after)
            end += after
        if start in self._by_end:
            before = self._by_end[start]
            self._drop_free(before, start - before)
            start = before
        self._add_free(start, end - start)

    def _add_free(self, start: int, size: int) -> None:
        bisect.insort(self._free, (size, start))
        self._by_start[start] = size
        self._by_end[start + size] = start

    def _drop_free(self, start: int, size: int) -> None:
        del self._free[bisect.bisect_left(self._free, (size, start))]
        del self._by_start[start]
        del self._by_end[start + size]
