import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from isthmus.compare.metrics import EXACT_DB, figures, line_db, logit_figures, ranges
from isthmus.errors import InputError
from isthmus.types import Tolerance

TOLERANCE = Tolerance(rtol=0.01, atol=0.001)
FLOATS = arrays(np.float32, 6, elements=st.floats(width=32))


def test_a_known_error_gives_the_figures_computed_by_hand():
    found = figures(np.array([3.0, 4.5]), np.array([3.0, 4.0]), TOLERANCE)
    assert found.max_abs == 0.5
    assert found.relative_l2 == pytest.approx(0.1)
    assert found.sqnr_db == pytest.approx(20.0)
    assert found.cosine == pytest.approx((9 + 18) / (5 * math.hypot(3, 4.5)))
    assert found.limit == pytest.approx(0.041)
    assert not found.within


@given(FLOATS)
def test_a_tensor_equals_itself_whatever_it_holds(array):
    found = figures(array, array, TOLERANCE)
    assert (found.max_abs, found.sqnr_db, found.within) == (0.0, EXACT_DB, True)


@given(FLOATS, st.integers(0, 5), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_value_that_is_finite_on_one_side_only_is_never_within(array, place, odd):
    want = np.nan_to_num(array, nan=1.0, posinf=2.0, neginf=3.0)
    got = want.copy()
    got[place] = odd
    found = figures(got, want, Tolerance(rtol=1e30, atol=1e30))
    assert not found.within
    assert found.sqnr_db == -EXACT_DB


def test_infinities_of_opposite_sign_are_not_equal():
    assert not figures(np.array([math.inf]), np.array([-math.inf]), TOLERANCE).within


def test_shapes_that_differ_are_refused():
    with pytest.raises(InputError, match="shapes"):
        figures(np.zeros(2), np.zeros(3), TOLERANCE)


def test_ranges_count_what_hides_in_a_tensor():
    found = ranges(np.array([math.nan, math.inf, 65504.0, -65504.0, 131008.0, 1.0]))
    assert (found.nan, found.infinite, found.saturated) == (1, 1, 3)
    assert (found.low, found.high) == (-65504.0, 131008.0)
    assert ranges(np.zeros(3)).zero
    assert ranges(np.array([math.nan])).low is None


def test_logits_that_swap_two_tokens_lose_top1_and_keep_top5():
    want = np.array([[5.0, 4.9, 1, 0, -1, -2]])
    got = np.array([[4.9, 5.0, 1, 0, -1, -2]])
    found = logit_figures(got, want)
    assert (found.top1, found.top5) == (0.0, 1.0)
    assert found.margin == pytest.approx(0.1)
    p = np.exp(want) / np.exp(want).sum()
    q = np.exp(got) / np.exp(got).sum()
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()))


def test_a_shift_of_all_logits_changes_nothing():
    want = np.array([[1.0, 2.0, 3.0]])
    assert logit_figures(want + 100, want).kl == pytest.approx(0.0, abs=1e-12)


def test_the_line_follows_the_relative_tolerance():
    assert line_db(TOLERANCE) == pytest.approx(40.0)
