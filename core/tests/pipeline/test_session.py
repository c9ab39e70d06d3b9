"""The language model's side: masks, plans, the KV cache, and the cached route against plain full-sequence attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus import DType
from isthmus.errors import IncompatibleError, InputError, IntegrityError
from isthmus.models.description import EmbeddingSpec, LlmEntry
from isthmus.pipeline.embed import EmbeddingTable
from isthmus.pipeline.mask import Mask
from isthmus.pipeline.plan import next_chunk
from isthmus.pipeline.rope import rope_table
from isthmus.pipeline.session import Prompt, Session

HIDDEN = 16
MANY = tuple(
    LlmEntry(name, n, c)
    for name, n, c in [("p8_32", 8, 32), ("d_32", 1, 32), ("p8", 8, 96), ("p32", 32, 96), ("d", 1, 96)]
)
SETS = {
    "prefill and decode": (LlmEntry("prefill", 16, 64), LlmEntry("decode", 1, 64)),
    "several sizes and contexts": MANY,
    "context no multiple of the chunk": (LlmEntry("prefill", 24, 64), LlmEntry("decode", 1, 64)),
    "no decode": (LlmEntry("prefill", 16, 64),),
    "no past": (LlmEntry("whole", 64, 64),),
    "decode only": (LlmEntry("decode", 1, 64),),
}


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=5),
    st.integers(0, 99),
    st.integers(1, 100),
)
def test_every_plan_ends_and_never_leaves_a_gap(shapes: list[tuple[int, int]], known: int, more: int) -> None:
    graphs = [LlmEntry(str(i), n, n + p) for i, (n, p) in enumerate(shapes)]
    capacity = max(g.context for g in graphs)
    end = min(known + more, capacity)
    known = min(known, end - 1)
    while known < end:
        chunk = next_chunk(graphs, known, end)
        graph = graphs[chunk.graph]
        assert 0 <= chunk.slot <= known  # no gap
        assert chunk.slot <= graph.context - graph.tokens  # its past holds what came before
        assert 1 <= chunk.count <= graph.tokens
        assert known < chunk.slot + chunk.count <= end  # progress
        known = chunk.slot + chunk.count


@pytest.mark.parametrize(
    ("known", "end", "expected"),
    [
        (0, 5, ("p8_32", 0, 5)),  # fewest rows, smallest context
        (0, 9, ("p32", 0, 9)),  # fewest executes
        (0, 60, ("p32", 0, 32)),
        (20, 21, ("d_32", 20, 1)),
        (31, 32, ("d_32", 31, 1)),
        (32, 33, ("d", 32, 1)),
        (70, 90, ("p32", 64, 26)),  # starts earlier: one execute instead of three
        (90, 96, ("p8", 88, 8)),
        (95, 96, ("d", 95, 1)),
    ],
)
def test_the_best_graph_is_chosen(known: int, end: int, expected: tuple[str, int, int]) -> None:
    chunk = next_chunk(MANY, known, end)
    assert (MANY[chunk.graph].name, chunk.slot, chunk.count) == expected


def test_a_plan_beyond_every_context_is_an_error() -> None:
    with pytest.raises(IncompatibleError, match="reaches token 97"):
        next_chunk(MANY, 96, 97)


@given(st.integers(1, 6), st.integers(0, 8), st.lists(st.integers(0, 8), max_size=6))
def test_a_mask_shows_the_past_and_is_causal_after_any_history(tokens: int, past: int, shown: list[int]) -> None:
    mask = Mask(tokens, past + tokens, -1e4, np.float16)
    for slots in [min(s, past) for s in [0, *shown]]:
        array = mask.show(slots)
        for row in range(tokens):
            for column in range(past + tokens):
                visible = column < slots or past <= column <= past + row
                assert array[row, column] == (0 if visible else -1e4)
    assert array.dtype == np.float16
    assert array.flags.c_contiguous


def test_rope_tables_are_cos_and_sin_of_position_times_frequency() -> None:
    cos, sin = rope_table(10000.0, 8, 100, np.dtype(np.float32))
    angle = np.arange(100)[:, None] * 10000.0 ** (-np.arange(4) * 2 / 8)
    assert np.abs(cos - np.cos(angle)).max() < 1e-5
    assert np.abs(sin - np.sin(angle)).max() < 1e-5
    assert not cos.flags.writeable
    assert rope_table(10000.0, 8, 100, np.dtype(np.float32))[0] is cos


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wanted", [np.float32, np.float16])
def test_embedding_rows_are_read_in_every_stored_type(tmp_path: Any, stored: str, wanted: Any) -> None:
    values = np.random.default_rng(0).normal(0, 1, (10, 4)).astype(np.float32)
    if stored == "bfloat16":
        raw = (values.view(np.uint32) >> 16).astype(np.uint16)
        values = (raw.astype(np.uint32) << 16).view(np.float32)
    else:
        raw = values.astype(stored)
        values = raw.astype(np.float32)
    (tmp_path / "e").write_bytes(raw.tobytes())
    table = EmbeddingTable(tmp_path / "e", EmbeddingSpec("e", stored), 4, 10)
    out = np.zeros((3, 4), wanted)
    table.look_up(np.array([9, 0, 9]), out)
    assert np.array_equal(out, values[[9, 0, 9]].astype(wanted))
    with pytest.raises(InputError, match="token id 10 is outside the embedding table of 10 rows"):
        table.look_up(np.array([1, 10, 2]), out)


def test_an_embedding_table_of_a_strange_size_or_type_is_refused(tmp_path: Any) -> None:
    (tmp_path / "e").write_bytes(b"x" * 30)
    with pytest.raises(IntegrityError, match="30 bytes"):
        EmbeddingTable(tmp_path / "e", EmbeddingSpec("e", "float32"), 4, 1)
    with pytest.raises(IncompatibleError, match="'int8'"):
        EmbeddingTable(tmp_path / "e", EmbeddingSpec("e", "int8"), 4, 1)
    (tmp_path / "e").write_bytes(b"x" * 32)
    with pytest.raises(IncompatibleError, match="2 rows; the model picks among 3 tokens"):
        EmbeddingTable(tmp_path / "e", EmbeddingSpec("e", "float32"), 4, 3)


def prompt_of(ids: Sequence[int], image: slice | None = None) -> Prompt:
    is_image = np.zeros(len(ids), np.bool_)
    if image is not None:
        is_image[image] = True
    rows = np.random.default_rng(5).normal(0, 1, (int(is_image.sum()), HIDDEN)).astype(np.float32)
    return Prompt(np.array(ids, np.int64), is_image, rows)


def rows_of(made: Any, prompt: Prompt, tail: Sequence[int] = ()) -> np.ndarray:
    rows = made.model.embedding[[*prompt.ids, *tail]].astype(np.float64)
    rows[: len(prompt.ids)][prompt.is_image] = prompt.features
    return rows


def session_of(made: Any, use_cache: bool = True) -> Session:
    pipeline = made.pipeline
    return pipeline.chat(use_cache=use_cache).session  # closed with the pipeline


IDS = np.random.default_rng(3).integers(0, 260, 64)


@pytest.mark.parametrize("llm", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("aliased", [True, False])
@pytest.mark.parametrize("use_cache", [True, False])
def test_every_route_gives_the_logits_of_full_attention(
    make_pipeline: Any, llm: Any, aliased: bool, use_cache: bool
) -> None:
    made = make_pipeline(aliased=aliased, llm=llm)
    session = session_of(made, use_cache)
    prompt = prompt_of(IDS[:21].tolist(), slice(4, 12))
    session.start(prompt)
    got = [session.forward().copy()]
    tail = IDS[21:64].tolist()
    for token in tail:
        session.append(token)
        got.append(session.forward().copy())
    assert session.count == 64
    wanted = made.model.logits(rows_of(made, prompt, tail))[20:]
    assert np.abs(np.array(got) - wanted).max() < 2e-4
    assert (made.driver.copies > 0) == (not aliased)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 48, 63, 64])
def test_a_prompt_of_any_length_is_computed_in_the_fewest_executes(make_pipeline: Any, length: int) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    session.start(prompt_of(IDS[:length].tolist()))
    logits = session.forward()
    wanted = made.model.logits(rows_of(made, prompt_of(IDS[:length].tolist())))[-1]
    assert np.abs(logits - wanted).max() < 1e-4
    assert session.executes == len(made.driver.executed) == -(-length // 16)


def test_half_precision_inputs_and_outputs_are_cast(make_pipeline: Any) -> None:
    made = make_pipeline(dtype=DType.FLOAT16, llm=SETS["prefill and decode"])
    session = session_of(made)
    prompt = prompt_of(IDS[:21].tolist(), slice(4, 12))
    session.start(prompt)
    logits = session.forward()
    assert logits.dtype == np.float32
    assert np.abs(logits - made.model.logits(rows_of(made, prompt))[-1]).max() < 0.2


def test_slots_that_are_not_aligned_for_the_device_go_through_staging(make_pipeline: Any) -> None:
    for alignment, copies in ((32, False), (64, True)):  # a slot is 2 heads x 4 x 4 bytes = 32
        made = make_pipeline(io_alignment=alignment, llm=SETS["prefill and decode"])
        session = session_of(made)
        session.start(prompt_of(IDS[:21].tolist()))
        session.forward()
        assert (made.driver.copies > 0) == copies


def test_a_new_prompt_reuses_exactly_what_it_shares(make_pipeline: Any) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    session.start(prompt_of(IDS[:30].tolist()))
    session.forward()
    other = [*IDS[:18].tolist(), 1, 2, 3]
    assert session.start(prompt_of(other)) == 18
    logits = session.forward()
    assert np.abs(logits - made.model.logits(rows_of(made, prompt_of(other)))[-1]).max() < 1e-4
    assert session.start(prompt_of(other)) == 20  # the last token is computed for its logits
    assert session.start(prompt_of([5])) == 0
    assert session_of(made, use_cache=False).start(prompt_of(other)) == 0


def test_an_image_token_and_the_same_id_as_text_share_nothing(make_pipeline: Any) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    session.start(prompt_of([7] * 10))
    session.forward()
    assert session.start(prompt_of([7] * 10, slice(4, 6))) == 4


def test_after_a_failed_execute_only_finished_slots_count(make_pipeline: Any) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    session.start(prompt_of(IDS[:16].tolist()))
    session.forward()
    made.driver.broken = RuntimeError("boom")
    session.start(prompt_of(IDS[:40].tolist()))
    with pytest.raises(RuntimeError, match="boom"):
        session.forward()
    made.driver.broken = None
    assert session.start(prompt_of(IDS[:40].tolist())) == 16
    logits = session.forward()
    assert np.abs(logits - made.model.logits(rows_of(made, prompt_of(IDS[:40].tolist())))[-1]).max() < 1e-4


def test_slots_that_were_being_written_again_when_an_execute_failed_do_not_count(make_pipeline: Any) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    session.start(prompt_of(IDS[:50].tolist()))
    session.forward()
    made.driver.broken = RuntimeError("boom")
    assert session.start(prompt_of(IDS[:60].tolist())) == 50
    with pytest.raises(RuntimeError, match="boom"):
        session.forward()  # one execute from slot 48
    made.driver.broken = None
    assert session.start(prompt_of(IDS[:60].tolist())) == 48


def test_a_prompt_must_fit(make_pipeline: Any) -> None:
    session = session_of(make_pipeline(llm=SETS["prefill and decode"]))
    for ids in ([], [1] * 65):
        with pytest.raises(InputError, match=f"a prompt of {len(ids)} tokens for a context of 64"):
            session.start(prompt_of(ids))


def test_the_pictures_of_a_prompt_may_span_chunks(make_pipeline: Any) -> None:
    made = make_pipeline(llm=SETS["prefill and decode"])
    session = session_of(made)
    prompt = prompt_of(IDS[:60].tolist(), slice(10, 55))
    session.start(attrs.evolve(prompt))
    logits = session.forward()
    assert np.abs(logits - made.model.logits(rows_of(made, prompt))[-1]).max() < 1e-4
