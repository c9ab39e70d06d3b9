"""Tokenizer files of a checkpoint: which kind they are, and the ids of single strings in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..errors import InputError
from .config import Config
from .description import TokenizerSpec


@attrs.frozen
class Vocabulary:
    """Token strings to ids, and what a pipeline needs to build the tokenizer."""

    spec: TokenizerSpec
    directory: Path
    ids: Mapping[str, int] = attrs.field(repr=False)

    @property
    def assets(self) -> dict[str, Path]:
        """The tokenizer's files by name."""
        return {name: self.directory / name for name in self.spec.files}

    def id(self, token: str) -> int:
        """The id of a special token; ``InputError`` names it if it is not one."""
        if token not in self.ids:
            raise InputError(
                f"the tokenizer in {self.directory} has no token {token!r}",
                why="the prompt template needs it: tokenizer and configuration do not belong together",
            )
        return self.ids[token]


def open_vocabulary(directory: Path) -> Vocabulary:
    """tokenizer.json, or vocab.json with merges.txt, or tokenizer.model; the first that is there."""
    if (directory / "tokenizer.json").is_file():
        return _tokenizer_json(directory)
    added = _added_tokens(directory)
    if (directory / "vocab.json").is_file():
        files = ("vocab.json", "merges.txt")
        _need(directory, files[1])
        vocab = Config.load(directory / "vocab.json").data
        return Vocabulary(TokenizerSpec("bpe", files, added), directory, {**vocab, **added})
    if (directory / "tokenizer.model").is_file():
        bos = Config.load_optional(directory / "tokenizer_config.json").flag("add_bos_token", True)
        spec = TokenizerSpec("sentencepiece", ("tokenizer.model",), added, add_bos=bos)
        return Vocabulary(spec, directory, added)
    raise InputError(
        f"no tokenizer in {directory}",
        why="there is neither tokenizer.json, nor vocab.json, nor tokenizer.model",
        fix="download the tokenizer files of the checkpoint",
    )


def _tokenizer_json(directory: Path) -> Vocabulary:
    file = Config.load(directory / "tokenizer.json")
    vocab = file.section("model").get("vocab")
    if isinstance(vocab, list):  # unigram: [token, score] pairs
        vocab = {pair[0]: i for i, pair in enumerate(vocab)}
    if not isinstance(vocab, dict):
        raise InputError(f"{file.where}: model has no vocab")
    added = {token["content"]: token["id"] for token in file.get("added_tokens") or ()}
    return Vocabulary(TokenizerSpec("tokenizer_json", ("tokenizer.json",)), directory, {**vocab, **added})


def _added_tokens(directory: Path) -> dict[str, int]:
    """Special tokens outside the vocabulary, from both files that may list them."""
    listed: dict[str, Any] = dict(Config.load_optional(directory / "added_tokens.json").data)
    decoder = Config.load_optional(directory / "tokenizer_config.json").get("added_tokens_decoder") or {}
    for number, token in decoder.items():
        if listed.setdefault(token["content"], int(number)) != int(number):
            raise InputError(
                f"token {token['content']!r} is {listed[token['content']]} in added_tokens.json"
                f" and {number} in tokenizer_config.json of {directory}"
            )
    return listed


def _need(directory: Path, name: str) -> None:
    if not (directory / name).is_file():
        raise InputError(f"no {name} in {directory}", fix="download the tokenizer files of the checkpoint")
