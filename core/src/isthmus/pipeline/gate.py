"""Stops the first answer of a loaded model when its numbers or its tokens cannot be right.

It costs no run of its own: it looks at the logits of the first prefill, and at the tokens as they come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ExecutionError

_SATURATION = (65504.0, 131008.0)
"""Where float16 ends, and where QNN's HTP was measured to stop instead of giving infinity."""
_RUNS = ((1, 24), (2, 16), (3, 16), (4, 16))
"""Period of a cycle of tokens, and how often in a row it is no longer an answer."""


class Gate:
    """Judges one answer; ``ExecutionError`` stops it. Made anew for each answer.

    A right answer may repeat itself, a ruler of dashes say: that is why a gate is for the first answer only.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []

    def logits(self, logits: NDArray[np.float32]) -> None:
        """Look at the logits [V] of the last prompt token."""
        if fault := _fault(logits):
            raise ExecutionError(
                f"the first logits of the model cannot be right: tensor 'logits' {fault}",
                why="an overflow of float16, damaged or missing weights, or an operator that the device gets wrong",
                fix="isthmus compare MODEL --backends BACKEND names the first tensor that differs; --no-gate goes on",
            )

    def token(self, token: int) -> None:
        """Look at the tokens so far, this one included."""
        self._ids.append(token)
        for period, times in _RUNS:
            tail = self._ids[-period * times :]
            if len(tail) == period * times and tail[period:] == tail[:-period]:
                raise ExecutionError(
                    f"the model repeats itself: tokens {tail[:period]} {times} times in a row, "
                    f"after {len(self._ids) - len(tail)} others",
                    why="its numbers are wrong (overflow, quantisation, a damaged cache), or it is a very small model",
                    fix="isthmus compare MODEL --backends BACKEND names the first tensor that differs; --no-gate goes on",
                )


def _fault(logits: NDArray[np.float32]) -> str:
    """What is wrong, with figures; empty if nothing is."""
    count = logits.size
    if wrong := count - int(np.count_nonzero(np.isfinite(logits))):
        return f"holds {int(np.count_nonzero(np.isnan(logits)))} NaN among {wrong} of {count} values not finite"
    low, high = float(logits.min()), float(logits.max())
    if low == high:
        return f"is {'all zero' if low == 0 else f'constant, {low:g}'} in all {count} values"
    if high in _SATURATION:
        return f"is saturated: {int(np.count_nonzero(logits == high))} of {count} values are {high:g}"
    return ""
