from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.memory import Arena, Interval, max_live, plan_arena
from isthmus.memory.lifetime import activation_intervals
from onnx import TensorProto, helper, save

INTERVALS = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 30), st.integers(0, 12)).map(
        lambda t: Interval(str(t), t[0], t[1], t[1] + t[2])
    ),
    max_size=30,
)


def assert_no_overlap(arena: Arena) -> None:
    placed = list(zip(arena.intervals, arena.offsets))
    for n, (a, at) in enumerate(placed):
        assert at % 64 == 0
        assert at + a.size <= arena.size
        for b, other in placed[:n]:
            if a.first <= b.last and b.first <= a.last:
                assert at + a.size <= other or other + b.size <= at


@given(INTERVALS)
def test_tensors_alive_at_once_never_overlap(intervals: list[Interval]) -> None:
    arena = plan_arena(intervals)
    assert_no_overlap(arena)
    assert arena.size >= arena.lower_bound == max_live(intervals, 64)


def random_graph(seed: int) -> list[Interval]:
    """A feed-forward net with skips: each tensor is read by the next step and, at times, by a later one."""
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(20, 150))
    widths = rng.choice([256, 1024, 4096, 65536], 4)
    ends = [step + (int(rng.integers(2, 20)) if rng.random() < 0.3 else 1) for step in range(steps)]
    return [Interval(f"t{s}", int(rng.choice(widths)) * int(rng.integers(1, 4)), s, ends[s]) for s in range(steps)]


def test_fifty_random_graphs_stay_within_two_percent_of_the_lower_bound() -> None:
    arenas = [plan_arena(random_graph(seed)) for seed in range(50)]
    assert max(a.size / a.lower_bound for a in arenas) <= 1.02


def chain(tmp_path, shape=(16, 64)):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "s"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["d"]),
        helper.make_node("Add", ["d", "c"], ["y"]),
    ]
    inits = [
        helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.zeros(4096, np.float32)),
        helper.make_tensor("s", TensorProto.INT64, [2], [16, 64]),
    ]
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], inits)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_views_and_in_place_nodes_share_their_input(tmp_path) -> None:
    intervals = activation_intervals(chain(tmp_path))
    assert [(i.name, i.first, i.last) for i in intervals] == [("a", 0, 4), ("d", 3, 4)]
    assert max_live(intervals) == 2 * 16 * 64 * 4


def test_a_free_dimension_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match="'a'"):
        activation_intervals(chain(tmp_path, ("n", 64)))
