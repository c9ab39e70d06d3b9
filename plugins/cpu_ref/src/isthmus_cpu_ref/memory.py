"""Host memory: page strategies on real Linux pages, and the driver methods every host device shares."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from isthmus.errors import OutOfMemoryError
from isthmus.spi import Allocation, DeviceDriver, Region
from isthmus.types import Granted, MemoryInfo, Pages

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAP_HUGETLB = 0x40000  # not in Python's mmap; the kernel's value on x86, arm and riscv


class HostBuffer:
    """One anonymous mapping: ``address`` is aligned as asked, ``bytes`` is a writable view of the usable part."""

    def __init__(self, mapping: mmap.mmap, size: int, alignment: int) -> None:
        whole = np.frombuffer(mapping, np.uint8)
        start = -address_of(whole) % alignment
        usable = whole[start : start + size]
        self.address = address_of(usable)
        self.bytes = usable.data

    def release(self) -> None:
        """Unmap, now or with the last view a caller still holds: a view never dangles."""
        self.address, self.bytes = 0, memoryview(bytearray())


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Address of the first element."""
    address: int = array.__array_interface__["data"][0]
    return address


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


def transparent_huge_mode() -> str:
    """``always``, ``madvise`` or ``never``, as the kernel is set; ``never`` where it was built without."""
    return THP.read_text("ascii").split("[")[1].split("]")[0] if THP.exists() else "never"


def allocate(size: int, pages: Pages, alignment: int) -> Allocation:
    """Map ``size`` bytes of the pages asked for. ``OutOfMemoryError`` says what was asked and what is free."""
    if pages is Pages.NORMAL:
        return _normal(size, alignment)
    if (found := _hugetlb(size, alignment)) is not None:
        return found
    if pages is Pages.REQUIRE_HUGE:
        raise _no_huge_pages(size, alignment)
    return _normal(size, alignment) if transparent_huge_mode() == "never" else _transparent(size, alignment)


def _normal(size: int, alignment: int) -> Allocation:
    size = round_up(size, mmap.PAGESIZE)
    mapping = _map(size, size + max(0, alignment - mmap.PAGESIZE))
    if THP.exists():
        mapping.madvise(mmap.MADV_NOHUGEPAGE)  # under mode `always` they would not be normal pages
    return Allocation(HostBuffer(mapping, size, alignment), size, Granted.NORMAL)


def _transparent(size: int, alignment: int) -> Allocation:
    page = _huge_page_size()
    size, alignment = round_up(size, page), max(alignment, page)
    mapping = _map(size, size + alignment - mmap.PAGESIZE)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return Allocation(HostBuffer(mapping, size, alignment), size, Granted.TRANSPARENT_HUGE)


def _hugetlb(size: int, alignment: int) -> Allocation | None:
    """Pages from the kernel's huge page pool, or ``None``.

    Without MAP_NORESERVE the pages are reserved here, so a lack shows now and not as SIGBUS at the first touch.
    """
    page = _huge_page_size()
    try:
        mapping = mmap.mmap(-1, _huge_length(size, alignment, page), ANONYMOUS | MAP_HUGETLB)
    except (OSError, OverflowError):
        return None
    size = round_up(size, page)
    return Allocation(HostBuffer(mapping, size, alignment), size, Granted.HUGE)


def _map(size: int, length: int) -> mmap.mmap:
    free = host_memory().free or 0
    if size <= free:  # asked first: the kernel may overcommit, and kill the process at the first touch
        try:
            return mmap.mmap(-1, length, ANONYMOUS)
        except OSError:
            pass  # a limit of this process or container
    raise OutOfMemoryError(
        f"cannot allocate {size} bytes of host memory; {free} bytes are free",
        why="not enough memory, or a limit of this process (ulimit -v, a container)",
        fix="close other programs, or choose a smaller model, context or precision",
    )


def _no_huge_pages(size: int, alignment: int) -> OutOfMemoryError:
    info = host_memory()
    if info.huge_page_size is None:
        return OutOfMemoryError("this kernel has no huge pages", fix="use normal pages: --pages normal")
    total, free = info.huge_pages_total or 0, info.huge_pages_free or 0
    needed = _huge_length(size, alignment, info.huge_page_size) // info.huge_page_size
    return OutOfMemoryError(
        f"{size} bytes need {needed} huge pages of {info.huge_page_size} bytes; {free} of {total} are free",
        why="huge pages are reserved by the administrator, and too few are",
        fix=f"sysctl vm.nr_hugepages={total - free + needed}",
    )


def _huge_length(size: int, alignment: int, page: int) -> int:
    return round_up(round_up(size, page) + max(0, alignment - page), page)


def _huge_page_size() -> int:
    return host_memory().huge_page_size or mmap.PAGESIZE


def round_up(size: int, unit: int) -> int:
    """The least multiple of ``unit`` that is not below ``size``."""
    return -(-size // unit) * unit


class HostDriver(DeviceDriver):
    """Memory of the host, for devices that run on it."""

    def memory_info(self) -> MemoryInfo:
        return host_memory()

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        return allocate(size, pages, alignment)

    def free(self, handle: HostBuffer) -> None:
        handle.release()

    def write(self, region: Region, data: memoryview) -> None:
        view(region)[:] = data

    def read(self, region: Region, out: memoryview) -> None:
        out[:] = view(region)

    def copy(self, dst: Region, src: Region) -> None:
        view(dst)[:] = view(src)

    def host_view(self, handle: HostBuffer) -> memoryview:
        return handle.bytes


def view(region: Region) -> memoryview:
    """The bytes of a region, writable, without a copy."""
    whole: memoryview = region.handle.bytes
    return whole[region.offset : region.offset + region.size]
