"""Tokenizer files of a checkpoint: which kind they are, and the ids of single strings in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
        vocab = Config.load(directory / "vocab.json").token_ids()
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
    model = file.section("model")
    if model.get("type") == "Unigram":  # pairs of token and score
        vocab = {str(pair[0]): i for i, pair in enumerate(model.get("vocab") or ()) if isinstance(pair, list) and pair}
    else:
        vocab = model.section("vocab").token_ids()
    added = {token.text("content"): token.token_id("id") for token in file.sections("added_tokens")}
    return Vocabulary(TokenizerSpec("tokenizer_json", ("tokenizer.json",)), directory, {**vocab, **added})


def _added_tokens(directory: Path) -> dict[str, int]:
    """Special tokens outside the vocabulary, from both files that may list them."""
    listed = Config.load_optional(directory / "added_tokens.json").token_ids()
    decoder = Config.load_optional(directory / "tokenizer_config.json").optional_section("added_tokens_decoder")
    for number in decoder.data:
        token = decoder.section(number).text("content")
        if str(listed.setdefault(token, int(number) if number.isdecimal() else -1)) != number:
            raise InputError(
                f"token {token!r} is {listed[token]} in added_tokens.json and {number} in tokenizer_config.json"
                f" of {directory}"
            )
    return listed


def _need(directory: Path, name: str) -> None:
    if not (directory / name).is_file():
        raise InputError(f"no {name} in {directory}", fix="download the tokenizer files of the checkpoint")
