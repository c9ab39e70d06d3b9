"""Buffers that two processes can map: memfd pages here, DSP memory on a chip."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from isthmus.errors import OutOfMemoryError
from isthmus.types import Granted, MemoryInfo, Pages

from . import _lib


class Memory:
    """Mapped memory: ``bytes`` is a writable view of the ``size`` usable bytes, ``address`` their first.

    ``fd`` and ``offset`` are what another process needs to map the same bytes; ``length`` is what ``fd`` spans. A view
    somebody still holds keeps host pages mapped, so that it never dangles.
    """

    def __init__(self, mapping: _lib.Addressed, fd: int, offset: int, size: int, granted: Granted) -> None:
        whole = np.asarray(mapping)
        usable = whole[offset : offset + size]
        self.length: int = whole.size
        self.address: int = usable.ctypes.data
        self.bytes: memoryview = usable.data
        self.fd, self.offset, self.size, self.granted = fd, offset, size, granted

    def close_fd(self) -> None:
        """Give up the file descriptor, once whoever needs it has it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Let go of the memory."""
        self.close_fd()
        self.bytes = memoryview(b"")


class HostMemory:
    """Makes buffers of host pages."""

    registered = False

    def allocate(self, size: int, pages: Pages, alignment: int) -> Memory:
        """Pages are committed here: later there is no error to report, only a signal.

        ``OutOfMemoryError``: more than is free, or no huge pages where they are required.
        """
        if pages is not Pages.NORMAL and (found := _huge(size, alignment)):
            return found
        if pages is Pages.REQUIRE_HUGE:
            info = host_memory()
            raise OutOfMemoryError(
                f"no huge pages for {size} bytes: {info.huge_pages_free} of {info.huge_pages_total} pages of "
                f"{info.huge_page_size} bytes are free",
                fix="reserve some: sysctl vm.nr_hugepages=N; or ask for prefer_huge",
            )
        extra = max(0, alignment - mmap.PAGESIZE)
        return _memfd(_rounded(size, mmap.PAGESIZE) + extra, size, alignment, Granted.NORMAL)


class DspMemory:
    """Makes buffers the DSP can use in place. Untested on silicon."""

    registered = True

    def __init__(self, rpc: _lib.RpcMemory) -> None:
        self._rpc = rpc

    def allocate(self, size: int, pages: Pages, alignment: int) -> Memory:
        """Pages are the kernel driver's choice. ``OutOfMemoryError``: the driver has no more."""
        length = _rounded(size, mmap.PAGESIZE) + max(0, alignment - mmap.PAGESIZE)
        address, fd = self._rpc.allocate(length)
        if not address or fd < 0:
            raise OutOfMemoryError(f"the DSP driver has no {length} bytes", why="rpcmem_alloc failed")
        return _DspBuffer(self._rpc, address, fd, length, size, alignment)


class _DspBuffer(Memory):
    def __init__(self, rpc: _lib.RpcMemory, base: int, fd: int, length: int, size: int, alignment: int) -> None:
        super().__init__(_lib.Addressed(base, length), fd, -base % alignment, size, Granted.UNKNOWN)
        self._rpc, self._base = rpc, base

    def close_fd(self) -> None:
        """The descriptor is the driver's and lives as long as the memory."""

    def release(self) -> None:
        """Free it in the driver, so that a view somebody still holds does dangle."""
        super().release()
        self._rpc.free(self._base)


def map_shared(fd: int, length: int, offset: int, size: int, granted: Granted) -> Memory:
    """Map what another process allocated; takes over ``fd``. ``OutOfMemoryError``: it cannot be mapped here."""
    try:
        return Memory(_lib.map_shared(fd, length), -1, offset, size, granted)
    except OSError as error:
        raise OutOfMemoryError(f"{length} bytes cannot be mapped: {error}") from error
    finally:
        os.close(fd)


def host_memory() -> MemoryInfo:
    """``/proc/meminfo`` now. ``free`` is what can be had without swapping; reserved huge pages are not free."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    number = {name: int(text.split()[0]) for name, text in (line.split(":", 1) for line in lines)}
    huge = "Hugepagesize" in number  # absent from kernels built without
    return MemoryInfo(
        total=number["MemTotal"] * 1024,
        free=number["MemAvailable"] * 1024,
        huge_page_size=number["Hugepagesize"] * 1024 if huge else None,
        huge_pages_total=number["HugePages_Total"] if huge else None,
        huge_pages_free=number["HugePages_Free"] - number["HugePages_Rsvd"] if huge else None,
    )


def _huge(size: int, alignment: int) -> Memory | None:
    """Reserved huge pages, or ``None`` if there are too few."""
    page, free = host_memory().huge_page_size, host_memory().huge_pages_free
    if not page or not free:
        return None
    length = _rounded(size, page) + max(0, alignment - page)
    if length > free * page:
        return None
    try:
        return _memfd(length, size, alignment, Granted.HUGE, os.MFD_HUGETLB)
    except OutOfMemoryError:
        return None  # somebody else took them since


def _memfd(length: int, size: int, alignment: int, granted: Granted, flags: int = 0) -> Memory:
    free = host_memory().free
    if granted is Granted.NORMAL and free is not None and length > free:
        raise OutOfMemoryError(f"{size} bytes asked for, {free} are free", fix="close what is not needed")
    fd = -1
    try:
        fd = os.memfd_create("isthmus-qnn", os.MFD_CLOEXEC | flags)
        os.posix_fallocate(fd, 0, length)
        mapping = _lib.map_shared(fd, length)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise OutOfMemoryError(f"{size} bytes asked for, {free} are free: {error}") from error
    base = np.asarray(mapping).ctypes.data
    return Memory(mapping, fd, -base % alignment, size, granted)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
