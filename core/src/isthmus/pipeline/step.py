"""One AR-N graph of the language model, bound to the buffers of one conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffer import Buffer, View
from ..device import Device
from ..models.description import LlmEntry, TextSpec
from ..program import Program
from ..types import EntrySpec
from .contract import float_dtype, kv_names
from .kv import KvCache
from .mask import Mask
from .rope import rope_table


def allocate_io(device: Device, entries: Sequence[EntrySpec]) -> dict[str, Buffer]:
    """One buffer per tensor name, large enough for every entry: entries never run at once. Keys and values excluded."""
    sizes: dict[str, int] = {}
    for tensor in (t for e in entries for t in (*e.inputs, *e.outputs)):
        if not tensor.name.startswith(("past_", "new_")):
            sizes[tensor.name] = max(tensor.nbytes, sizes.get(tensor.name, 0))
    buffers: dict[str, Buffer] = {}
    try:
        for name, size in sizes.items():
            buffers[name] = device.allocate(size, owner=name)
    except BaseException:
        for buffer in buffers.values():
            buffer.close()
        raise
    return buffers


class Step:
    """Runs up to N tokens. Everything is bound and allocated here; ``run`` only writes, executes and moves the slot."""

    def __init__(
        self,
        program: Program,
        graph: LlmEntry,
        text: TextSpec,
        mask_value: float,
        capacity: int,
        io: Mapping[str, Buffer],
        kv: KvCache,
    ) -> None:
        """``capacity`` is the largest context of all graphs."""
        specs = {s.name: s for s in program.entry(graph.name).inputs}
        self.graph = graph
        self.embeds: NDArray[Any] = np.zeros((graph.tokens, text.hidden), float_dtype(specs["inputs_embeds"]))
        """Input rows [N, hidden], for the caller to fill before ``run``; rows beyond ``count`` are ignored."""
        self._mask = Mask(graph.tokens, graph.context, mask_value, float_dtype(specs["attention_mask"]))
        self._cos, self._sin = rope_table(text.rope_theta, text.head_dim, capacity, float_dtype(specs["cos"]))
        self._last = np.zeros(1, np.int32)
        self._io, self._kv = io, kv
        self._new = kv_names(text.layers, "new")
        past = zip(kv_names(text.layers, "past"), kv.past(graph.context - graph.tokens))
        inputs: dict[str, Buffer | View] = {name: io[name] for name in specs if name in io}
        inputs |= {name: view for name, view in past if name in specs}
        self._slot = 0
        self._binding = program.bind(graph.name, inputs, {"logits": io["logits"], **self._outputs(0)})

    def run(self, slot: int, count: int) -> None:
        """Compute the first ``count`` rows of ``embeds`` as tokens ``slot``, ``slot + 1`` ... and cache them.

        The logits of the last one are then in the buffer ``logits``.
        """
        tokens = self.graph.tokens
        io = self._io
        io["inputs_embeds"].write(self.embeds)
        io["attention_mask"].write(self._mask.show(slot))
        io["cos"].write(self._cos[slot : slot + tokens])
        io["sin"].write(self._sin[slot : slot + tokens])
        if tokens > 1:
            self._last[0] = count - 1
            io["last_index"].write(self._last)
        if self._kv.in_place and slot != self._slot:
            self._binding.rebind(outputs=self._outputs(slot))
            self._slot = slot
        self._binding.execute()
        self._kv.commit(slot, count)

    def _outputs(self, slot: int) -> dict[str, Buffer | View]:
        return dict(zip(self._new, self._kv.outputs(slot, self.graph.tokens)))

    def close(self) -> None:
        """Undo the binding."""
        self._binding.close()
