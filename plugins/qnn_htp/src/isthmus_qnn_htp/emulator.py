"""A limit of the x86 emulator that no chip has.

It models one size of VTCM per process. Loading a program compiled for another size succeeds, and from then on executes of
those loaded before fail with status 1100 (every pair of 11 chips tried on 2.51; sizes equal: fine, sizes differ: fails).
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from isthmus.errors import IncompatibleError

from .layout import ProgramRecord
from .targets import parse

_loaded: collections.Counter[int] = collections.Counter()
_lock = threading.Lock()


@contextmanager
def emulated_vtcm(record: ProgramRecord) -> Iterator[None]:
    """Hold the size of VTCM that a program needs while it is loaded. ``IncompatibleError``: another is held."""
    size = record.vtcm_mb or parse(f"soc:{record.soc}").vtcm_mb
    with _lock:
        others = [other for other in +_loaded if other != size]
        if others:
            raise IncompatibleError(
                f"the artifact is for {size} MiB of VTCM, a program loaded in this process for {others[0]} MiB",
                why="the x86 emulator models one size per process, and would break the program that is loaded",
                fix="open another device for it (isolation=child), or close the loaded program",
            )
        _loaded[size] += 1
    try:
        yield
    finally:
        with _lock:
            _loaded[size] -= 1
