from hypothesis import given
from hypothesis import strategies as st
from isthmus.compare.bisect import first_wrong, spread
from isthmus.compare.taps import Tap


def chain(count):
    return [Tap(f"t{i}", f"n{i}", "Add", (f"t{i - 1}",) if i else ("x",), (1,)) for i in range(count)]


class Graph:
    """Tensors that are wrong, and how many compiles a search cost."""

    def __init__(self, wrong, hidden=()):
        self.wrong, self.hidden, self.compiles, self.widest = set(wrong), set(hidden), 0, 0

    def measure(self, names):
        self.compiles += 1
        self.widest = max(self.widest, len(names))
        return {n: n not in self.wrong for n in names if n not in self.hidden}


@given(st.integers(1, 3000), st.data())
def test_the_first_wrong_tensor_of_a_chain_is_found_in_few_compiles(count, data):
    at = data.draw(st.integers(0, count - 1))
    graph = Graph(f"t{i}" for i in range(at, count))
    found = first_wrong(chain(count), graph.measure, at_once=32, known={})
    assert found is not None
    assert found.name == f"t{at}"
    assert graph.widest <= 32
    assert graph.compiles <= 4


def test_nothing_wrong_is_no_answer():
    assert first_wrong(chain(100), Graph([]).measure, at_once=8, known={}) is None


def test_a_wrong_branch_before_the_last_right_tensor_is_followed():
    taps = [
        Tap("q", "q", "MatMul", ("x",), (1,)),
        Tap("bad", "bad", "MatMul", ("x",), (1,)),
        Tap("fine", "fine", "Add", ("q",), (1,)),
        Tap("join", "join", "Add", ("fine", "bad"), (1,)),
    ]
    found = first_wrong(taps, Graph(["bad", "join"]).measure, at_once=1, known={"fine": True, "join": False})
    assert found is not None
    assert found.name == "bad"


def test_a_tensor_that_cannot_be_looked_at_does_not_stop_the_search():
    graph = Graph([f"t{i}" for i in range(50, 100)], hidden=["t50", "t49"])
    found = first_wrong(chain(100), graph.measure, at_once=8, known={})
    assert found is not None
    assert found.name == "t51"


@given(st.integers(1, 500), st.integers(1, 64))
def test_a_spread_keeps_the_order_the_last_and_the_count(count, most):
    names = spread(chain(count), most)
    assert names[-1] == f"t{count - 1}"
    assert len(names) <= most
    assert names == sorted(names, key=lambda n: int(n[1:]))
