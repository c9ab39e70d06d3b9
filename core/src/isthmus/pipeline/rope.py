"""Rotary position embeddings: the cos and sin rows that the graphs take as inputs."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray


@functools.lru_cache(maxsize=4)
def rope_table(theta: float, head_dim: int, positions: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """cos and sin, each [positions, head_dim / 2]: of ``p * theta ** (-2 i / head_dim)`` at position p, pair i.

    Computed in float32 throughout, as transformers does, so that far positions round as they did in training.
    Conversations share the tables, hence read-only.
    """
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequency = np.float32(1) / np.float32(theta) ** exponent
    angle = np.arange(positions, dtype=np.float32)[:, None] * frequency
    tables = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
    for table in tables:
        table.flags.writeable = False
    return tables
