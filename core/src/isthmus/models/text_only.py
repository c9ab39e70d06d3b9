"""Language models without a vision tower: Qwen2, Qwen3, Llama and InternLM2 in safetensors."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from .checkpoint import Checkpoint
from .config import Config
from .layouts import TEXT_ONLY, Weights, text_weights
from .prompt import stop_ids, text_prompt
from .tensors import open_safetensors
from .text_config import FAMILIES, family_of, text_config
from .vocabulary import open_vocabulary


def open_text(path: Path, config: Config) -> Checkpoint:
    """A checkpoint whose configuration is that of the language model itself."""
    _refuse_other_kinds(config)
    text = text_config(config, family_of(config, native=True))
    vocabulary = open_vocabulary(path)
    prompt = text_prompt(path)
    w = Weights(open_safetensors(path), str(path))
    weights = text_weights(w, text, TEXT_ONLY)
    w.refuse_leftovers()
    return Checkpoint(
        name=path.resolve().name,
        text=text,
        weights=weights,
        tokenizer=vocabulary.spec,
        assets=vocabulary.assets,
        prompt=prompt,
        stop_ids=stop_ids(path, config, prompt, vocabulary),
    )


def _refuse_other_kinds(config: Config) -> None:
    kind = config.text("model_type")
    causal = any(name.endswith("ForCausalLM") for name in config.texts("architectures"))
    if kind not in FAMILIES.values() and not causal:
        raise InputError(
            f"{config.where}: model_type is {kind!r}",
            why="this is neither an InternVL model nor a language model",
            fix="give a checkpoint of InternVL, Qwen2, Qwen3, Llama or InternLM2",
        )
