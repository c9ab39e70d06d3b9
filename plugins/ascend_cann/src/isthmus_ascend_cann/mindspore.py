"""MindSpore's memory settings beside a program of ours: the rules of its documentation, checked before they bite.

Source: ``mindspore.set_context`` (r2.4) and ``mindspore.runtime.set_memory`` (r2.5 and later).
"""

from __future__ import annotations

import re

import attrs
from isthmus.errors import InputError

_SIZE = re.compile(r"(?:[1-9]\d*(?:\.\d+)?|0\.\d+)GB")


@attrs.frozen
class MemorySettings:
    """Settings of MindSpore's device memory. Sizes are text like ``8GB``; ``None`` leaves its default."""

    memory_optimize_level: str = "O0"
    """``O0`` for speed, ``O1`` to reuse memory within the graph (SOMAS). ``optimize_level`` of ``set_memory``."""
    max_device_memory: str | None = None
    """Most that its pool takes (default 1024GB, which is: all). ``max_size`` of ``set_memory``."""
    mempool_block_size: str | None = None
    """By how much the pool grows (default 1GB), at least 1GB. ``increase_size`` of ``set_memory``."""
    huge_page_reserve_size: str | None = None
    """Kept for huge pages (``set_memory`` only); without effect when virtual memory is on."""
    memory_offload: bool = False
    """Moves tensors to the host. Only with ``O0``."""

    def problems(self) -> list[str]:
        """What MindSpore would refuse or ignore. Empty: all is well."""
        found = []
        if self.memory_optimize_level not in ("O0", "O1"):
            found.append(f"memory_optimize_level is {self.memory_optimize_level!r}; it is O0 or O1")
        for name in ("max_device_memory", "mempool_block_size", "huge_page_reserve_size"):
            value = getattr(self, name)
            zero_ok = name == "huge_page_reserve_size" and value == "0GB"
            if value is not None and not zero_ok and not _SIZE.fullmatch(value):
                found.append(f"{name} is {value!r}; its form is 8GB")
            elif value is not None and name == "mempool_block_size" and gigabytes(value) < 1:
                found.append(f"mempool_block_size is {value}; it is at least 1GB")
        if self.memory_offload and self.memory_optimize_level == "O1":
            found.append("memory_offload needs memory_optimize_level O0")
        return found

    def checked(self) -> MemorySettings:
        """Itself, or ``InputError`` with all problems."""
        if problems := self.problems():
            raise InputError(f"MindSpore memory settings: {'; '.join(problems)}", fix="correct the settings named")
        return self

    def set_memory(self) -> dict[str, str]:
        """Arguments of ``mindspore.runtime.set_memory`` (2.5 and later)."""
        named = {
            "optimize_level": self.memory_optimize_level,
            "max_size": self.max_device_memory,
            "increase_size": self.mempool_block_size,
            "huge_page_reserve_size": self.huge_page_reserve_size,
        }
        return {k: v for k, v in named.items() if v is not None}

    def set_context(self) -> dict[str, str]:
        """Arguments of ``mindspore.set_context`` (before 2.5, deprecated since)."""
        named = {
            "memory_optimize_level": self.memory_optimize_level,
            "max_device_memory": self.max_device_memory,
            "mempool_block_size": self.mempool_block_size,
            "memory_offload": "ON" if self.memory_offload else None,
        }
        return {k: v for k, v in named.items() if v is not None}


def leaving_room(total: int, need: int) -> MemorySettings:
    """Settings whose pool leaves ``need`` of ``total`` bytes of the device to a program of ours.

    ``InputError``: less than 1 GB would remain for MindSpore.
    """
    left = (total - need) / 2**30
    if left < 1:
        raise InputError(f"{need} of {total} bytes leave MindSpore {left:.2f} GB; its pool needs at least 1 GB")
    return MemorySettings(max_device_memory=f"{int(left)}GB")


def gigabytes(size: str) -> float:
    """``8GB`` as a number."""
    return float(size.removesuffix("GB"))
