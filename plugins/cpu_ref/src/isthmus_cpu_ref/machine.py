"""What there is on this machine, for ``isthmus doctor``."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .memory import host_memory, transparent_huge_mode

INSTRUCTIONS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip
"""Instruction sets that ONNX Runtime's matrix kernels choose by, as Linux names them on x86 and Arm."""


def facts() -> Mapping[str, str]:
    """Versions, CPU, memory and huge pages, as text."""
    memory = host_memory()
    return {
        "onnxruntime": _runtime(),
        "onnx": _version("onnx"),
        "cpu": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs allowed, {platform.machine()}",
        "instructions": ", ".join(_instructions()) or "none of those that matter here",
        "memory": f"{memory.free} of {memory.total} bytes free",
        "huge pages": f"{memory.huge_pages_free} of {memory.huge_pages_total} free, {memory.huge_page_size} bytes each",
        "transparent huge pages": transparent_huge_mode(),
    }


def _runtime() -> str:
    try:
        import onnxruntime
    except ImportError as error:
        return f"cannot be imported: {error}"
    return f"{onnxruntime.__version__} with {', '.join(onnxruntime.get_available_providers())}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _instructions() -> list[str]:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            found = set(value.split())
            return [i for i in INSTRUCTIONS if i in found]
    return []
