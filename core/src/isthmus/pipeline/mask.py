"""Attention masks, additive: 0 where a query may look, a finite large negative number where it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Mask:
    """The mask [N, C] of an AR-N graph, kept and edited: N new tokens after C - N slots of past.

    Columns are past slots first, then the new tokens, which see each other causally.
    """

    def __init__(self, tokens: int, context: int, value: float, dtype: DTypeLike) -> None:
        self._past = 0
        self._value = value
        self.array: NDArray[Any] = np.full((tokens, context), value, dtype)
        self.array[:, context - tokens :] = np.triu(np.full((tokens, tokens), value, dtype), 1)

    def show(self, past: int) -> NDArray[Any]:
        """The mask with the first ``past`` slots visible. Touches only the columns that change."""
        self.array[:, self._past : past] = 0
        self.array[:, past : self._past] = self._value
        self._past = past
        return self.array
