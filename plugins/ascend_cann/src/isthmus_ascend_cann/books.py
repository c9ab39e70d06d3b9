"""What to say when memory runs out: who asked for what, what is held, what is free, who else is there, what to check.

Weights, workspace (the activations), inputs and outputs, and KV slots are kept apart, as they are in a budget.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from isthmus.errors import OutOfMemoryError

from . import sizes
from .memory import Block, Free

BUFFERS = "buffers (inputs, outputs, KV slots)"
"""Purpose of what the caller allocates."""
WEIGHTS = "weights"
WORKSPACE = "workspace (activations)"
_CHECKS = (
    "a process left over from an earlier run: npu-smi info, then end it",
    "the device is the one you mean: ASCEND_RT_VISIBLE_DEVICES",
    "torch_npu in this process holds a cache: torch.npu.empty_cache() before load, or a smaller max_split_size_mb",
    "page policy: NORMAL or PREFER_HUGE instead of REQUIRE_HUGE",
    "smaller or fewer gears: memory is sized for the largest one whatever runs",
    "external_weight=files at compile keeps weights that several entries share once",
)


def table(rows: Mapping[str, int | None]) -> str:
    """Rows of a label and bytes, aligned; ``None`` is unknown."""
    width = max(map(len, rows))
    return "\n".join(f"  {label:<{width}}  {_shown(value):>20}" for label, value in rows.items())


def held(blocks: Iterable[Block]) -> dict[str, int]:
    """Bytes charged per purpose."""
    sums: dict[str, int] = {}
    for block in blocks:
        sums[f"held: {block.purpose}"] = sums.get(f"held: {block.purpose}", 0) + block.charged
    return sums


def free_rows(free: Free) -> dict[str, int | None]:
    """Free and total memory as rows."""
    return {
        "free": free.all[0] if free.all else None,
        "free in 2 MiB pages": free.huge[0] if free.huge else None,
        "total": free.all[1] if free.all else None,
    }


def refuse(what: str, need: Mapping[str, int], total: int, blocks: Iterable[Block], free: Free) -> OutOfMemoryError:
    """The error for something that cannot fit, raised before anything is allocated."""
    have = free.all[0] if free.all else 0
    rows: dict[str, int | None] = {f"needed: {k}": v for k, v in need.items()}
    return OutOfMemoryError(
        f"{what} needs {total} bytes, {have} are free ({total - have} short); nothing was allocated\n"
        + table({**rows, **held(blocks), **free_rows(free)}),
        why="weights and workspace are charged in 2 MiB pages",
        fix=checks(()),
    )


def explain(
    error: OutOfMemoryError, size: int, purpose: str, blocks: Iterable[Block], free: Free, others: Iterable[str]
) -> OutOfMemoryError:
    """Add the books to what the vendor said."""
    rows: dict[str, int | None] = {f"asked for: {purpose}": sizes.charged(size)}
    others = list(others)
    return OutOfMemoryError(
        f"{error.what}\n{table({**rows, **held(blocks), **free_rows(free)})}",
        why=error.why,
        fix=error.fix + "; " + checks(others) if error.fix else checks(others),
        status=error.status,
    )


def checks(others: Iterable[str]) -> str:
    """The checks in the order that finds the cause soonest."""
    seen = [f"other processes on the device: {', '.join(others)}"] if others else []
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    steps = [s + (f" (now {visible})" if visible and "VISIBLE" in s else "") for s in _CHECKS]
    return "check in this order: " + "; ".join(f"{i}. {s}" for i, s in enumerate([*seen, *steps], 1))


def other_processes(timeout_s: float = 10) -> list[str]:
    """What ``npu-smi info`` says holds memory: ``pid 123 python 3201 MB``. Empty without npu-smi."""
    program = shutil.which("npu-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ["(npu-smi does not answer)"]
    return parse_processes(done.stdout, os.getpid())


def parse_processes(text: str, own: int) -> list[str]:
    """Rows ``| npu chip | pid | name | memory |`` of the process table."""
    rows = re.findall(r"^\|\s*\d+\s+\d+\s*\|\s*(\d+)\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|", text, re.MULTILINE)
    return [f"pid {pid} {name} {memory} MB" for pid, name, memory in rows if int(pid) != own]


def _shown(value: int | None) -> str:
    return "unknown" if value is None else f"{value} bytes"
