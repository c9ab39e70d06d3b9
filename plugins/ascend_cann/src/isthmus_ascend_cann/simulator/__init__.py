"""A stand-in for the Ascend toolkit that must be asked for by name: a `libascendcl.so` and an `atc`.

It keeps the vendor's documented rules, codes and file layout; its arithmetic is ONNX Runtime's CPU provider with the
precision that the model was compiled for, and its times mean nothing. See docs/backends/ascend-simulator.md.
"""

from __future__ import annotations

import sys

from ._build import library, vendor_headers

__all__ = ["atc_command", "library", "vendor_headers"]


def atc_command() -> list[str]:
    """The start of the simulated compiler's command line; the flags of the real ``atc`` follow."""
    return [sys.executable, "-m", "isthmus_ascend_cann.simulator.atc"]
