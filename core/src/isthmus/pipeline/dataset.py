"""Reads an evaluation set: ``eval.jsonl``, pictures beside it, and ``reference_ID.npz`` for some of its questions.

Format: README of the bundled checkpoint (examples/tiny_internvl).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import cattrs
import numpy as np
from numpy.typing import NDArray

from .._files import inside
from ..errors import InputError

FILE = "eval.jsonl"


@attrs.frozen
class Sample:
    """One line of ``eval.jsonl``; further keys are ignored."""

    id: str
    task: str
    question: str
    answer: str
    image: str | None = None
    """Path of the picture within the dataset."""
    hf_answer: str | None = None
    """The answer of the reference implementation, greedy."""
    hf_ids: tuple[int, ...] | None = None
    """Its token ids, the stop token included."""


@attrs.frozen(eq=False)
class Reference:
    """What the reference implementation computed in float32 for one question."""

    input_ids: NDArray[np.int64]
    """[n]"""
    prompt_logits: NDArray[np.float32]
    """[n, V]"""
    generated_ids: NDArray[np.int64]
    """[m]"""
    step_logits: NDArray[np.float32]
    """[m, V]; row i is what ``generated_ids[i]`` was picked from."""
    image_features: NDArray[np.float32] | None
    """[rows, hidden], after the projector."""


def read_samples(dataset: Path, limit: int | None = None) -> list[Sample]:
    """The first ``limit`` samples. ``InputError`` names the file, or the line that is wrong."""
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1: {limit}")
    try:
        lines = (dataset / FILE).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{dataset / FILE} cannot be read: {error}", fix="give a directory with eval.jsonl") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    samples = [_sample(dataset, line, n) for n, line in numbered[:limit]]
    seen: set[str] = set()
    for (number, _), sample in zip(numbered, samples):
        if sample.id in seen:
            raise InputError(f"{dataset / FILE} line {number}: the id {sample.id!r} was used before")
        seen.add(sample.id)
    if not samples:
        raise InputError(f"{dataset / FILE} has no questions")
    return samples


def read_reference(dataset: Path, sample: Sample) -> Reference | None:
    """The stored tensors of a sample, where there are some. ``InputError``: the file is damaged."""
    file = inside(dataset, f"reference_{sample.id}.npz")
    if not file.exists():
        return None
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as stored:
            found = {f.name: stored[f.name] for f in attrs.fields(Reference) if f.name in stored}
        reference = Reference(**{"image_features": None, **found})
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    _check(reference, file)
    return reference


def _sample(dataset: Path, line: str, number: int) -> Sample:
    where = f"{dataset / FILE} line {number}"
    try:
        data: Any = json.loads(line)
        if not isinstance(data, dict):
            raise TypeError(f"a JSON object, not {type(data).__name__}, is wanted")
        sample = _CONVERTER.structure(data, Sample)
    except (cattrs.BaseValidationError, ValueError, TypeError, KeyError, RecursionError) as error:
        detail = (
            "; ".join(cattrs.transform_error(error)) if isinstance(error, cattrs.BaseValidationError) else str(error)
        )
        raise InputError(f"{where}: {detail[:300]}") from error
    if sample.image is not None and not inside(dataset, sample.image).is_file():
        raise InputError(f"{where}: no picture {sample.image}")
    return sample


def _check(reference: Reference, file: Path) -> None:
    n, m = len(reference.input_ids), len(reference.generated_ids)
    shapes = [reference.prompt_logits.shape[:1], reference.step_logits.shape[:1]]
    if reference.prompt_logits.ndim != 2 or reference.step_logits.ndim != 2 or shapes != [(n,), (m,)] or not n or not m:
        raise InputError(
            f"{file}: {n} input ids with logits {list(reference.prompt_logits.shape)}, "
            f"{m} generated ids with logits {list(reference.step_logits.shape)}"
        )


def _strict(kind: type) -> Any:
    def check(value: Any, _: type) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not of type {kind.__name__}")
        return value

    return check


_CONVERTER = cattrs.Converter()
_CONVERTER.register_structure_hook(str, _strict(str))
_CONVERTER.register_structure_hook(int, _strict(int))


def tasks(samples: Sequence[Sample]) -> list[str]:
    """Names of the tasks, in order of appearance."""
    return list(dict.fromkeys(s.task for s in samples))
