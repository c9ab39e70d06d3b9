"""A conversation becomes token ids, with a place for every row of image features.

What a user types can never act as markup. Control tokens in it are swapped for private marks before the template is
applied and put back as plain characters when the text between the template's own control tokens is encoded. Control
tokens cut a text hard, so for all other text the ids are those of encoding the whole prompt at once. The words of
InternVL's grounding answers (``<ref>``, ``<box>``, ``<quad>``) stay tokens: users write them on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..models.description import ModelDescription
from .templates import NAMED, Message, Template, jinja_template
from .tokens import Tokenizer, control_ids

PLACEHOLDER = "<image>"
"""Where a picture goes in a user's text; put in front if absent."""

_OPEN, _CLOSE = "\ue000", "\ue001"  # private use area; text that holds one is escaped like a control token
_IMAGE = f"{_OPEN}image{_CLOSE}"
_ESCAPED = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_USER_TOKENS = frozenset({"<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>"})


@attrs.frozen
class Turn:
    """What the user said (as ``Prompter.user_text`` wrote it) and the answer."""

    user: str
    answer: str


@attrs.frozen(eq=False)
class Encoded:
    """Token ids of a prompt, int64 [n], and which of them are rows of image features, bool [n]."""

    ids: NDArray[np.int64]
    is_image: NDArray[np.bool_]


class Prompter:
    """Writes prompts for one model."""

    def __init__(self, model: ModelDescription, tokenizer: Tokenizer) -> None:
        self._spec = spec = model.prompt
        self._tokenizer = tokenizer
        self._image_ids: list[int] = []
        if model.image is not None:
            marks = (spec.image_start, spec.image_context, spec.image_end)
            self._image_ids = control_ids(tokenizer, marks, "the place of pictures in the prompt")
        self._template = self._find_template()
        self._first = () if spec.template == "jinja" else tokenizer.bos
        self._escaped = [_OPEN, _CLOSE, *(t for t in tokenizer.special if t not in _USER_TOKENS)]
        self._escaped.sort(key=len, reverse=True)
        self._to_escape = re.compile("|".join(map(re.escape, self._escaped)))

    def user_text(self, text: str, pictures: int) -> str:
        """Escape a user's text and place its pictures. ``InputError``: empty, or not one placeholder per picture."""
        if not text.strip():
            raise InputError("the prompt is empty", fix="ask something")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not valid Unicode: {error}") from error
        if not self._image_ids:
            if pictures:
                raise InputError(f"{pictures} pictures for a text-only model", fix="use an InternVL artifact")
            return self._escape(text)
        if PLACEHOLDER not in text:
            text = _prefix(pictures) + text
        found = text.count(PLACEHOLDER)
        if found != pictures:
            raise InputError(
                f"the text has {found} {PLACEHOLDER} placeholders for {pictures} pictures",
                fix="one placeholder per picture, or none at all: then they are put in front",
            )
        return self._escape(text).replace(self._escape(PLACEHOLDER), _IMAGE)

    def render(self, turns: Sequence[Turn], user: str, system: str | None) -> str:
        """The whole conversation as text, pictures and escaped words still marked."""
        messages: list[Message] = []
        if system is not None:
            messages.append({"role": "system", "content": self._escape(system)})
        for turn in turns:
            messages.append({"role": "user", "content": turn.user})
            messages.append({"role": "assistant", "content": self._escape(turn.answer)})
        messages.append({"role": "user", "content": user})
        return self._template(messages)

    def encode(self, rendered: str, rows: Sequence[int]) -> Encoded:
        """Token ids of a rendered conversation; picture i takes ``rows[i]`` image tokens between its two marks."""
        ids, images = list(self._first), []
        parts = rendered.split(_IMAGE)
        if len(parts) - 1 != len(rows):
            raise InputError(
                f"the chat template placed {len(parts) - 1} of {len(rows)} pictures",
                why="it drops or repeats parts of a conversation",
            )
        for place, part in enumerate(parts):
            if place:
                start, context, end = self._image_ids
                images.append(slice(len(ids) + 1, len(ids) + 1 + rows[place - 1]))
                ids += [start, *[context] * rows[place - 1], end]
            for piece in self._tokenizer.split(part):
                ids += self._encode_piece(piece)
        encoded = Encoded(np.array(ids, np.int64), np.zeros(len(ids), np.bool_))
        for image in images:
            encoded.is_image[image] = True
        return encoded

    def check_contract(self, encoded: Encoded, tiles: int, tokens_per_tile: int, feature_rows: int) -> None:
        """The one contract between prompt, tiles and vision: image tokens = rows of features = tiles x tokens each."""
        found = int(np.count_nonzero(encoded.ids == self._image_ids[1])) if self._image_ids else 0
        placed = int(np.count_nonzero(encoded.is_image))
        expected = tiles * tokens_per_tile
        if not found == placed == feature_rows == expected:
            raise InputError(
                f"the prompt has {found} image tokens, {placed} of them placed by a picture; vision gave {feature_rows} "
                f"rows of features; {tiles} tiles of {tokens_per_tile} tokens are {expected}",
                why="the prompt template, the vision entry and the model description do not belong together",
                fix="export the checkpoint again",
            )

    def _encode_piece(self, piece: str) -> list[int]:
        if piece in self._tokenizer.special:
            return [self._tokenizer.special[piece]]
        plain = _ESCAPED.sub(lambda m: self._escaped[int(m[1])], piece)
        return self._tokenizer.encode(plain)

    def _escape(self, text: str) -> str:
        return self._to_escape.sub(lambda m: f"{_OPEN}{self._escaped.index(m[0])}{_CLOSE}", text)

    def _find_template(self) -> Template:
        spec = self._spec
        if spec.template == "jinja":
            return jinja_template(spec.jinja)
        if spec.template not in NAMED:
            raise InputError(f"unknown prompt template {spec.template!r}; known: {', '.join(NAMED)}, jinja")
        markup = NAMED[spec.template]
        control_ids(self._tokenizer, markup.controls, f"the prompt template {spec.template}")
        return markup


def _prefix(pictures: int) -> str:
    """InternVL's convention: one picture stands alone, several are numbered."""
    if pictures == 1:
        return f"{PLACEHOLDER}\n"
    return "".join(f"Image-{i}: {PLACEHOLDER}\n" for i in range(1, pictures + 1))
