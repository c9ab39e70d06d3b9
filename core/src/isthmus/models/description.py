"""What a pipeline must know of a model, written into graph sets and artifacts as JSON.

The exporter fills it from the checkpoint; the pipeline reads nothing else of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import cattrs

from .._json import DAMAGE, explain, strict_converter
from ..errors import InputError


@attrs.frozen
class ImageSpec:
    """How pictures become tiles, and tiles tokens."""

    size: int
    """Edge of a square tile in pixels."""
    tokens_per_tile: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    min_tiles: int
    max_tiles: int
    thumbnail: bool
    """Append the whole picture as a last tile when there is more than one."""
    tiles_per_call: int
    """Tiles in one execute of the ``vision`` entry (its first dimension)."""


@attrs.frozen
class TextSpec:
    """Shape of the language model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    max_positions: int


@attrs.frozen
class EmbeddingSpec:
    """The embedding table: a raw row-major file among the assets, memory-mapped by the pipeline."""

    file: str
    dtype: str
    """``float32``, ``float16`` or ``bfloat16`` (read as uint16 and widened)."""


@attrs.frozen
class TokenizerSpec:
    """Which tokenizer to build, and from which assets."""

    kind: str
    """``tokenizer_json``, ``bpe`` (vocab.json + merges.txt + added_tokens.json), ``sentencepiece``, ``gguf``."""
    files: tuple[str, ...]
    added_tokens: Mapping[str, int] = attrs.field(factory=dict)
    """Special tokens that the files do not hold."""
    add_bos: bool = False


@attrs.frozen
class PromptSpec:
    """How a conversation becomes text. Image strings are empty for text-only models."""

    template: str
    """``internvl2_5``, ``hermes-2``, ``internlm2-chat``, ``phi3-chat``, ``chatml`` or ``jinja``."""
    system: str | None
    """System message; ``None`` writes no system turn."""
    image_start: str = ""
    image_context: str = ""
    image_end: str = ""
    jinja: str = ""
    """The template's text, where ``template`` is ``jinja``."""


@attrs.frozen
class LlmEntry:
    """One AR-N graph over a context of C slots."""

    name: str
    tokens: int
    """N: new tokens per execute. 1 is decode."""
    context: int
    """C: past slots + N."""


@attrs.frozen
class ModelDescription:
    """Everything above, for one model. Entry contracts are in docs/graph-contract.md."""

    name: str
    family: str
    """Language-model family: ``qwen2``, ``qwen3``, ``internlm2``, ``llama``."""
    text: TextSpec
    embedding: EmbeddingSpec
    tokenizer: TokenizerSpec
    prompt: PromptSpec
    stop_ids: tuple[int, ...]
    llm: tuple[LlmEntry, ...]
    mask_value: float
    image: ImageSpec | None = None
    """``None``: a text-only model; there is no ``vision`` entry."""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        data: dict[str, Any] = cattrs.unstructure(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelDescription:
        """Inverse of ``to_json``. ``InputError`` names the field that is wrong."""
        if not data:
            raise InputError(
                "this artifact holds plain graphs without a model description", fix="use `isthmus run` for it"
            )
        try:
            return strict_converter().structure(data, cls)
        except DAMAGE as error:
            raise InputError(f"the model description is damaged: {explain(error)}") from error
