"""Text to token ids and back.

``encode`` takes text literally: a control token typed by a user (``<|im_end|>``, ``<IMG_CONTEXT>``) becomes ordinary
characters. Only ``split`` and ``encode(special=True)``, which see our own templates, recognise control tokens.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as FastModel
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from ..errors import InputError
from ..models.description import TokenizerSpec

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer cuts text into words before BPE. Source: the pre_tokenizer of its tokenizer.json."""

_QWEN_VISIBLE = frozenset(f"<{slash}{name}>" for name in ("think", "tool_call", "tool_response") for slash in ("", "/"))
"""Added tokens that are part of an answer's text. Source: ``special: false`` in Qwen's tokenizer_config.json."""


class Tokenizer(abc.ABC):
    """One tokenizer. ``special`` maps control tokens to their ids; ``bos`` is what every prompt starts with."""

    def __init__(
        self, special: Mapping[str, int], bos: Sequence[int] = (), trim: Mapping[str, tuple[bool, bool]] | None = None
    ) -> None:
        self.special = dict(special)
        self.bos = tuple(bos)
        self._trim = trim or {}
        words = sorted((s for s in self.special if s), key=len, reverse=True)
        self._controls = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of ``text``, without ``bos``; control tokens are recognised only if ``special``."""
        if not special:
            return self._encode(text) if text else []
        ids: list[int] = []
        for part in self.split(text):
            ids += [self.special[part]] if part in self.special else self.encode(part)
        return ids

    def split(self, text: str) -> list[str]:
        """``text`` cut at its control tokens, which are elements of their own.

        Control tokens that are declared to swallow the white space beside them (Phi-3's are) do so here.
        """
        if self._controls is None:
            return [text] if text else []
        parts = self._controls.split(text)
        for i in range(1, len(parts), 2):
            before, after = self._trim.get(parts[i], (False, False))
            parts[i - 1] = parts[i - 1].rstrip() if before else parts[i - 1]
            parts[i + 1] = parts[i + 1].lstrip() if after else parts[i + 1]
        return [p for p in parts if p]

    @abc.abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without control tokens. Bytes that are not UTF-8 become U+FFFD."""


def load_tokenizer(spec: TokenizerSpec, asset: Callable[[str], Path], *, controls: Collection[str] = ()) -> Tokenizer:
    """Build the tokenizer of a model; ``asset`` gives the path of one of its files.

    ``controls`` are the prompt's own markers: control tokens even where the files do not mark them as special.
    ``InputError``: a file is damaged or missing, or an id is not the one the model was trained with.
    """
    kinds = {"tokenizer_json": _from_json, "gguf": _from_json, "bpe": _from_bpe, "sentencepiece": _SentencePiece.load}
    if spec.kind not in kinds:
        raise InputError(f"unknown tokenizer kind {spec.kind!r}; known: {', '.join(kinds)}")
    files = {name: asset(name) for name in spec.files}
    try:
        return kinds[spec.kind](spec, files, frozenset(controls))
    except InputError:
        raise
    except Exception as error:  # tokenizers and sentencepiece raise bare Exception on damaged files
        raise InputError(
            f"the tokenizer files {', '.join(spec.files)} cannot be used: {error}", fix="export the checkpoint again"
        ) from error


class _Fast(Tokenizer):
    """A model of the ``tokenizers`` library."""

    def __init__(self, model: FastModel, bos: Sequence[int] = ()) -> None:
        added = {i: t for i, t in model.get_added_tokens_decoder().items() if t.special}
        super().__init__(
            {t.content: i for i, t in added.items()}, bos, {t.content: (t.lstrip, t.rstrip) for t in added.values()}
        )
        model.encode_special_tokens = True  # control tokens in plain text stay plain text
        self._model = model

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._model.decode(list(ids), skip_special_tokens=True))


def _from_json(spec: TokenizerSpec, files: Mapping[str, Path], controls: frozenset[str]) -> Tokenizer:
    (file,) = (f for name, f in files.items() if name.endswith(".json"))
    data = json.loads(file.read_text("utf-8"))
    _never_prepend(data.get("pre_tokenizer"))
    model = FastModel.from_str(json.dumps(data))
    model.no_truncation()
    model.no_padding()
    known = [t.content for t in model.get_added_tokens_decoder().values()]
    _add_special(model, {name: i for name in {*known} & controls if (i := model.token_to_id(name)) is not None})
    _add_special(model, spec.added_tokens)
    bos = model.encode("", add_special_tokens=True).ids[:1] if spec.add_bos else []
    if spec.add_bos and not bos:
        raise InputError("the model wants a first token, but its tokenizer.json adds none")
    return _Fast(model, bos)


