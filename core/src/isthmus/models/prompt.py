"""Prompt template, system message and stop tokens of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedError
from .config import Config
from .description import PromptSpec
from .vocabulary import Vocabulary

# Templates of OpenGVLab's conversation.py, with the system message each one falls back to.
_INTERNVL2 = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
)
_INTERNVL2_5 = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_SYSTEM = {"hermes-2": _INTERNVL2, "internlm2-chat": _INTERNVL2, "internvl2_5": _INTERNVL2_5}
_SEPARATOR = "<|im_end|>"
_PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def native_prompt(directory: Path, model: Config, vocabulary: Vocabulary) -> PromptSpec:
    """transformers' InternVL: the text of InternVL 2.5, without a default system message, as its chat template."""
    tokenizer = Config.load_optional(directory / "tokenizer_config.json")
    extra = tokenizer.optional_section("extra_special_tokens")
    start, context, end = (
        extra.text(key, tokenizer.text(key, default))
        for key, default in (
            ("start_image_token", "<img>"),
            ("context_image_token", "<IMG_CONTEXT>"),
            ("end_image_token", "</img>"),
        )
    )
    prompt = PromptSpec("internvl2_5", None, start, context, end)
    _check_image_tokens(prompt, vocabulary)
    found, stated = vocabulary.id(prompt.image_context), model.integer("image_token_id")
    if found != stated:
        raise InputError(
            f"{prompt.image_context} is token {found} in the tokenizer and {stated} in {model.where}: image_token_id",
            why="tokenizer and configuration do not belong together",
        )
    return prompt


def remote_prompt(model: Config, vocabulary: Vocabulary) -> PromptSpec:
    """OpenGVLab's remote code: the template it names; a null system message means the template's own."""
    template = model.text("template").lower()
    if template not in _SYSTEM:
        raise UnsupportedError(f"{model.where}: template {model.text('template')!r}; supported: {', '.join(_SYSTEM)}")
    system = model.text("system_message", _SYSTEM[template])
    prompt = PromptSpec(template, system, "<img>", "<IMG_CONTEXT>", "</img>")
    _check_image_tokens(prompt, vocabulary)
    return prompt


def text_prompt(directory: Path) -> PromptSpec:
    """A text-only checkpoint's own Jinja template; without one the prompt is the text itself."""
    tokenizer = Config.load_optional(directory / "tokenizer_config.json")
    file = directory / "chat_template.jinja"
    template = file.read_text("utf-8") if file.is_file() else _named_template(tokenizer)
    return jinja_prompt(template, {name: _token_text(tokenizer.get(name)) for name in ("bos_token", "eos_token")})


def jinja_prompt(template: str | None, tokens: dict[str, str | None]) -> PromptSpec:
    """A prompt from a Jinja ``template``; the special tokens it may use are set at its top, so that it needs no more."""
    defined = "".join(
        f"{{% set {name} = {json.dumps(text, ensure_ascii=False)} +%}}" for name, text in tokens.items() if text
    )
    return PromptSpec("jinja", None, jinja=defined + (template or _PLAIN))


def stop_ids(directory: Path, text: Config, prompt: PromptSpec, vocabulary: Vocabulary) -> tuple[int, ...]:
    """End-of-sequence ids of generation_config.json, or else of the configuration, and the template's separator."""
    stops = _ids(Config.load_optional(directory / "generation_config.json")) or _ids(text)
    if prompt.template != "jinja":
        stops |= {vocabulary.id(_SEPARATOR)}
    else:
        eos = _token_text(Config.load_optional(directory / "tokenizer_config.json").get("eos_token"))
        if eos is not None and (eos in vocabulary.ids or not stops):  # a sentencepiece vocabulary is not read here
            stops |= {vocabulary.id(eos)}
    if not stops:
        raise InputError(f"no end-of-sequence token in {directory}", fix="state eos_token_id in generation_config.json")
    return tuple(sorted(stops))


def _ids(config: Config) -> set[int]:
    value = config.get("eos_token_id")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in listed):
        raise InputError(f"{config.where}: eos_token_id is {json.dumps(value)}, not one or more token ids")
    return set(listed)


def _check_image_tokens(prompt: PromptSpec, vocabulary: Vocabulary) -> None:
    for token in (prompt.image_start, prompt.image_context, prompt.image_end):
        vocabulary.id(token)


def _token_text(value: Any) -> str | None:
    """A special token as older (object) and newer (string) tokenizer configurations write it."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _named_template(tokenizer: Config) -> str | None:
    """``chat_template`` is a string, or a list of named ones."""
    if isinstance(tokenizer.get("chat_template"), list):
        named = [t for t in tokenizer.sections("chat_template") if t.get("name") == "default"]
        return named[0].text("template") if named else None
    return tokenizer.text("chat_template", "")
