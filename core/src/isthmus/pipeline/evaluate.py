"""Asks an evaluation set, and compares answers with the truth and logits with a float32 reference.

Equal texts between two backends are no pass criterion: rounding picks another token where two are close. So every
differing answer comes with the margin between the two likeliest tokens where it left the reference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from .._files import inside
from ..errors import InputError
from .chat import Chat
from .dataset import Reference, Sample, read_reference, read_samples, tasks
from .generate import Answer
from .pipeline import Pipeline
from .session import Prompt

_MAX_NEW_TOKENS = 32  # as the reference answers were made


@attrs.frozen
class TaskResult:
    """Right answers of one task."""

    questions: int
    correct: int

    @property
    def accuracy(self) -> float:
        """0 to 1."""
        return self.correct / self.questions


@attrs.frozen
class Difference:
    """An answer that is not the reference's."""

    id: str
    expected: str
    got: str
    step: int | None
    """First generated token that differs; ``None`` without reference ids."""
    margin: float | None
    """Our largest minus second largest logit at that step. Below the logit error it is a coin toss, not a fault."""


@attrs.frozen
class Evaluation:
    """Result of ``evaluate``. What has no data to compare with is ``None``."""

    device: str
    reality: str
    """``real``, ``emulated`` or ``simulated``: what these figures were measured on."""
    questions: int
    accuracy: float
    """Answers equal to the truth, 0 to 1."""
    per_task: Mapping[str, TaskResult]
    agreement_with_reference: float | None
    """Answers equal to the reference implementation's, 0 to 1."""
    differences: tuple[Difference, ...]
    references: int
    """Questions with stored reference tensors."""
    max_logit_error: float | None
    """Largest absolute error of the logits at the prompt's end and at each step, along the reference's tokens."""
    logit_sqnr_db: float | None
    """Power of the reference logits over that of the error; ``None`` also where there is no error at all."""
    max_feature_error: float | None
    """Largest absolute error of the image features, from the picture file on."""
    seconds_per_picture: float | None
    """Mean time to answer a question about a picture."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data: ``per_task`` holds accuracies, ``tasks`` the counts behind them."""
        data = attrs.asdict(self)
        data["tasks"] = data["per_task"]
        data["per_task"] = {task: result.accuracy for task, result in self.per_task.items()}
        data["differences"] = list(data["differences"])
        return data


def evaluate(
    pipeline: Pipeline,
    dataset: Path | str,
    limit: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    *,
    use_cache: bool = True,
) -> Evaluation:
    """Ask the first ``limit`` questions of ``dataset``, greedily, each in a conversation of its own.

    ``progress`` gets the questions done and all of them. ``InputError``: a line, picture or reference that is wrong.
    """
    dataset = Path(dataset)
    samples = read_samples(dataset, limit)
    references = {s.id: r for s in samples if (r := read_reference(dataset, s)) is not None}
    began = time.perf_counter()
    errors, answers, seconds, differences = _Errors(), dict[str, Answer](), list[float](), list[Difference]()
    with pipeline.chat(use_cache=use_cache) as chat:
        for done, sample in enumerate(samples):
            if progress is not None:
                progress(done, len(samples))
            images = [] if sample.image is None else [inside(dataset, sample.image)]
            chat.clear()
            start = time.perf_counter()
            answer = answers[sample.id] = chat.ask(sample.question, images, max_new_tokens=_MAX_NEW_TOKENS)
            if images:
                seconds.append(time.perf_counter() - start)
            chat.clear()
            if sample.id in references:
                errors.add(chat, chat.prompt(sample.question, images), references[sample.id], sample)
            if sample.hf_answer is not None and answer.text != sample.hf_answer:
                differences.append(_difference(chat, chat.prompt(sample.question, images), sample, answer))
        if progress is not None:
            progress(len(samples), len(samples))
    return _report(pipeline, samples, answers, differences, errors, seconds, time.perf_counter() - began)


