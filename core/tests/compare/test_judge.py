from __future__ import annotations

import attrs
import numpy as np
import pytest
from isthmus.compare.cases import Case, Spoken, from_npz
from isthmus.compare.judge import Call, Recording, judge
from isthmus.compare.report import write
from isthmus.compare.side import Steadiness
from isthmus.compare.storage import load, save
from isthmus.compare.taps import Tap
from isthmus.errors import InputError, IsthmusError
from isthmus.types import DType, EntrySpec, TensorSpec, Tolerance

WHO = {
    "device": "cpu:0",
    "target": "host",
    "reality": "real",
    "dialect": "canonical",
    "backend": "cpu",
    "toolchain": {"x": "<script>"},
}
TAPS = tuple(
    Tap(n, f"node.{n}", "Mul", (p,), (4,))
    for n, p in [("norm.square", "x"), ("turned", "norm.square"), ("y", "turned")]
)
STEADY = Steadiness(True, True)
X = np.array([300.0, 1.0, 2.0, 3.0], np.float32)


def recording(square=X * X, turned=X, y=X, steady=STEADY, x=X, spoken=None):
    call = Call(Case("main", "a", {"x": x}), {"y": y}, steady, {"norm.square": square, "turned": turned, "y": y})
    return Recording(WHO, Tolerance(rtol=0.01, atol=0.001), (call,), {"main": TAPS}, spoken)


def verdict(got, want=None):
    return judge(want or recording(), got, 40.0)


def test_equal_sides_pass():
    found = verdict(recording())
    assert found.passed
    assert found.cases[0].first is None


def test_an_overflow_is_named_with_its_node_and_remedy():
    square = np.minimum(X * X, 65504.0)
    first = verdict(recording(square=square, y=X * 2)).cases[0].first
    assert first is not None
    assert first.tap.node == "node.norm.square"
    assert "overflow of fp16: the reference reaches 90000" in first.cause
    assert "rms_norm=l2" in first.cause


@pytest.mark.parametrize(
    ("turned", "cause"),
    [
        (X[::-1], "layout: the same values in another order"),
        (X * 0, "all zero"),
        (X * 2, "a constant factor: about 2 times"),
        (X * np.nan, "NaN"),
        (np.full(4, 65504, np.float32), "saturation"),
        (np.array([1, 300, 5, 7], np.float32), "other values altogether"),
        (X + np.array([4, 4, -4, 4], np.float32), "rounding"),
    ],
)
def test_what_a_wrong_tensor_looks_like_gives_the_cause(turned, cause):
    first = verdict(recording(turned=turned, y=X * 2)).cases[0].first
    assert first is not None
    assert first.tap.name == "turned"
    assert cause in first.cause


def test_an_inner_tensor_off_the_line_is_no_miss_while_outputs_are_right():
    found = verdict(recording(turned=X * 2))
    assert found.passed
    assert found.cases[0].first is None


@pytest.mark.parametrize("steady", [Steadiness(False, True), Steadiness(True, False)])
def test_a_call_that_does_not_repeat_fails_even_when_its_values_are_right(steady):
    assert not verdict(recording(steady=steady)).passed


def test_sides_with_other_inputs_or_cases_are_not_judged():
    with pytest.raises(InputError, match="different values for input x"):
        verdict(recording(x=X + 1))
    other = recording()
    other = attrs.evolve(other, calls=(attrs.evolve(other.calls[0], case=Case("main", "b", {"x": X})),))
    with pytest.raises(InputError, match="different cases"):
        verdict(other)


def test_texts_that_differ_give_the_step_and_margins_but_no_miss():
    logits = np.array([[5.0, 1, 0], [3.0, 2.5, 0], [0, 0, 9]])
    swapped = logits.copy()
    swapped[1] = [2.5, 3.0, 0]
    want, got = Spoken("q", "abc", (0, 0, 2), logits), Spoken("q", "axc", (0, 1, 2), swapped)
    found = verdict(recording(spoken=got), recording(spoken=want))
    assert found.passed
    assert found.text is not None
    assert (found.text.step, found.text.reference_margin, found.text.logits.top1) == (1, 0.5, 0.5)


def test_a_recording_comes_back_as_it_was_written(tmp_path):
    made = recording(y=X * 2, spoken=Spoken("q", "abc", (0, 1), np.ones((2, 3))))
    save(made, tmp_path / "r")
    back = load(tmp_path / "r")
    assert (
        judge(recording(), back, 40.0).to_json() == judge(recording(), attrs.evolve(made, spoken=None), 40.0).to_json()
    )
    assert back.spoken is not None
    assert back.spoken.ids == (0, 1)
    assert back.nodes["main"] == TAPS


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("0000.npz", b"PK\x03\x04rubbish"),
        ("0000.npz", b""),
        ("recording.json", b"{}"),
        ("recording.json", b"[1]"),
        ("recording.json", b"\xff"),
    ],
    ids=["no zip", "empty", "no fields", "a list", "no text"],
)
def test_a_damaged_recording_is_refused_by_name(tmp_path, file, content):
    save(recording(), tmp_path / "r")
    (tmp_path / "r" / file).write_bytes(content)
    with pytest.raises(IsthmusError, match="record"):
        load(tmp_path / "r")


def test_a_report_shows_the_node_and_takes_nothing_from_the_network():
    page = write(recording(), [verdict(recording(square=np.minimum(X * X, 65504.0), y=X * 2))])
    assert "node.norm.square" in page
    assert 'class="sqnr"' in page
    assert 'class="histogram"' in page
    assert "<script>" not in page
    assert "http" not in page


def test_arrays_of_an_npz_find_their_entries(tmp_path):
    spec = EntrySpec((TensorSpec("x", DType.FLOAT32, (4,)),), ())
    np.savez(tmp_path / "one.npz", **{"a/x": X, "b/x": X})
    found = from_npz(tmp_path / "one.npz", {"a": spec, "b": spec})
    assert [case.name for case in found] == ["a/one", "b/one"]
    np.savez(tmp_path / "two.npz", x=X)
    with pytest.raises(InputError, match="belongs to no entry"):
        from_npz(tmp_path / "two.npz", {"a": spec, "b": spec})


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rubbish", b"text"])
def test_an_npz_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match="not a readable"):
        from_npz(tmp_path / "x.npz", {})
