"""Device memory: allocation with every page policy and what was really granted, copies, free memory by page kind.

Copies to and from the device go through a ring of pinned host memory and are queued on the stream, so that a decode
step with its many small tensors waits once, at its end.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from isthmus.errors import IsthmusError, OutOfMemoryError
from isthmus.spi import Region
from isthmus.types import Granted, MemoryInfo, Pages

from . import _abi, _lib, sizes
from ._lib import Acl
from .context import Context

Explain = Callable[[OutOfMemoryError, int, str], OutOfMemoryError]
"""Adds the books to an out-of-memory error: the error, the bytes asked for, what they were for."""


@attrs.define(eq=False)
class Block:
    """One allocation. ``address`` is aligned as asked; ``base`` is what the vendor gave."""

    base: int
    address: int
    size: int
    charged: int
    granted: Granted
    purpose: str


@attrs.frozen
class Free:
    """Free and total bytes: of all memory, and of the part that can be had in 2 MiB pages; ``None`` is unknown."""

    all: tuple[int, int] | None
    huge: tuple[int, int] | None


class Memory:
    """The memory of one open device."""

    def __init__(self, context: Context, *, p2p: bool, giant_pages: bool, staging: int, explain: Explain) -> None:
        self._context = context
        self._p2p = p2p
        self._giant = giant_pages
        self._explain = explain
        self.blocks: dict[int, Block] = {}
        with context.entered() as acl:
            mode, out = _lib.new(_lib.INT)
            acl.aclrtGetRunMode(out)
            self._on_device = mode.value == _abi.ACL_DEVICE
            # On a board whose host is the card, pinned memory has been seen to fail DMA (onnxruntime #15677).
            self._ring = None if self._on_device or not staging else Ring(acl, staging)

    def info(self) -> MemoryInfo:
        """As ``DeviceDriver.memory_info``."""
        free = self.free_by_kind()
        page = sizes.HUGE_PAGE
        return MemoryInfo(
            total=free.all[1] if free.all else None,
            free=free.all[0] if free.all else None,
            huge_page_size=page,
            huge_pages_total=free.huge[1] // page if free.huge else None,
            huge_pages_free=free.huge[0] // page if free.huge else None,
        )

    def free_by_kind(self) -> Free:
        """Ask the device; a total of 0 means that it does not know this kind."""
        with self._context.entered() as acl:
            return _free(acl)

    def allocate(self, size: int, pages: Pages, alignment: int, purpose: str) -> Block:
        """Allocate device memory. ``OutOfMemoryError`` carries the books."""
        extra = alignment if alignment > sizes.ALIGNMENT else 0
        policy = self._policy(pages)
        with self._context.entered() as acl:
            before = _free(acl)
            pointer, out = _lib.new(_lib.POINTER)
            try:
                acl.aclrtMalloc(out, size + extra, policy)
            except OutOfMemoryError as error:
                raise self._explain(_by_policy(error, size, pages, before), size, purpose) from error
            base: int = pointer.value
            try:
                granted, charged = _granted(policy, size + extra, before, _free(acl))
            except IsthmusError:
                acl.aclrtFree(base)
                raise
        address = sizes.up(base, alignment)
        block = Block(base, address, size + extra - (address - base), charged, granted, purpose)
        self.blocks[base] = block
        return block

    def free(self, block: Block) -> None:
        """Give a block back; what is queued on the stream may still use it, and the vendor does not wait."""
        del self.blocks[block.base]
        with self._context.entered() as acl, self._context.drained():
            acl.aclrtFree(block.base)

    def write(self, region: Region, data: memoryview) -> None:
        """Host to device. Queued if it fits the ring, else waited for."""
        target = region.handle.address + region.offset
        source, kept = _lib.host_address(data)
        with self._context.entered() as acl:
            slot = self._slot(region.size)
            if slot is None:
                self._context.drain()
                acl.aclrtMemcpy(target, region.size, source, region.size, self._kind(_abi.ACL_MEMCPY_HOST_TO_DEVICE))
            else:
                _lib.move(slot, source, region.size)
                self._queue(acl, target, slot, region.size, _abi.ACL_MEMCPY_HOST_TO_DEVICE)
        del kept

    def read(self, region: Region, out: memoryview) -> None:
        """Device to host, after all that is queued."""
        source = region.handle.address + region.offset
        target, kept = _lib.host_address(out)
        with self._context.entered() as acl:
            slot = self._slot(region.size)
            if slot is None:
                self._context.drain()
                acl.aclrtMemcpy(target, region.size, source, region.size, self._kind(_abi.ACL_MEMCPY_DEVICE_TO_HOST))
            else:
                self._queue(acl, slot, source, region.size, _abi.ACL_MEMCPY_DEVICE_TO_HOST)
                self._context.wait()
                _lib.move(target, slot, region.size)
        del kept

    def copy(self, dst: Region, src: Region) -> None:
        """Within the device; queued."""
        with self._context.entered() as acl:
            target, source = dst.handle.address + dst.offset, src.handle.address + src.offset
            self._queue(acl, target, source, dst.size, _abi.ACL_MEMCPY_DEVICE_TO_DEVICE)

    def close(self) -> None:
        """Release the ring. Blocks are the core's to free."""
        if self._ring is not None:
            with self._context.entered() as acl:
                acl.aclrtFreeHost(self._ring.address)
            self._ring = None

    def _queue(self, acl: Acl, target: int, source: int, size: int, kind: int) -> None:
        acl.aclrtMemcpyAsync(target, size, source, size, self._kind(kind), self._context.stream)
        self._context.queued()

    def _slot(self, size: int) -> int | None:
        """Pinned memory for a transfer; waits for the stream when the ring has come round."""
        if self._ring is None or size > self._ring.size:
            return None
        if not self._ring.has(size):
            self._context.wait()
            self._ring.reset()
        return self._ring.take(size)

    def _kind(self, kind: int) -> int:
        return _abi.ACL_MEMCPY_DEVICE_TO_DEVICE if self._on_device else kind

    def _policy(self, pages: Pages) -> int:
        if self._giant and pages is Pages.REQUIRE_HUGE:
            return _abi.ACL_MEM_MALLOC_HUGE1G_ONLY_P2P if self._p2p else _abi.ACL_MEM_MALLOC_HUGE1G_ONLY
        return _POLICIES[pages][self._p2p]