def _never_prepend(pre_tokenizer: Any) -> None:
    """Metaspace puts a space before text that comes first. Our prompts start with a control token, so none comes first."""
    for part in [pre_tokenizer, *((pre_tokenizer or {}).get("pretokenizers", []))]:
        if part and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"


def _from_bpe(spec: TokenizerSpec, files: Mapping[str, Path], controls: frozenset[str]) -> Tokenizer:
    """Byte-level BPE as in Qwen2's vocab.json and merges.txt, with added_tokens.json where there is one."""
    named = {Path(name).name: f for name, f in files.items()}
    vocab, merges = BPE.read_file(str(named["vocab.json"]), str(named["merges.txt"]))
    added: dict[str, int] = {}
    if "added_tokens.json" in named:
        added = json.loads(named["added_tokens.json"].read_text("utf-8"))
    added |= spec.added_tokens
    # In the vocabulary too: the library numbers unknown added tokens in sequence, and the real ids have gaps.
    model = FastModel(BPE(vocab={**vocab, **added}, merges=merges))
    model.normalizer = NFC()
    words: list[PreTokenizer] = [
        Split(Regex(_QWEN_WORDS), "isolated"),
        ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    model.pre_tokenizer = PreTokenizers(words)
    model.decoder = ByteLevelDecoder()
    special = {n: i for n, i in added.items() if n not in _QWEN_VISIBLE}
    _add_special(model, special)
    model.add_tokens([AddedToken(n, normalized=False) for n in added.keys() - special.keys()])
    return _Fast(model)


def _add_special(model: FastModel, tokens: Mapping[str, int]) -> None:
    by_id = sorted(tokens, key=lambda name: tokens[name])
    model.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in by_id])
    for name, wanted in tokens.items():
        if (got := model.token_to_id(name)) != wanted:
            raise InputError(f"control token {name!r} gets id {got}; the model was trained with {wanted}")


class _SentencePiece(Tokenizer):
    """A ``tokenizer.model`` of sentencepiece, with added tokens above or in place of its unused pieces."""

    def __init__(self, model: Any, special: Mapping[str, int], bos: Sequence[int]) -> None:
        super().__init__(special, bos)
        self._model = model
        self._hidden = frozenset(special.values())

    @classmethod
    def load(cls, spec: TokenizerSpec, files: Mapping[str, Path], controls: frozenset[str]) -> _SentencePiece:
        import sentencepiece

        (file,) = (f for name, f in files.items() if name.endswith(".model"))
        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        pieces = range(model.get_piece_size())
        special = {model.id_to_piece(i): i for i in pieces if model.is_control(i)} | dict(spec.added_tokens)
        missing = controls - special.keys()
        special |= {name: i for name in missing if (i := model.piece_to_id(name)) != model.unk_id()}
        return cls(model, special, [model.bos_id()] if spec.add_bos else [])

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._model.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        size = self._model.get_piece_size()
        return str(self._model.decode([int(i) for i in ids if i not in self._hidden and i < size]))


class StreamDecoder:
    """Turns ids into text one by one, never a part of a character: bytes wait until their character is whole.

    The pieces add up to ``decode`` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset(tokenizer.special.values())
        self._window: list[int] = []
        """The ids of the last piece, for context (a first token loses its leading space), then those not yet shown."""
        self._shown = 0

    def push(self, token: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        if token in self._hidden:
            return ""
        self._window.append(token)
        text = self._pending()
        if not text or text.endswith("\ufffd"):
            return ""
        return self._emit(text)

    def flush(self) -> str:
        """What is left at the end; an incomplete character becomes U+FFFD."""
        return self._emit(self._pending())

    def _pending(self) -> str:
        shown = self._tokenizer.decode(self._window[: self._shown])
        return self._tokenizer.decode(self._window)[len(shown) :]

    def _emit(self, text: str) -> str:
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text


def control_ids(tokenizer: Tokenizer, names: Iterable[str], why: str) -> list[int]:
    """Ids of control tokens. ``InputError`` names those the tokenizer lacks, and ``why`` they are needed."""
    names = list(names)
    missing = [n for n in names if n not in tokenizer.special]
    if missing:
        raise InputError(f"the tokenizer has no token {', '.join(map(repr, missing))}, which {why} needs")
    return [tokenizer.special[n] for n in names]
