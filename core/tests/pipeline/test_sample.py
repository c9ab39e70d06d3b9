from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from isthmus.errors import ExecutionError, InputError
from isthmus.pipeline.sample import GREEDY, Sampler, Sampling, _largest

few_levels = arrays(np.float32, st.integers(1, 400), elements=st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]))


def draw(logits: np.ndarray, count: int = 4000, **settings: Any) -> np.ndarray:
    sampler = Sampler(Sampling(**settings))
    return np.bincount([sampler(logits) for _ in range(count)], minlength=len(logits)) / count


def test_greedy_takes_the_largest_and_the_lowest_id_on_a_tie() -> None:
    logits = np.array([1, 5, 5, -2], np.float32)
    assert Sampler(GREEDY)(logits) == 1
    assert Sampler(Sampling(temperature=2.0, top_k=1))(logits) == 1


def test_frequencies_follow_the_softmax_of_the_temperature() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert np.allclose(draw(logits, temperature=1.0, seed=1), [0.5, 0.3, 0.2], atol=0.03)
    warm = np.sqrt([0.5, 0.3, 0.2])
    assert np.allclose(draw(logits, temperature=2.0, seed=1), warm / warm.sum(), atol=0.03)


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    assert np.allclose(draw(logits, temperature=1.0, top_k=2, seed=2), [0, 4 / 7, 0, 3 / 7], atol=0.03)
    assert np.allclose(draw(logits, temperature=1.0, top_p=0.6, seed=2), [0, 4 / 7, 0, 3 / 7], atol=0.03)
    # top-p counts within what top-k left: 4/9 + 3/9 reach 0.7
    assert np.allclose(draw(logits, temperature=1.0, top_k=3, top_p=0.7, seed=2), [0, 4 / 7, 0, 3 / 7], atol=0.03)


def test_a_seed_repeats_and_another_does_not() -> None:
    logits = np.zeros(1000, np.float32)
    first, again, other = ([Sampler(Sampling(1.0, seed=s))(logits)] for s in (7, 7, 8))
    runs = [[s(logits) for _ in range(20)] for s in (Sampler(Sampling(1.0, seed=7)), Sampler(Sampling(1.0, seed=7)))]
    assert runs[0] == runs[1]
    assert first == again != other
    unseeded = [[s(logits) for _ in range(20)] for s in (Sampler(Sampling(1.0)), Sampler(Sampling(1.0)))]
    assert unseeded[0] != unseeded[1]


@given(few_levels, st.integers(0, 500), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_the_kept_tokens_are_those_of_a_full_sort(logits: np.ndarray, top_k: int, top_p: float) -> None:
    weights = np.exp(logits.astype(np.float64))
    order = np.lexsort((np.arange(len(weights)), -weights))[: top_k or None]
    reached = np.cumsum(weights[order])
    kept = _largest(weights, top_k or len(weights), top_p)
    assert kept.tolist() == order[: len(kept)].tolist()
    goal, rounding = top_p * reached[-1], 1e-12 * reached[-1]
    assert reached[len(kept) - 1] >= goal - rounding
    assert len(kept) == 1 or reached[len(kept) - 2] < goal + rounding


def test_the_vocabulary_is_not_sorted_for_a_small_top_k(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_sizes: list[int] = []
    real = np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: (sorted_sizes.append(len(keys[0])), real(keys))[1])
    logits = np.random.default_rng(0).normal(0, 3, 150_000).astype(np.float32)
    Sampler(Sampling(1.0, top_k=40, top_p=0.9))(logits)
    Sampler(Sampling(0.5, top_p=0.5))(logits)
    assert max(sorted_sizes) <= 4096


def test_a_tiny_temperature_is_greedy() -> None:
    logits = np.array([0, 1, 3, 2], np.float32)
    assert draw(logits, count=50, temperature=1e-300)[2] == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)])
def test_logits_that_are_not_finite_are_an_error(value: float, sampling: Sampling) -> None:
    logits = np.array([0, 1, value, 3], np.float32)
    with pytest.raises(ExecutionError, match="logit 2 is"):
        Sampler(sampling)(logits)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf], np.float32)
    assert draw(logits, count=50, temperature=1.0)[1] == 1
    assert draw(logits, count=50, temperature=1.0, top_p=0.9)[1] == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": "1"},
        {"temperature": True},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_p": float("inf")},
        {"top_k": -1},
        {"top_k": 1.5},
        {"seed": -1},
        {"seed": 0.5},
    ],
)
def test_settings_out_of_range_are_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Sampling(**bad)
