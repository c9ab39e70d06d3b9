"""A checkpoint directory or file as one value: configuration, weights by canonical name, prompt, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ..errors import InputError, UnsupportedError
from . import image, prompt
from .config import Config
from .description import ImageSpec, PromptSpec, TokenizerSpec
from .layouts import EARLY_NATIVE, NATIVE, REMOTE, TEXT_ONLY, Weights, text_weights, vision_weights
from .tensors import Tensor, open_safetensors
from .text_config import FAMILIES, TextConfig, family_of, text_config
from .vision_config import VisionConfig, native_vision_config, remote_vision_config
from .vocabulary import open_vocabulary


@attrs.frozen
class Checkpoint:
    """Everything the exporter needs. All shapes have been checked; no weight has been read."""

    path: Path
    text: TextConfig
    weights: Mapping[str, Tensor] = attrs.field(repr=False)
    """By canonical name, see ``isthmus.models.layouts``."""
    tokenizer: TokenizerSpec
    prompt: PromptSpec
    stop_ids: tuple[int, ...]
    vision: VisionConfig | None = None
    image: ImageSpec | None = None


def open_checkpoint(path: Path, *, tiles_per_call: int = 1) -> Checkpoint:
    """Read what is needed to plan an export.

    ``InputError`` for what is damaged, missing or contradictory; ``UnsupportedError`` for a model this version does not
    build. Both name the key or tensor.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a checkpoint directory", fix="give the directory that holds config.json")
    config = Config.load(path / "config.json")
    kind = config.text("model_type")
    if config.get("quantization_config"):
        raise UnsupportedError(f"{config.where}: quantization_config", fix="use the unquantised checkpoint")
    if kind == "internvl":
        return _open_native(path, config, tiles_per_call)
    if kind == "internvl_chat":
        return _open_remote(path, config, tiles_per_call)
    return _open_text(path, config, kind)


def _open_native(path: Path, config: Config, tiles_per_call: int) -> Checkpoint:
    llm = config.section("text_config")
    text, vision = text_config(llm, family_of(llm, native=True)), native_vision_config(config)
    vocabulary = open_vocabulary(path)
    template = prompt.native_prompt(path, config, vocabulary)
    picture = image.native_image(path, config, vision, tiles_per_call)
    tensors = open_safetensors(path)
    prefixes = NATIVE if any(name.startswith("model.language_model.") for name in tensors) else EARLY_NATIVE
    w = Weights(tensors, str(path))
    weights = text_weights(w, text, prefixes) | vision_weights(w, vision, text.hidden, prefixes)
    w.refuse_leftovers()
    stops = prompt.stop_ids(path, llm, template, vocabulary)
    return Checkpoint(path, text, weights, vocabulary.spec, template, stops, vision, picture)


def _open_remote(path: Path, config: Config, tiles_per_call: int) -> Checkpoint:
    llm = config.section("llm_config")
    text, vision = text_config(llm, family_of(llm, native=False)), remote_vision_config(config)
    vocabulary = open_vocabulary(path)
    template = prompt.remote_prompt(config, vocabulary)
    picture = image.remote_image(path, config, vision, tiles_per_call)
    w = Weights(open_safetensors(path), str(path))
    weights = text_weights(w, text, REMOTE) | vision_weights(w, vision, text.hidden, REMOTE)
    w.refuse_leftovers()
    stops = prompt.stop_ids(path, llm, template, vocabulary)
    return Checkpoint(path, text, weights, vocabulary.spec, template, stops, vision, picture)


def _open_text(path: Path, config: Config, kind: str) -> Checkpoint:
    if kind not in FAMILIES.values() and not str((config.get("architectures") or [""])[0]).endswith("ForCausalLM"):
        raise InputError(
            f"{config.where}: model_type is {kind!r}",
            why="this is neither an InternVL model nor a language model",
            fix="give a checkpoint of InternVL, Qwen2, Qwen3, Llama or InternLM2",
        )
    text = text_config(config, family_of(config, native=True))
    vocabulary = open_vocabulary(path)
    template = prompt.text_prompt(path)
    w = Weights(open_safetensors(path), str(path))
    weights = text_weights(w, text, TEXT_ONLY)
    w.refuse_leftovers()
    stops = prompt.stop_ids(path, config, template, vocabulary)
    return Checkpoint(path, text, weights, vocabulary.spec, template, stops)
