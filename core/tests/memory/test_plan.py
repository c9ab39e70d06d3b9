"""Books, limits, changes and traffic, over shapes and rules that are simple enough to add up by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.memory.limits import Room, misfits
from isthmus.memory.plan import TEXT_ROOM, Use, image_tokens, make_plan
from isthmus.memory.plan_changes import Case, Planner
from isthmus.memory.plan_model import Compiler, Shape, of_checkpoint
from isthmus.memory.plan_shapes import read_shapes
from isthmus.memory.traffic import STEP, choose, read_lengths
from isthmus.models.description import ImageSpec
from isthmus.spi import MemoryRules
from isthmus.types import MemoryInfo, MemoryLimit, Scope
from isthmus_tiny_internvl import CHECKPOINT

IMAGE = ImageSpec(448, 256, (0.0,) * 3, (1.0,) * 3, 1, 12, thumbnail=True, tiles_per_call=1)
SHAPES = read_shapes(CHECKPOINT)
TEXT = SHAPES.text
TOKEN = 2 * TEXT.layers * TEXT.kv_heads * TEXT.head_dim * 4


class Rules(MemoryRules):
    """Nothing packed, everything once, pages of 1 KiB."""

    aliased_io = True

    def charged(self, size):
        return -(-size // 1024) * 1024


class Apart(Rules):
    """Every entry has weights of its own unless an option says otherwise."""

    aliased_io = False

    def predict(self, graphs, target, options):
        found = super().predict(graphs, target, options)
        if options:
            return found
        weights = sum(g.weight_bytes for g in graphs.values())
        return attrs.evolve(found, weights=weights, own_load=weights + found.peak_workspace)

    def sharing(self, target):
        return {"share": "true"}


def compiler(rules=None):
    return lambda options: Compiler(rules or Rules(), "any", dict(options))


def planned(shape=None, use=None, rules=None):
    rules = rules or Rules()
    need = of_checkpoint(SHAPES, shape or Shape(), Compiler(rules, "any", ()))
    return make_plan(need, use or Use(), rules)


def planner(room, rules=None):
    return Planner(SHAPES, compiler(rules), room)


@pytest.mark.parametrize("rules", [Rules(), Apart()])
@pytest.mark.parametrize("conversations", [1, 3])
def test_books_add_up_to_the_peak(rules: MemoryRules, conversations: int) -> None:
    plan = planned(use=Use(conversations=conversations), rules=rules)
    assert sum(plan.books.values()) == plan.run_peak
    assert all(size >= 0 for size in plan.books.values())
    assert plan.books["weights"] + plan.books["copies"] + plan.books["workspace"] == plan.need.memory.own_load


def test_the_cache_grows_with_slots_and_conversations_only() -> None:
    assert planned().kv_bytes_per_token == TOKEN
    one, two = planned(Shape(contexts=(64,))), planned(Shape(contexts=(128,)))
    assert (one.books["kv"], two.books["kv"]) == (64 * TOKEN, 128 * TOKEN)
    assert planned(Shape(contexts=(128,)), Use(conversations=5)).books["kv"] == 5 * 128 * TOKEN
    assert planned(Shape(contexts=(128,)), Use(kv_bits=8)).books["kv"] == 128 * TOKEN // 4
    assert one.books["weights"] == pytest.approx(two.books["weights"], rel=1e-4)  # constants of reshapes


def test_staging_is_counted_where_outputs_cannot_overlap_inputs() -> None:
    shape = Shape(contexts=(128,), prefill=(32,))
    assert planned(shape, rules=Apart()).books["kv"] - planned(shape).books["kv"] == 32 * TOKEN


def test_weights_of_entries_that_do_not_share_are_counted_as_copies() -> None:
    apart, once = planned(rules=Apart()), planned()
    assert apart.books["weights"] == pytest.approx(once.books["weights"], rel=1e-6)
    assert once.books["copies"] == 0
    llm = sum(w.nbytes for w in _weights("prefill").values())
    assert apart.books["copies"] == pytest.approx(llm, rel=0.01)  # the language model once more


def _weights(entry):
    from isthmus.memory.plan_shapes import llm_figures
    from isthmus.models.plan import plan_entries

    found = next(e for e in plan_entries(TEXT.max_positions) if e.name == entry)
    return llm_figures(SHAPES, found).weights


def test_halves_take_half() -> None:
    full, half = planned(), planned(Shape(dtype="float16"))
    assert half.books["kv"] * 2 == full.books["kv"]
    assert half.books["weights"] == pytest.approx(full.books["weights"] / 2, rel=1e-3)


def test_quantised_matrices_leave_the_rest_alone() -> None:
    full, quarter = planned(), planned(Shape(weights="int8"))
    matrices = sum(w.nbytes for w in _weights("prefill").values() if w.matrix)
    assert full.books["weights"] - quarter.books["weights"] >= matrices * 3 // 4
    assert quarter.books["kv"] == full.books["kv"]


def test_parts_are_loaded_in_turn_and_together_hold_every_weight() -> None:
    whole, parts = planned(), planned(Shape(parts=2))
    assert parts.books["weights"] < whole.books["weights"]
    assert parts.books["kv"] == whole.books["kv"]
    every = sum(size for name, size in parts.need.contexts.items() if not name.startswith("vision"))
    assert every >= sum(w.nbytes for w in _weights("prefill").values())
    with pytest.raises(InputError, match="parts of"):
        planned(Shape(parts=TEXT.layers + 1))


def test_pictures_take_the_tokens_of_their_tiles_and_thumbnails() -> None:
    assert image_tokens(IMAGE, Use(images=1)) == 13 * 256 + 2
    assert image_tokens(IMAGE, Use(images=1, max_tiles=6)) == 7 * 256 + 2
    assert image_tokens(IMAGE, Use(images=2, max_tiles=1)) == 2 * (256 + 2)
    assert image_tokens(None, Use(images=1)) == image_tokens(IMAGE, Use()) == 0


def test_pictures_that_do_not_fit_into_the_context_are_a_misfit() -> None:
    plan = planned(Shape(contexts=(16,)), Use(images=1))
    (found,) = misfits(plan, Room())
    assert (found.unit, found.limit, found.need) == ("tokens", 16, plan.context_tokens)
    assert plan.context_tokens > TEXT_ROOM


@pytest.mark.parametrize("spare", [0, -1])
def test_free_memory_and_budget_bind_to_the_byte(spare: int) -> None:
    plan = planned()
    limit = plan.run_peak + spare
    for room in (Room(budget=limit), Room(device=MemoryInfo(limit, limit))):
        assert len(misfits(plan, room)) == (spare < 0)
    assert not misfits(plan, Room(device=MemoryInfo(None, None)))


def test_limits_of_a_vendor_bind_what_they_are_on() -> None:
    plan = planned()
    needs = {
        Scope.GRAPH: max(plan.need.graphs.values()),
        Scope.CONTEXT: max(plan.need.contexts.values()),
        Scope.WEIGHTS_BUFFER: max(plan.need.contexts.values()),
        Scope.CONTEXTS: len(plan.need.contexts),
        Scope.PROCESS: plan.run_peak,
        Scope.DEVICE: plan.run_peak,
    }
    assert needs.keys() == set(Scope)
    for scope, need in needs.items():
        assert not misfits(plan, Room([MemoryLimit(scope, need, "test")]))
        (found,) = misfits(plan, Room([MemoryLimit(scope, need - 1, "test")]))
        assert (found.need, found.source) == (need, "test")


def test_a_hard_limit_binds_before_a_soft_one_that_is_missed_by_more() -> None:
    limits = [MemoryLimit(Scope.PROCESS, 1, "soft", hard=False), MemoryLimit(Scope.PROCESS, 1000, "hard")]
    assert [m.source for m in misfits(planned(), Room(limits))] == ["hard", "soft"]


def test_free_memory_replaces_the_size_of_the_chip() -> None:
    limits = [MemoryLimit(Scope.DEVICE, 1, "chip")]
    assert not misfits(planned(), Room(limits, MemoryInfo(1 << 40, 1 << 40)))


def test_changes_say_what_they_leave_and_replanning_confirms_it() -> None:
    case = Case(Shape(contexts=(256,)), Use(conversations=4, images=1))
    whole, _ = planner(Room()).plan(case)
    budget = whole.run_peak - whole.books["kv"] // 2
    found = planner(Room(budget=budget))
    changes = found.changes(case)
    assert [c.fits for c in changes] == sorted((c.fits for c in changes), reverse=True)
    kinds = {c.what.split()[0] for c in changes}
    assert {"context", "float16", "KV", "matrices", "language", "prefill"} <= kinds
    for change in changes:
        plan, left = found.plan(change.case)
        assert plan.run_peak == change.plan.run_peak < whole.run_peak
        assert change.fits == (not left)
        assert change.fits == (plan.run_peak <= budget)


def test_the_mildest_change_of_a_kind_that_fits_is_chosen() -> None:
    case = Case(Shape(contexts=(256,)), Use(conversations=8))
    whole, _ = planner(Room()).plan(case)
    found = planner(Room(budget=whole.run_peak - 1)).changes(case)
    assert next(c for c in found if "conversation" in c.what).case.use.conversations == 4
    assert next(c for c in found if c.what.startswith("context")).case.shape.contexts == (128,)


def test_when_nothing_fits_alone_changes_are_put_together_until_it_does() -> None:
    case = Case(Shape(contexts=(256,)), Use(conversations=8))
    *alone, together = planner(Room(budget=1_200_000)).changes(case)
    assert not any(c.fits for c in alone)
    assert together.fits
    assert " + " in together.what
    assert together.plan.run_peak <= 1_200_000


def test_a_budget_that_nothing_meets_is_said_to_be_so() -> None:
    found = planner(Room(budget=1000)).changes(Case(Shape(), Use()))
    assert found
    assert not any(c.fits for c in found)


def test_sharing_weights_is_offered_with_the_option_that_does_it() -> None:
    case = Case(Shape(), Use())
    found = planner(Room(budget=1), Apart())
    (change,) = (c for c in found.changes(case) if c.what.startswith("equal weights"))
    assert change.how == "--option share=true"
    assert change.plan.books["copies"] == 0


def test_soft_limits_ask_for_changes_too() -> None:
    plan = planned()
    limit = MemoryLimit(Scope.PROCESS, plan.run_peak - 1, "seen to fail", hard=False)
    assert any(c.fits for c in planner(Room([limit])).changes(Case(Shape(), Use())))


# ---- traffic


def brute(lengths, count):
    """Every choice of ends, for few distinct lengths."""
    ends = sorted({-(-n // STEP) * STEP for n in lengths})
    best = None
    for size in range(1, min(count, len(ends)) + 1):
        for some in itertools.combinations(ends[:-1], size - 1):
            cost = sum(min(e for e in (*some, ends[-1]) if e >= n) for n in lengths)
            best = cost if best is None else min(best, cost)
    return best


@given(st.lists(st.integers(1, 900), min_size=1, max_size=40), st.integers(1, 4))
def test_the_chosen_contexts_hold_the_fewest_slots(lengths: list[int], count: int) -> None:
    found = choose(lengths, count, 10)
    ends = [b.context for b in found.buckets]
    assert ends == sorted(set(ends))
    assert len(ends) <= count
    assert sum(b.requests for b in found.buckets) == len(lengths)
    assert found.largest >= max(lengths)
    assert round(found.mean_slots * len(lengths)) == brute(lengths, count)
    assert found.saved >= 0


def test_traffic_is_read_as_numbers_or_as_prompt_and_answer(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('900\n{"prompt": 100, "answer": 20, "id": 7}\n\n')
    assert read_lengths(log) == [900, 120]


@pytest.mark.parametrize(
    "line", ["x", "-1", "0", "true", "1.5", '{"prompt": 3}', "[1]", '{"prompt": "1", "answer": "2"}']
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(f"5\n{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_lengths(log)
    log.write_text("")
    with pytest.raises(InputError, match="no request"):
        read_lengths(log)


def test_a_plan_is_json_ready() -> None:
    json.dumps(choose([100, 200, 900], 2, 10).to_json())