_POLICIES = {
    Pages.NORMAL: (_abi.ACL_MEM_MALLOC_NORMAL_ONLY, _abi.ACL_MEM_MALLOC_NORMAL_ONLY_P2P),
    Pages.PREFER_HUGE: (_abi.ACL_MEM_MALLOC_HUGE_FIRST, _abi.ACL_MEM_MALLOC_HUGE_FIRST_P2P),
    Pages.REQUIRE_HUGE: (_abi.ACL_MEM_MALLOC_HUGE_ONLY, _abi.ACL_MEM_MALLOC_HUGE_ONLY_P2P),
}
_PAGE_OF = {
    _abi.ACL_MEM_MALLOC_NORMAL_ONLY: (Granted.NORMAL, sizes.PAGE),
    _abi.ACL_MEM_MALLOC_NORMAL_ONLY_P2P: (Granted.NORMAL, sizes.PAGE),
    _abi.ACL_MEM_MALLOC_HUGE_ONLY: (Granted.HUGE, sizes.HUGE_PAGE),
    _abi.ACL_MEM_MALLOC_HUGE_ONLY_P2P: (Granted.HUGE, sizes.HUGE_PAGE),
    _abi.ACL_MEM_MALLOC_HUGE1G_ONLY: (Granted.HUGE, sizes.GIANT_PAGE),
    _abi.ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: (Granted.HUGE, sizes.GIANT_PAGE),
}
"""Policies that leave no choice."""


class Ring:
    """Pinned host memory, handed out front to back."""

    def __init__(self, acl: Acl, size: int) -> None:
        pointer, out = _lib.new(_lib.POINTER)
        acl.aclrtMallocHost(out, size)
        self.address: int = pointer.value
        self.size = size
        self._used = 0

    def has(self, size: int) -> bool:
        """Whether a slot can be taken without waiting."""
        return self._used + size <= self.size

    def take(self, size: int) -> int:
        """Address of a slot."""
        slot = self.address + self._used
        self._used = sizes.up(self._used + size, sizes.ALIGNMENT)
        return slot

    def reset(self) -> None:
        """All slots are free again: nothing queued uses one."""
        self._used = 0


def _free(acl: Acl) -> Free:
    return Free(
        _kind_free(acl, _abi.ACL_HBM_MEM, _abi.ACL_DDR_MEM),
        _kind_free(acl, _abi.ACL_HBM_MEM_HUGE, _abi.ACL_DDR_MEM_HUGE),
    )


def _kind_free(acl: Acl, *attributes: int) -> tuple[int, int] | None:
    """Free and total; chips with DDR answer 0 for HBM, or redirect it."""
    for attribute in attributes:
        free, free_out = _lib.new(_lib.SIZE)
        total, total_out = _lib.new(_lib.SIZE)
        acl.aclrtGetMemInfo(attribute, free_out, total_out)
        if total.value:
            return free.value, total.value
    return None


def _granted(policy: int, size: int, before: Free, after: Free) -> tuple[Granted, int]:
    """Pages and bytes an allocation got. HUGE_FIRST does not say, so the pools are compared; others may disturb them."""
    if policy in _PAGE_OF:
        granted, page = _PAGE_OF[policy]
        return granted, sizes.charged(size, page)
    need = sizes.rounded(size)
    base, huge = sizes.up(need, sizes.PAGE), sizes.up(need, sizes.HUGE_PAGE)
    if need <= sizes.HUGE_FIRST_ABOVE:
        return Granted.NORMAL, base
    if _drop(before.huge, after.huge) == huge:
        return Granted.HUGE, huge
    if _drop(before.all, after.all) == base:
        return Granted.NORMAL, base
    return Granted.UNKNOWN, huge


def _drop(before: tuple[int, int] | None, after: tuple[int, int] | None) -> int | None:
    return None if before is None or after is None else before[0] - after[0]


def _by_policy(error: OutOfMemoryError, size: int, pages: Pages, before: Free) -> OutOfMemoryError:
    """Say what a page policy had to do with it."""
    if pages is not Pages.REQUIRE_HUGE:
        return error
    pool = f"{before.huge[0]} bytes free in huge pages" if before.huge else "the free huge pages are unknown"
    rest = f", {before.all[0]} bytes free in all" if before.all else ""
    return OutOfMemoryError(
        f"no {size} bytes in huge pages: {pool}{rest}",
        why="REQUIRE_HUGE takes 2 MiB pages only (1 KiB costs 2 MiB too); their pool is smaller than the memory and does not grow",
        fix="allocate with PREFER_HUGE, which takes base pages where there are no huge ones and says so",
        status=error.status,
    )
