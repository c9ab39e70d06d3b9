"""The KV cache of one conversation: one buffer [slots, kv heads, head dim] per layer for keys and one for values.

Token-major, so that the past of every graph is a prefix of the same buffer and new tokens are one contiguous slice.
Where the device allows outputs to overlap inputs, a graph writes new keys and values straight into their slots: those
are masked in that execute, so what it reads there only has to be finite. Elsewhere it writes to a staging buffer, and
the device copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..buffer import Buffer, View
from ..device import Device
from ..types import Capability


class KvCache:
    """Buffers for ``slots`` tokens of ``token_bytes`` each, for keys and values of ``layers`` layers. Starts zeroed.

    All lists run key 0, value 0, key 1, value 1, ...
    """

    def __init__(self, device: Device, layers: int, slots: int, token_bytes: int, widest: int) -> None:
        """``widest`` is the most tokens one execute adds."""
        self._token = token_bytes
        self._buffers: list[Buffer] = []
        self._staging: list[Buffer] = []
        in_place = Capability.ALIASED_IO in device.capabilities and token_bytes % device.io_alignment == 0
        try:
            for _ in range(2 * layers):
                self._buffers.append(device.allocate(slots * token_bytes, book="kv", owner="KV cache"))
            for _ in range(0 if in_place else 2 * layers):
                self._staging.append(device.allocate(widest * token_bytes, book="kv", owner="KV staging"))
            self.zero()
        except BaseException:
            self.close()
            raise

    @property
    def in_place(self) -> bool:
        """Whether graphs write into the cache themselves."""
        return not self._staging

    @property
    def nbytes(self) -> int:
        """Device memory of cache and staging."""
        return sum(b.size for b in [*self._buffers, *self._staging])

    def zero(self) -> None:
        """Fill with zeros: undefined contents may be NaN, which no mask hides."""
        zeros = np.zeros(self._buffers[0].size, np.uint8)
        for buffer in self._buffers:
            buffer.write(zeros)

    def past(self, slots: int) -> list[View]:
        """The first ``slots`` slots of every buffer."""
        return [b[: slots * self._token] for b in self._buffers]

    def outputs(self, slot: int, count: int) -> Sequence[Buffer | View]:
        """Where a graph that adds ``count`` tokens at ``slot`` shall write."""
        return self._staging or self._slots(slot, count)

    def commit(self, slot: int, count: int) -> None:
        """Take over ``count`` tokens that a graph wrote for ``slot``."""
        if self._staging:
            size = count * self._token
            for target, source in zip(self._slots(slot, count), self._staging):
                target.copy_from(source[:size])

    def _slots(self, slot: int, count: int) -> list[View]:
        start, size = slot * self._token, count * self._token
        return [View(b, start, size) for b in self._buffers]

    def close(self) -> None:
        """Free the buffers."""
        for buffer in [*self._staging, *self._buffers]:
            buffer.close()
