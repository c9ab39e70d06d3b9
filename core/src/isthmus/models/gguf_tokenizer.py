"""The tokenizer, chat template and stop tokens inside a GGUF file's metadata."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, UnavailableError, UnsupportedError
from .config import Config
from .description import PromptSpec
from .prompt import jinja_prompt

_CONTROL, _USER_DEFINED = 3, 4
_DIGITS_APART = {"smollm": True, "gpt-2": False, "default": False}
"""Supported values of tokenizer.ggml.pre: GPT-2's byte-level split, with single digits or not (llama.cpp)."""


def tokenizer_json(meta: Config) -> bytes:
    """The same tokenizer as a ``tokenizer.json``. ``UnsupportedError`` names a kind this version does not know."""
    meta.require("tokenizer.ggml.model", "gpt2", why="only byte-level BPE is read from GGUF")
    pre = meta.text("tokenizer.ggml.pre", "default")
    if pre not in _DIGITS_APART:
        raise UnsupportedError(f"{meta.where}: tokenizer.ggml.pre is {pre!r}; supported: {', '.join(_DIGITS_APART)}")
    tokens, merges, kinds = (_listed(meta, f"tokenizer.ggml.{part}") for part in ("tokens", "merges", "token_type"))
    if len(kinds) != len(tokens):
        raise InputError(f"{meta.where}: {len(tokens)} tokens but {len(kinds)} token types")
    special = [t for t, kind in zip(tokens, kinds) if kind in (_CONTROL, _USER_DEFINED)]
    bos = _token(meta, "bos") if meta.flag("tokenizer.ggml.add_bos_token", False) else None
    try:
        return _build(tokens, merges, special, digits_apart=_DIGITS_APART[pre], bos=bos)
    except ImportError as error:
        raise UnavailableError(
            "the tokenizers library is not installed", fix="pip install 'isthmus[pipeline]'"
        ) from error
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"the tokenizer in {meta.where} cannot be built: {error}") from error


def _build(tokens: list[str], merges: list[str], special: list[str], *, digits_apart: bool, bos: str | None) -> bytes:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    ids = {token: i for i, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    built = Tokenizer(models.BPE(vocab=ids, merges=pairs))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if digits_apart else []
    built.pre_tokenizer = pre_tokenizers.Sequence([*digits, split])
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if bos is not None:
        built.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids[bos])])
    text: str = built.to_str()
    return text.encode()


def gguf_prompt(meta: Config) -> PromptSpec:
    """The file's own chat template; without one the prompt is the text itself."""
    names = {f"{name}_token": _token(meta, name) for name in ("bos", "eos")}
    return jinja_prompt(meta.text("tokenizer.chat_template", ""), names)


def gguf_stop_ids(meta: Config) -> tuple[int, ...]:
    """End of sequence and, where the file knows one, end of turn."""
    ends = {number for name in ("eos", "eot") if (number := _token_id(meta, name)) is not None}
    if not ends:
        raise InputError(f"{meta.where} has no tokenizer.ggml.eos_token_id")
    return tuple(sorted(ends))


def _token_id(meta: Config, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    number, count = meta.get(key), len(_listed(meta, "tokenizer.ggml.tokens"))
    if number is not None and not (isinstance(number, int) and 0 <= number < count):
        raise InputError(f"{meta.where}: {key} is {number!r}, not one of {count} tokens")
    return number


def _token(meta: Config, name: str) -> str | None:
    number = _token_id(meta, name)
    return None if number is None else _listed(meta, "tokenizer.ggml.tokens")[number]


def _listed(meta: Config, key: str) -> list[Any]:
    value = meta.get(key)
    if not isinstance(value, list) or not value:
        raise InputError(f"{meta.where} has no {key}", why="its tokenizer was not written into it")
    return value
