"""The loop: prefill the prompt, then sample, show, append and decode until something says stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Literal

import attrs

from ..errors import DeviceLostError, ExecutionError, InputError
from .gate import Gate
from .sample import Sampler, Sampling
from .session import Prompt, Session
from .tokens import StreamDecoder, Tokenizer

StopReason = Literal["stop", "length", "context"]
"""A stop token; ``max_new_tokens``; or no slot left for another token."""


@attrs.frozen
class Timings:
    """Where the time of one answer went, in seconds, with the counts behind it."""

    tiling: float
    """Opening, resizing and cutting the pictures."""
    vision: float
    prefill: float
    decode: float
    tiles: int
    prefill_tokens: int
    """Prompt tokens computed: those not reused from the cache."""
    prefill_executes: int
    decode_steps: int

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed; ``None`` if there was no decode step."""
        return self.decode_steps / self.decode if self.decode_steps else None


@attrs.frozen
class Answer:
    """What the model said."""

    text: str
    """Without control tokens; not stripped."""
    ids: tuple[int, ...]
    """Tokens generated, the stop token included."""
    stop_reason: StopReason
    prompt_tokens: int
    """Of the whole conversation so far, image tokens included."""
    image_tokens: int
    reused_tokens: int
    """Prompt tokens whose keys and values were in the cache already."""
    timings: Timings


@attrs.frozen
class Generated:
    """Result of ``generate``."""

    text: str
    ids: tuple[int, ...]
    stop_reason: StopReason
    reused: int
    prefill: float
    decode: float
    prefill_executes: int


def check_length(max_new_tokens: int) -> None:
    """``InputError`` if this is no number of tokens."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be an integer of at least 1: {max_new_tokens!r}")


def generate(
    session: Session,
    prompt: Prompt,
    tokenizer: Tokenizer,
    sampling: Sampling,
    stop_ids: Collection[int],
    max_new_tokens: int,
    on_text: Callable[[str], object] | None = None,
    gate: Gate | None = None,
) -> Generated:
    """Answer a prompt. ``on_text`` gets the text in pieces, each of whole characters; ``gate`` may stop it.

    If anything fails, also ``on_text``, the session forgets what this prompt added.
    """
    reused = session.start(prompt)
    try:
        return _generate(session, reused, tokenizer, Sampler(sampling), stop_ids, max_new_tokens, on_text, gate)
    except DeviceLostError:
        raise
    except ExecutionError:
        session.reset()
        raise
    except BaseException:
        session.truncate(reused)
        raise


def _generate(
    session: Session,
    reused: int,
    tokenizer: Tokenizer,
    sampler: Sampler,
    stop_ids: Collection[int],
    max_new_tokens: int,
    on_text: Callable[[str], object] | None,
    gate: Gate | None,
) -> Generated:
    began, executes = time.perf_counter(), session.executes
    logits = session.forward()
    if gate is not None:
        gate.logits(logits)
    prefilled, executes = time.perf_counter(), session.executes - executes
    stream, ids, pieces = StreamDecoder(tokenizer), list[int](), list[str]()

    def show(piece: str) -> None:
        if piece:
            pieces.append(piece)
            if on_text is not None:
                on_text(piece)

    while True:
        token = sampler(logits)
        ids.append(token)
        if gate is not None:
            gate.token(token)
        if token in stop_ids:
            reason: StopReason = "stop"
            break
        show(stream.push(token))
        if len(ids) == max_new_tokens:
            reason = "length"
            break
        if session.count == session.capacity:
            reason = "context"
            break
        session.append(token)
        logits = session.forward()
    show(stream.flush())
    decode = time.perf_counter() - prefilled
    return Generated("".join(pieces), tuple(ids), reason, reused, prefilled - began, decode, executes)
