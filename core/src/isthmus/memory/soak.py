"""Does memory grow with the number of requests? Samples over a long run, and a verdict."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import psutil  # type: ignore[import-untyped]

from ..device import Device

SAMPLES = 200
WARM_UP = 0.25
"""Share of the samples that is left out: caches and pools fill there."""
_SIGMAS = 4.0
_FEWEST = 6
_FLOOR = 256 << 10
_FLOOR_SHARE = 1e-3


@attrs.frozen
class Trend:
    """How one figure moved, in bytes, after the warm-up."""

    name: str
    first: float
    last: float
    per_request: float
    """Slope of the least-squares line."""
    error: float
    """Its standard error."""
    growth: float
    """The most in the last third over the most in the third before: a step that stays, and no noise, makes it grow."""
    leaking: bool


@attrs.frozen
class SoakResult:
    """What a long run showed."""

    requests: int
    trends: tuple[Trend, ...]
    left: int
    """Live allocations after the pipeline was closed; filled in by whoever closes it."""

    @property
    def leaking(self) -> bool:
        """Whether anything grew, or stayed behind."""
        return self.left > 0 or any(t.leaking for t in self.trends)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready figures."""
        return {**attrs.asdict(self), "leaking": self.leaking}


def soak(device: Device, request: Callable[[], object], count: int, progress: Callable[[int, int], None]) -> SoakResult:
    """Call ``request`` ``count`` times and watch the device's books and memory and the host's.

    The host's is that of this process and of the children it has at the start, such as one a driver runs in.
    """
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]  # looked up once: it walks all processes of the machine
    step = max(1, count // SAMPLES)
    at: list[int] = []
    seen: dict[str, list[int]] = {}
    for done in range(1, count + 1):
        request()
        if done % step == 0 or done == count:
            at.append(done)
            for name, value in _sample(device, processes).items():
                seen.setdefault(name, []).append(value)
            progress(done, count)
    return SoakResult(count, tuple(trend(name, at, values) for name, values in seen.items()), 0)


def trend(name: str, at: Sequence[int], values: Sequence[int]) -> Trend:
    """Slope and verdict of one series; ``at`` counts requests.

    A leak has a slope of more than four standard errors, and its last third lies above the third before by more than
    256 KiB and a thousandth of the level, over six samples at least: noise fails the first test, a pool that fills once the second.
    """
    first = int(len(values) * WARM_UP)
    x, y = np.array(at[first:], float), np.array(values[first:], float)
    slope, error = _slope(x, y)
    third = max(1, len(y) // 3)
    growth = float(y[-third:].max() - y[-2 * third : -third].max()) if len(y) >= 2 * third + 1 else 0.0
    floor = max(_FLOOR, _FLOOR_SHARE * float(y.mean()))
    leaking = len(y) >= _FEWEST and slope > _SIGMAS * error and growth > floor
    return Trend(name, float(y[0]), float(y[-1]), slope, error, growth, leaking)


def _slope(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, float]:
    if len(x) < 3:
        return 0.0, math.inf
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    rest = y - y.mean() - slope * centred
    return slope, math.sqrt(float(rest @ rest) / (len(x) - 2) / spread)


def _sample(device: Device, processes: Sequence[psutil.Process]) -> dict[str, int]:
    """The ledger, the memory of the processes, and that of a device that has memory of its own."""
    gc.collect()
    host = sum(p.memory_info().rss for p in processes)
    found = {"device, in the books": device.memory.live, "host": host}
    info = device.memory_info()
    if info.total is not None and info.free is not None and info.total != psutil.virtual_memory().total:
        found["device, in use"] = info.total - info.free
    return found
