"""Contexts for the requests that really come: from a log of lengths to buckets, and what they save.

A graph with a static shape, and an allocator that is sized for the largest shape, hold the longest conversation's memory
for the shortest one. With a few contexts a conversation holds the smallest that takes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ..errors import InputError

STEP = 64
"""Contexts are multiples of this, so that attention has whole tiles."""


@attrs.frozen
class Bucket:
    """A context, and how many of the requests it serves."""

    context: int
    requests: int


@attrs.frozen
class Traffic:
    """A choice of contexts for a log of requests."""

    buckets: tuple[Bucket, ...]
    requests: int
    bytes_per_token: int

    @property
    def largest(self) -> int:
        """The context that serves everything."""
        return self.buckets[-1].context

    @property
    def mean_slots(self) -> float:
        """Slots a conversation holds on average."""
        return sum(b.context * b.requests for b in self.buckets) / self.requests

    @property
    def saved(self) -> float:
        """KV bytes an average conversation saves against one context for all."""
        return (self.largest - self.mean_slots) * self.bytes_per_token

    def at_once(self, limit: int) -> tuple[int, int]:
        """Conversations whose KV caches fit into ``limit`` bytes: all at the largest context, and on average."""
        return limit // (self.largest * self.bytes_per_token), int(limit / (self.mean_slots * self.bytes_per_token))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready figures, in tokens and bytes."""
        return {
            "requests": self.requests,
            "buckets": [attrs.asdict(b) for b in self.buckets],
            "mean_slots": self.mean_slots,
            "kv_bytes_mean": self.mean_slots * self.bytes_per_token,
            "kv_bytes_largest": self.largest * self.bytes_per_token,
            "kv_bytes_saved_mean": self.saved,
        }


def read_lengths(path: Path) -> list[int]:
    """Tokens of each request from JSON lines: a number, or an object with ``prompt`` and ``answer`` tokens.

    ``InputError`` names the line that is neither.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    found = [_length(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InputError(f"{path} holds no request")
    return found


def choose(lengths: Sequence[int], buckets: int, bytes_per_token: int) -> Traffic:
    """The ``buckets`` contexts that hold the fewest slots in all, by dynamic programming over distinct lengths.

    Exact: the optimum ends every bucket at a length that occurs, rounded up to ``STEP``.
    """
    counts = Counter(-(-n // STEP) * STEP for n in lengths)
    ends = np.array(sorted(counts), np.int64)
    below = np.concatenate(([0], np.cumsum([counts[int(e)] for e in ends])))
    cost = ends * below[1:]  # one bucket for everything up to each end
    cuts: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    for _ in range(min(buckets, len(ends)) - 1):
        options = np.concatenate(([0], cost[:-1]))[None, :] + ends[:, None] * (below[1:, None] - below[None, :-1])
        options[np.triu_indices(len(ends), 1)] = np.iinfo(np.int64).max
        cuts.append(options.argmin(1))
        cost = options.min(1)
    return Traffic(tuple(_buckets(ends, below, cuts)), len(lengths), bytes_per_token)


def _buckets(
    ends: np.ndarray[Any, Any], below: np.ndarray[Any, Any], cuts: Sequence[np.ndarray[Any, Any]]
) -> list[Bucket]:
    found: list[Bucket] = []
    last = len(ends) - 1
    for cut in reversed(cuts):
        first = int(cut[last])
        found.append(Bucket(int(ends[last]), int(below[last + 1] - below[first])))
        last = first - 1
        if last < 0:
            return found[::-1]
    found.append(Bucket(int(ends[last]), int(below[last + 1])))
    return found[::-1]


def _length(path: Path, number: int, line: str) -> int:
    try:
        value = json.loads(line)
        length = value["prompt"] + value["answer"] if isinstance(value, dict) else value
    except (ValueError, KeyError, TypeError, RecursionError):
        length = None
    if type(length) is not int or not 0 < length < 1 << 31:
        raise InputError(
            f"{path}, line {number}: {line[:60]!r} is no request",
            fix='give a number of tokens, or {"prompt": 900, "answer": 120}',
        )
    return length
