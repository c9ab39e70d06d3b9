"""A checkpoint as one value, whatever files it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from .description import ImageSpec, PromptSpec, TokenizerSpec
from .tensors import Tensor
from .text_config import TextConfig
from .vision_config import VisionConfig


@attrs.frozen
class Checkpoint:
    """Everything the exporter needs. All shapes have been checked; no weight has been read."""

    name: str
    text: TextConfig
    weights: Mapping[str, Tensor] = attrs.field(repr=False)
    """By canonical name, see ``isthmus.models.layouts``."""
    tokenizer: TokenizerSpec
    assets: Mapping[str, Path | bytes] = attrs.field(repr=False)
    """The tokenizer's files by name: where they are, or what they hold."""
    prompt: PromptSpec
    stop_ids: tuple[int, ...]
    vision: VisionConfig | None = None
    image: ImageSpec | None = None
