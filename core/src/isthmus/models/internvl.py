"""InternVL checkpoints: OpenGVLab's remote code, and transformers' own layout, early and current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .checkpoint import Checkpoint
from .config import Config
from .image import native_image, remote_image
from .layouts import EARLY_NATIVE, NATIVE, REMOTE, Prefixes, Weights, text_weights, vision_weights
from .prompt import native_prompt, remote_prompt, stop_ids
from .tensors import Tensor, open_safetensors
from .text_config import TextConfig, family_of, text_config
from .vision_config import VisionConfig, native_vision_config, remote_vision_config
from .vocabulary import open_vocabulary


def open_native(path: Path, config: Config, tiles_per_call: int) -> Checkpoint:
    """``model_type: internvl``. The first -hf repositories name their tensors differently; the names tell."""
    llm = config.section("text_config")
    text, vision = text_config(llm, family_of(llm, native=True), config), native_vision_config(config)
    vocabulary = open_vocabulary(path)
    prompt = native_prompt(path, config, vocabulary)
    tensors = open_safetensors(path)
    prefixes = NATIVE if any(name.startswith(NATIVE.text) for name in tensors) else EARLY_NATIVE
    return Checkpoint(
        name=path.resolve().name,
        text=text,
        weights=_weights(path, tensors, text, vision, prefixes),
        tokenizer=vocabulary.spec,
        assets=vocabulary.assets,
        prompt=prompt,
        stop_ids=stop_ids(path, llm, prompt, vocabulary),
        vision=vision,
        image=native_image(path, config, vision, tiles_per_call),
    )


def open_remote(path: Path, config: Config, tiles_per_call: int) -> Checkpoint:
    """``model_type: internvl_chat``."""
    llm = config.section("llm_config")
    text, vision = text_config(llm, family_of(llm, native=False), config), remote_vision_config(config)
    vocabulary = open_vocabulary(path)
    prompt = remote_prompt(config, vocabulary)
    return Checkpoint(
        name=path.resolve().name,
        text=text,
        weights=_weights(path, open_safetensors(path), text, vision, REMOTE),
        tokenizer=vocabulary.spec,
        assets=vocabulary.assets,
        prompt=prompt,
        stop_ids=stop_ids(path, llm, prompt, vocabulary),
        vision=vision,
        image=remote_image(path, config, vision, tiles_per_call),
    )


def _weights(
    path: Path, tensors: Mapping[str, Tensor], text: TextConfig, vision: VisionConfig, prefixes: Prefixes
) -> dict[str, Tensor]:
    w = Weights(tensors, str(path))
    found = text_weights(w, text, prefixes) | vision_weights(w, vision, text.hidden, prefixes)
    w.refuse_leftovers()
    return found
