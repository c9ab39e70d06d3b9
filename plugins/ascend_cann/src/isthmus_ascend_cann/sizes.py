"""Arithmetic of device memory: what an allocation is charged, how pieces of one block are laid out.

Sources: RT ``aclrt_impl/memory.cpp`` (rounding), ``npu_driver_mem.cc`` (pages), AscendCL guide on sub-allocation.
"""

from __future__ import annotations

from collections.abc import Iterable

PAGE = 4096
HUGE_PAGE = 2 << 20
GIANT_PAGE = 1 << 30
ALIGNMENT = 64
"""Of every address the vendor hands out, and of every piece we cut."""
HUGE_FIRST_ABOVE = 1 << 20
"""HUGE_FIRST takes base pages up to this rounded size."""


def rounded(size: int) -> int:
    """What ``aclrtMalloc`` makes of a size: a multiple of 32, with 32 bytes behind it."""
    return (size + 63) // 32 * 32


def charged(size: int, page: int | None = None) -> int:
    """Bytes that an allocation takes from the device with pages of ``page``, by default those of HUGE_FIRST."""
    if size == 0:
        return 0
    need = rounded(size)
    page = page or (HUGE_PAGE if need > HUGE_FIRST_ABOVE else PAGE)
    return up(need, page)


def up(size: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return (size + unit - 1) // unit * unit


def piece(size: int) -> int:
    """Room for one piece of a block that is cut by us: rounded, with 32 bytes behind it, the next one aligned."""
    return up(up(size, 32) + 32, ALIGNMENT) if size else 0


def offsets(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Offsets of pieces laid end to end, and the size of the block."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += piece(size)
    return starts, end
