"""A conversation: questions with pictures in, answers out; what was said before stays in the KV cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Self

import attrs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ClosedError, InputError
from .gate import Gate
from .generate import Answer, Timings, check_length, generate
from .picture import Picture, open_picture
from .prompt import Encoded, Turn
from .sample import GREEDY, Sampling
from .session import Prompt, Session
from .tiles import pixel_values

if TYPE_CHECKING:
    from .pipeline import Pipeline


@attrs.frozen(eq=False)
class _Picture:
    """A picture of an earlier turn: a rewritten prompt may have to compute its tokens again."""

    tiles: int
    features: NDArray[np.float32]


@attrs.frozen(eq=False)
class _Question:
    """A question that is ready to be answered, with all that was said before."""

    user: str
    pictures: tuple[_Picture, ...]
    prompt: Prompt
    tiling: float
    vision: float
    new_tiles: int


class Chat:
    """Made by ``Pipeline.chat``. Has a KV cache of its own; used by one thread at a time.

    A follow-up question renders the conversation again, compares token ids with those in the cache, and computes only
    what differs. A question that fails leaves the conversation as it was.
    """

    def __init__(self, pipeline: Pipeline, system: str | EllipsisType | None, use_cache: bool) -> None:
        self._pipeline = pipeline
        self._system = pipeline.model.prompt.system if isinstance(system, EllipsisType) else system
        self._turns: list[Turn] = []
        self._pictures: tuple[_Picture, ...] = ()
        self.session = Session(pipeline.program, pipeline.model, pipeline.table, use_cache=use_cache)
        """The language model below; for tools that look at logits."""
        self._closed = False

    def ask(
        self,
        text: str,
        images: Sequence[Picture] = (),
        *,
        sampling: Sampling = GREEDY,
        max_new_tokens: int = 512,
        on_text: Callable[[str], object] | None = None,
        gate: Gate | None = None,
    ) -> Answer:
        """Answer a question. ``on_text`` gets the answer in pieces while it is made.

        A ``gate`` stops an answer whose numbers or tokens cannot be right: for the first one of a loaded model.

        ``images`` go where ``<image>`` stands in ``text``, one each; without any they are put in front.
        ``InputError``: an empty question, a picture that is none, a prompt longer than the context.
        """
        check_length(max_new_tokens)
        question = self._question(text, images)
        pipeline = self._pipeline
        made = generate(
            self.session,
            question.prompt,
            pipeline.tokenizer,
            sampling,
            pipeline.model.stop_ids,
            max_new_tokens,
            on_text,
            gate,
        )
        self._turns.append(Turn(question.user, made.text))
        self._pictures = question.pictures
        prompt_tokens = len(question.prompt.ids)
        timings = Timings(
            tiling=question.tiling,
            vision=question.vision,
            prefill=made.prefill,
            decode=made.decode,
            tiles=question.new_tiles,
            prefill_tokens=prompt_tokens - made.reused,
            prefill_executes=made.prefill_executes,
            decode_steps=len(made.ids) - 1,
        )
        return Answer(
            made.text,
            made.ids,
            made.stop_reason,
            prompt_tokens,
            len(question.prompt.features),
            made.reused,
            timings,
        )

    def prompt(self, text: str, images: Sequence[Picture] = ()) -> Prompt:
        """What ``ask`` would feed the language model: token ids and image features. Changes nothing."""
        return self._question(text, images).prompt

    def clear(self) -> None:
        """Start a new conversation in the same memory: nothing said before is kept."""
        self._turns.clear()
        self._pictures = ()
        self.session.truncate(0)

    def close(self) -> None:
        """Free the memory of the conversation. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self.session.close()
            self._pipeline._forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _question(self, text: str, images: Sequence[Picture]) -> _Question:
        if self._closed:
            raise ClosedError("the chat is closed")
        if isinstance(images, str | bytes | os.PathLike | Image.Image):
            raise InputError("images must be a sequence of pictures", fix="images=[picture]")
        pipeline = self._pipeline
        user = pipeline.prompter.user_text(text, len(images))
        began = time.perf_counter()
        tiles = [self._tile(image) for image in images]
        tiled = time.perf_counter()
        encoded = self._encode(user, [len(t) for t in tiles])
        looked = time.perf_counter()
        pictures = (*self._pictures, *(_Picture(len(t), self._look(t)) for t in tiles))
        seen = time.perf_counter()
        prompt = self._join(encoded, pictures)
        return _Question(user, pictures, prompt, tiled - began, seen - looked, sum(len(t) for t in tiles))

    def _tile(self, image: Picture) -> NDArray[np.float32]:
        spec = self._pipeline.model.image
        assert spec is not None  # user_text refused pictures for text-only models
        return pixel_values(open_picture(image), spec)

    def _look(self, tiles: NDArray[np.float32]) -> NDArray[np.float32]:
        vision = self._pipeline.vision
        assert vision is not None
        return vision.encode(tiles)

    def _encode(self, user: str, new_tiles: Sequence[int]) -> Encoded:
        """Token ids of the conversation with this question. Checked for length before the vision entry runs."""
        pipeline = self._pipeline
        image = pipeline.model.image
        tiles = [*(p.tiles for p in self._pictures), *new_tiles]
        rows = [t * image.tokens_per_tile for t in tiles] if image else []
        encoded = pipeline.prompter.encode(pipeline.prompter.render(self._turns, user, self._system), rows)
        total, capacity = len(encoded.ids), self.session.capacity
        if total > capacity:
            raise InputError(
                f"the prompt has {total} tokens, {sum(rows)} of them for {sum(tiles)} image tiles; "
                f"the context holds {capacity}",
                why="pictures and everything said before count too" if rows or self._turns else None,
                fix="use fewer or squarer pictures, clear the conversation, or export with larger --contexts",
            )
        return encoded

    def _join(self, encoded: Encoded, pictures: Sequence[_Picture]) -> Prompt:
        pipeline = self._pipeline
        image, tiles = pipeline.model.image, sum(p.tiles for p in pictures)
        features = np.concatenate(
            [np.empty((0, pipeline.model.text.hidden), np.float32), *(p.features for p in pictures)]
        )
        pipeline.prompter.check_contract(encoded, tiles, image.tokens_per_tile if image else 0, len(features))
        return Prompt(encoded.ids, encoded.is_image, features)