class _Errors:
    """Running sums of what differs from the reference tensors."""

    def __init__(self) -> None:
        self.count = 0
        self.logit: float | None = None
        self.feature: float | None = None
        self._signal = self._noise = 0.0

    def add(self, chat: Chat, prompt: Prompt, reference: Reference, sample: Sample) -> None:
        """Compare one question, its answer forced to be the reference's."""
        _check_ids(prompt, reference, sample)
        steps = _forced_logits(chat, prompt, [int(i) for i in reference.generated_ids[:-1]])
        wanted = [reference.prompt_logits[-1], *reference.step_logits]
        got = (logits for i, logits in enumerate(steps) for _ in range(2 if i == 0 else 1))
        for want, have in zip(wanted, got):
            self.logit = _largest(self.logit, have, want, f"logits of {sample.id}")
            self._signal += float(np.square(want, dtype=np.float64).sum())
            self._noise += float(np.square(have.astype(np.float64) - want).sum())
        if reference.image_features is not None:
            what = f"image features of {sample.id}"
            self.feature = _largest(self.feature, prompt.features, reference.image_features, what)
        self.count += 1

    @property
    def sqnr_db(self) -> float | None:
        """Signal to noise of all logits so far."""
        return 10 * math.log10(self._signal / self._noise) if self._noise and self._signal else None


def _largest(so_far: float | None, have: NDArray[Any], want: NDArray[Any], what: str) -> float:
    if have.shape != want.shape:
        raise InputError(f"{what}: the model gives {list(have.shape)}, the reference has {list(want.shape)}")
    return max(so_far or 0.0, float(np.abs(have.astype(np.float64) - want).max()))


def _check_ids(prompt: Prompt, reference: Reference, sample: Sample) -> None:
    ours, theirs = prompt.ids.tolist(), reference.input_ids.tolist()
    if ours != theirs:
        place = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        raise InputError(
            f"{sample.id}: the prompt has {len(ours)} tokens, the reference's {len(theirs)}; first difference at {place}",
            why="the reference was made with another checkpoint or prompt template",
        )


def _forced_logits(chat: Chat, prompt: Prompt, tokens: Iterable[int]) -> Iterator[NDArray[np.float32]]:
    """Logits after the prompt, then after each of ``tokens``; each is overwritten by the next."""
    session = chat.session
    session.truncate(0)
    session.start(prompt)
    yield session.forward()
    for token in tokens:
        if session.count == session.capacity:
            raise InputError(f"the reference's answer does not fit into the context of {session.capacity}")
        session.append(token)
        yield session.forward()


def _difference(chat: Chat, prompt: Prompt, sample: Sample, answer: Answer) -> Difference:
    step = margin = None
    if sample.hf_ids is not None:
        theirs = sample.hf_ids
        step = next(
            (i for i, (a, b) in enumerate(zip(answer.ids, theirs)) if a != b), min(len(answer.ids), len(theirs))
        )
        *_, logits = _forced_logits(chat, prompt, theirs[:step])
        second, first = np.partition(logits, len(logits) - 2)[-2:]
        margin = float(first - second)
    return Difference(sample.id, sample.hf_answer or "", answer.text, step, margin)


def _report(
    pipeline: Pipeline,
    samples: Sequence[Sample],
    answers: Mapping[str, Answer],
    differences: Sequence[Difference],
    errors: _Errors,
    seconds: Sequence[float],
    total: float,
) -> Evaluation:
    right = {s.id for s in samples if answers[s.id].text == s.answer}
    compared = sum(s.hf_answer is not None for s in samples)
    info = pipeline.program.device.info
    return Evaluation(
        device=info.id,
        reality=info.reality.value,
        questions=len(samples),
        accuracy=len(right) / len(samples),
        per_task={
            task: TaskResult(len(own), sum(s.id in right for s in own))
            for task in tasks(samples)
            if (own := [s for s in samples if s.task == task])
        },
        agreement_with_reference=1 - len(differences) / compared if compared else None,
        differences=tuple(differences),
        references=errors.count,
        max_logit_error=errors.logit,
        logit_sqnr_db=errors.sqnr_db,
        max_feature_error=errors.feature,
        seconds_per_picture=sum(seconds) / len(seconds) if seconds else None,
        seconds=total,
    )
