"""Will it fit? The books of a model on a backend before it is loaded, compiled, or even there.

Formulas, all in bytes: keys and values ``2 * layers * slots * kv_heads * head_dim * element`` per conversation, in
``2 * layers`` buffers, plus staging of the widest chunk where outputs cannot overlap inputs; inputs and outputs one buffer
per tensor name, as large as the largest entry needs, per conversation; weights, workspace and what the runtime adds are
the backend's (``MemoryRequirements``, ``MemoryRules``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..artifact import ASSETS, Artifact
from ..models.description import ImageSpec, LlmEntry, ModelDescription
from ..spi import MemoryRules
from ..types import EntrySpec, MemoryRequirements

TEXT_ROOM = 64
"""Tokens kept for a question and the first words of its answer when asking whether pictures fit into the context."""


@attrs.frozen
class LlmShape:
    """What the KV cache depends on."""

    layers: int
    kv_heads: int
    head_dim: int
    entries: tuple[LlmEntry, ...]

    @property
    def slots(self) -> int:
        """The largest context."""
        return max(e.context for e in self.entries)

    @property
    def widest(self) -> int:
        """The most tokens one execute adds."""
        return max(e.tokens for e in self.entries)

    def kv_bytes_per_token(self, bits: int) -> int:
        """Keys and values of all layers for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bits // 8


@attrs.frozen
class Need:
    """A model as a plan sees it, wherever the figures come from."""

    source: str
    """``artifact``, ``graph set`` or ``checkpoint``: how exact the figures are, in this order."""
    memory: MemoryRequirements
    entries: Mapping[str, EntrySpec]
    graphs: Mapping[str, int] = attrs.field(factory=dict)
    """Weights plus workspace of each entry; empty where that is not known apart."""
    contexts: Mapping[str, int] = attrs.field(factory=dict)
    """Compiled files with the weights in each."""
    distinct: int | None = None
    """Bytes of weights if equal ones of several entries were there once; ``None``: they are."""
    llm: LlmShape | None = None
    image: ImageSpec | None = None
    mapped: int = 0
    """Bytes of the embedding table, which is mapped from disk and only read by rows."""


@attrs.frozen
class Use:
    """How the model will be used."""

    conversations: int = 1
    images: int = 0
    """Pictures in one conversation."""
    max_tiles: int | None = None
    """Tiles a picture is cut into at most; ``None``: as the model is made."""
    kv_bits: int | None = None
    """Storage of a key or value; ``None``: as the graphs have it."""
    copies: bool = True
    """False: loaded as ``MemoryRules.no_copies`` says, or from the caller's weights."""


@attrs.frozen
class MemoryPlan:
    """The answer, in bytes. ``books`` add up to ``run_peak``."""

    need: Need
    books: Mapping[str, int]
    """``weights`` once, ``copies`` (weights counted again, and the runtime's own), ``workspace``, ``io``, ``kv``."""
    activations: Mapping[str, int]
    """Workspace of each entry: the peaks of vision, prefill and decode."""
    load_peak: int
    """While loading; ``MemoryRequirements.load_extra`` of it can be in host memory or page cache."""
    run_peak: int
    context: int
    context_tokens: int
    """Tokens that the pictures and a short question take of the context."""
    kv_bytes_per_token: int


def of_artifact(artifact: Artifact, memory: MemoryRequirements | None = None) -> Need:
    """From an artifact's manifest, or from what a device says of it."""
    manifest = artifact.manifest
    model = ModelDescription.from_json(manifest.model) if manifest.model else None
    files = {n: r.size for n, r in manifest.files.items() if not n.startswith(f"{ASSETS}/") and r.size > 1 << 16}
    return Need(
        "artifact",
        memory or manifest.memory,
        artifact.entries,
        contexts=files,
        llm=_shape(model) if model else None,
        image=model.image if model else None,
        mapped=manifest.files[f"{ASSETS}/{model.embedding.file}"].size if model else 0,
    )


def of_description(model: ModelDescription | None) -> dict[str, Any]:
    """The part of a ``Need`` that a model description holds."""
    return {"llm": _shape(model), "image": model.image} if model else {}


def make_plan(need: Need, use: Use, rules: MemoryRules) -> MemoryPlan:
    """Put the books together."""
    memory, llm = need.memory, need.llm
    bits = use.kv_bits or _kv_bits(need.entries)
    kv = _kv(llm, bits, rules) * use.conversations if llm else 0
    load = memory.own_load if use.copies else memory.weights + memory.caller_load
    once = min(need.distinct or memory.weights, load)
    workspace = min(memory.peak_workspace, load - once)
    books = {
        "weights": once,
        "copies": load - once - workspace,
        "workspace": workspace,
        "io": _io(need, use.conversations, rules),
        "kv": kv,
    }
    return MemoryPlan(
        need=need,
        books=books,
        activations=memory.workspace,
        load_peak=load + (memory.load_extra if use.copies else 0),
        run_peak=sum(books.values()),
        context=llm.slots if llm else 0,
        context_tokens=image_tokens(need.image, use) + TEXT_ROOM if llm else 0,
        kv_bytes_per_token=llm.kv_bytes_per_token(bits) if llm else 0,
    )


def image_tokens(image: ImageSpec | None, use: Use) -> int:
    """Tokens of the pictures: a start and an end each, ``tokens_per_tile`` per tile and thumbnail."""
    if image is None or not use.images:
        return 0
    tiles = use.max_tiles or image.max_tiles
    tiles += image.thumbnail and tiles > 1
    return use.images * (tiles * image.tokens_per_tile + 2)


def _shape(model: ModelDescription) -> LlmShape:
    return LlmShape(model.text.layers, model.text.kv_heads, model.text.head_dim, model.llm)


def _kv_bits(entries: Mapping[str, EntrySpec]) -> int:
    for spec in entries.values():
        for tensor in spec.outputs:
            if tensor.name.startswith("new_key"):
                return tensor.dtype.bits
    return 32


def _kv(llm: LlmShape, bits: int, rules: MemoryRules) -> int:
    token = llm.kv_heads * llm.head_dim * bits // 8
    staging = 0 if rules.aliased_io else rules.charged(llm.widest * token)
    return 2 * llm.layers * (rules.charged(llm.slots * token) + staging)


def _io(need: Need, conversations: int, rules: MemoryRules) -> int:
    """Buffers as the pipeline allocates them; without a language model, those of the largest entry."""
    if need.llm is None:
        return max((_sum(s, rules) for s in need.entries.values()), default=0)
    names = {e.name for e in need.llm.entries}
    sizes: dict[str, int] = {}
    for name, spec in need.entries.items():
        for tensor in (*spec.inputs, *spec.outputs) if name in names else ():
            if not tensor.name.startswith(("past_", "new_")):
                sizes[tensor.name] = max(tensor.nbytes, sizes.get(tensor.name, 0))
    others = (_sum(s, rules) for n, s in need.entries.items() if n not in names)
    return conversations * _charged(sizes.values(), rules) + sum(others)


def _sum(spec: EntrySpec, rules: MemoryRules) -> int:
    return _charged((t.nbytes for t in (*spec.inputs, *spec.outputs)), rules)


def _charged(sizes: Iterable[int], rules: MemoryRules) -> int:
    return sum(rules.charged(max(size, 1)) for size in sizes)
