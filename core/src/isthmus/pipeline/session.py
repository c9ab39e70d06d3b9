"""The language model with the KV cache of one conversation: tokens in, logits of the last one out.

Everything is allocated and bound when the session is made. It knows a sequence of tokens, of which the cache holds a
prefix; ``forward`` computes the rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.description import ModelDescription
from ..program import Program
from .contract import shared_dtype
from .embed import EmbeddingTable
from .kv import KvCache
from .plan import next_chunk
from .step import Step, allocate_io


@attrs.frozen(eq=False)
class Prompt:
    """What the language model is given."""

    ids: NDArray[np.int64]
    """[n]"""
    is_image: NDArray[np.bool_]
    """[n]: whether a position takes a row of ``features`` instead of its row of the embedding table."""
    features: NDArray[np.float32]
    """[number of image positions, hidden], in the order of the positions."""


class Session:
    """One conversation's state on the device. Used by one thread at a time.

    With ``use_cache=False`` every ``forward`` computes the whole sequence again: for runtimes that cannot keep state,
    and as the oracle of the cached route.
    """

    def __init__(
        self, program: Program, model: ModelDescription, table: EmbeddingTable, *, use_cache: bool = True
    ) -> None:
        entries = [program.entry(graph.name) for graph in model.llm]
        self._graphs, self._table, self._use_cache = model.llm, table, use_cache
        self.capacity = max(graph.context for graph in model.llm)
        """Most tokens it can hold: the largest context."""
        self.count = 0
        """Tokens known."""
        self.cached = 0
        """Tokens whose keys and values are in the cache, a prefix of those known."""
        self.executes = 0
        """Graphs run so far."""
        self._ids = np.zeros(self.capacity, np.int64)
        self._is_image = np.zeros(self.capacity, np.bool_)
        self._features: NDArray[np.float32] = np.empty((0, model.text.hidden), np.float32)
        self._raw: NDArray[Any] = np.empty(model.text.vocab, shared_dtype(entries, ("logits",)))
        self._logits = self._raw if self._raw.dtype == np.float32 else np.empty(model.text.vocab, np.float32)
        token_bytes = model.text.kv_heads * model.text.head_dim * shared_dtype(entries, ("past_", "new_")).itemsize
        widest = max(graph.tokens for graph in model.llm)
        with ExitStack() as stack:
            self._io = allocate_io(program.device, entries)
            for buffer in self._io.values():
                stack.callback(buffer.close)
            self._kv = KvCache(program.device, model.text.layers, self.capacity, token_bytes, widest)
            stack.callback(self._kv.close)
            self._steps: list[Step] = []
            for graph in model.llm:
                step = Step(program, graph, model.text, model.mask_value, self.capacity, self._io, self._kv)
                stack.callback(step.close)
                self._steps.append(step)
            self._open = stack.pop_all()

    @property
    def nbytes(self) -> int:
        """Device memory of the session: KV cache, inputs and outputs."""
        return self._kv.nbytes + sum(b.size for b in self._io.values())

    def start(self, prompt: Prompt) -> int:
        """Take ``prompt`` for the tokens known. Keeps what the cache shares with it, and says how many tokens that is.

        ``InputError``: the prompt does not fit. At least its last token is computed, for its logits.
        """
        count = len(prompt.ids)
        if not 0 < count <= self.capacity:
            raise InputError(f"a prompt of {count} tokens for a context of {self.capacity}")
        shared = min(self.cached, count - 1) if self._use_cache else 0
        same = (self._ids[:shared] == prompt.ids[:shared]) & (self._is_image[:shared] == prompt.is_image[:shared])
        self.cached = shared if same.all() else int(np.argmin(same))
        self._ids[:count], self._is_image[:count] = prompt.ids, prompt.is_image
        self._features = prompt.features
        self.count = count
        return self.cached

    def append(self, token: int) -> None:
        """One more known token. The caller has checked that ``count`` is below ``capacity``."""
        self._ids[self.count], self._is_image[self.count] = token, False
        self.count += 1

    def forward(self) -> NDArray[np.float32]:
        """Compute what is known and not cached; logits [V] of the last token, overwritten by the next ``forward``."""
        if not self._use_cache:
            self.cached = 0
        while self.cached < self.count:
            chunk = next_chunk(self._graphs, self.cached, self.count)
            step = self._steps[chunk.graph]
            end = chunk.slot + chunk.count
            self._embed(chunk.slot, end, step.embeds[: chunk.count])
            self.cached = min(self.cached, chunk.slot)  # if this fails, its slots are undefined
            step.run(chunk.slot, chunk.count)
            self.cached = end
            self.executes += 1
        self._io["logits"].read_into(self._raw)
        if self._logits is not self._raw:
            self._logits[:] = self._raw
        return self._logits

    def truncate(self, cached: int) -> None:
        """Forget all but the first ``cached`` tokens."""
        self.cached = self.count = min(cached, self.cached)

    def reset(self) -> None:
        """Forget everything and zero the cache, which matters after a device produced NaN."""
        self.truncate(0)
        self._kv.zero()

    def _embed(self, start: int, end: int, out: NDArray[Any]) -> None:
        """Rows of the embedding table, and of the image features at the places of pictures, for tokens start..end."""
        self._table.look_up(self._ids[start:end], out)
        image = self._is_image[start:end]
        rows = int(np.count_nonzero(image))
        if rows:
            first = int(np.count_nonzero(self._is_image[:start]))
            out[image] = self._features[first : first + rows]

    def close(self) -> None:
        """Free bindings and buffers. Safe to call twice."""
        self._open.close()
