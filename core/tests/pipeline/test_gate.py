"""The gate stops what cannot be right, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isthmus.errors import ExecutionError
from isthmus.models.description import LlmEntry
from isthmus.pipeline import Gate


def logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, 512).astype(np.float32)


def feed(gate: Gate, tokens: list[int]) -> None:
    for token in tokens:
        gate.token(token)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0.0, "is all zero in all 512 values"),
        (2.5, "is constant, 2.5 in all 512 values"),
        (np.nan, "holds 512 NaN among 512 of 512 values not finite"),
        (np.inf, "holds 0 NaN among 512 of 512 values not finite"),
    ],
)
def test_logits_of_one_value_are_stopped_with_the_figures(value: float, says: str) -> None:
    with pytest.raises(ExecutionError, match="isthmus compare") as error:
        Gate().logits(np.full(512, value, np.float32))
    assert says in error.value.what


@pytest.mark.parametrize("limit", [65504.0, 131008.0])
def test_saturated_logits_are_stopped(limit: float) -> None:
    bad = logits()
    bad[[3, 9]] = limit
    with pytest.raises(ExecutionError, match="saturated: 2 of 512"):
        Gate().logits(bad)


def test_one_nan_is_enough() -> None:
    bad = logits()
    bad[100] = np.nan
    with pytest.raises(ExecutionError, match="1 NaN among 1 of 512"):
        Gate().logits(bad)


def test_usual_logits_pass_also_with_masked_rows() -> None:
    good = logits()
    good[300:] = -65504.0
    Gate().logits(good)


@pytest.mark.parametrize("cycle", [[0], [5, 6], [5, 6, 7], [5, 5, 6, 7]])
def test_endless_repetition_is_stopped_also_after_right_tokens(cycle: list[int]) -> None:
    with pytest.raises(ExecutionError, match="repeats itself") as error:
        feed(Gate(), [1, 2, 3, 4] + cycle * 40)
    assert "after 4 others" in error.value.what


def test_lists_rulers_and_long_answers_pass() -> None:
    feed(Gate(), [7] * 20 + [8] + [1, 2] * 14 + [9] + [*range(300), 5, 6, 7, 8, 9] * 5)


@pytest.mark.parametrize("broken", [0.0, float("nan")])
def test_a_broken_device_is_stopped_before_a_word_is_said(make_pipeline: Any, broken: float) -> None:
    made = make_pipeline(llm=(LlmEntry("prefill", 32, 256), LlmEntry("decode", 1, 256)))
    said: list[str] = []
    with made.pipeline.chat() as chat:
        made.driver.broken = broken
        with pytest.raises(ExecutionError, match="cannot be right"):
            chat.ask("Hello?", on_text=said.append, gate=Gate())
        made.driver.broken = None
        assert chat.ask("Hello?", max_new_tokens=4, gate=Gate()).ids
    assert not said
