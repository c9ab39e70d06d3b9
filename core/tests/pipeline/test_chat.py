"""Conversations, end to end on the numpy device."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from isthmus import DType
from isthmus.errors import ClosedError, DeviceLostError, ExecutionError, InputError
from isthmus.models.description import LlmEntry, PromptSpec
from isthmus.pipeline import Answer, Pipeline, Sampling
from isthmus.pipeline.chat import Chat
from PIL import Image

CONTEXT = 256
LLM = (LlmEntry("prefill", 32, CONTEXT), LlmEntry("decode", 1, CONTEXT))
NO_STOP: dict[str, Any] = {"llm": LLM, "stop_ids": ()}


def picture(seed: int = 0, width: int = 8, height: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def oracle_ids(made: Any, chat: Chat, text: str, images: Any = (), count: int = 8) -> list[int]:
    """Greedy tokens of plain full-sequence attention."""
    prompt = chat.prompt(text, images)
    rows = made.model.embedding[prompt.ids].astype(np.float64)
    rows[prompt.is_image] = prompt.features
    ids: list[int] = []
    for _ in range(count):
        ids.append(int(np.argmax(made.model.logits(rows)[-1].astype(np.float32))))
        rows = np.concatenate([rows, made.model.embedding[ids[-1:]]])
    return ids


@pytest.mark.parametrize("aliased", [True, False])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("per_call", [1, 4])
def test_an_answer_about_pictures_is_that_of_full_attention(
    make_pipeline: Any, description: Any, aliased: bool, use_cache: bool, per_call: int
) -> None:
    image = attrs.evolve(description().image, tiles_per_call=per_call)
    made = make_pipeline(aliased=aliased, image=image, **NO_STOP)
    with made.pipeline.chat(use_cache=use_cache) as chat:
        images = [picture(1), picture(2, 24, 16)]  # one tile; 3 x 2 and a thumbnail
        expected = oracle_ids(made, chat, "Compare.", images)
        answer = chat.ask("Compare.", images, max_new_tokens=8)
    assert list(answer.ids) == expected
    assert answer.image_tokens == 8 * 4
    assert answer.timings.tiles == 8
    assert answer.stop_reason == "length"
    assert answer.timings.decode_steps == 7


def test_both_routes_give_the_same_tokens_and_close_logits(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    cached, whole = (made.pipeline.chat(use_cache=use) for use in (True, False))
    answers = [chat.ask("What is it?", [picture()], max_new_tokens=20) for chat in (cached, whole)]
    assert answers[0].ids == answers[1].ids
    assert np.abs(cached.session.forward() - whole.session.forward()).max() < 1e-4
    assert whole.session.executes > cached.session.executes


def test_a_follow_up_reuses_everything_said_and_answers_as_a_fresh_conversation_would(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat, whole = made.pipeline.chat(), made.pipeline.chat(use_cache=False)
    for number, (text, images) in enumerate([("What is it?", [picture()]), ("And this?", [picture(3)]), ("Sure?", [])]):
        answer, oracle = (c.ask(text, images, max_new_tokens=6) for c in (chat, whole))
        assert answer.ids == oracle.ids
        assert answer.text == oracle.text
        assert answer.prompt_tokens == oracle.prompt_tokens
        assert oracle.reused_tokens == 0
        assert (answer.reused_tokens > 0) == (number > 0)
        new = answer.prompt_tokens - answer.reused_tokens
        assert answer.timings.prefill_tokens == new
        assert answer.timings.tiles == len(images)
        assert answer.timings.prefill_executes == -(-new // 32)


def test_what_is_reused_is_the_prompt_and_the_answer_up_to_its_last_token(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat = made.pipeline.chat()
    # An ASCII answer, so that encoding its text gives the same tokens again.
    made.model.head[:, [i for i in range(268) if not 40 <= i < 80]] = 0
    first = chat.ask("What is it?", [picture()], max_new_tokens=6)
    second = chat.ask("Sure?")
    assert second.reused_tokens == first.prompt_tokens + len(first.ids) - 1


def test_chats_are_independent_and_clear_forgets(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    one, two = made.pipeline.chat(), made.pipeline.chat()
    first = one.ask("What is it?", [picture()], max_new_tokens=6)
    two.ask("Something else", max_new_tokens=6)
    one.clear()
    again = one.ask("What is it?", [picture()], max_new_tokens=6)
    assert again.ids == first.ids
    assert again.reused_tokens == 0
    assert again.prompt_tokens == first.prompt_tokens


def test_the_same_question_about_another_picture_reuses_nothing_of_the_picture(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat = made.pipeline.chat()
    made.driver.broken = RuntimeError("unplugged")
    with pytest.raises(RuntimeError):
        chat.ask("What is it?", [picture(1)])
    made.driver.broken = None

    def fail(piece: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.ask("What is it?", [picture(1)], on_text=fail)
    expected = oracle_ids(made, chat, "What is it?", [picture(2)])
    answer = chat.ask("What is it?", [picture(2)], max_new_tokens=8)
    assert answer.reused_tokens == 0
    assert list(answer.ids) == expected


def test_a_question_that_fails_leaves_the_conversation_as_it_was(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat = made.pipeline.chat()
    chat.ask("What is it?", [picture()], max_new_tokens=4)
    before = chat.prompt("Sure?")
    for text, images in [("", []), ("x" * 300, []), ("<image>", []), ("a", [b"no picture"]), ("b" * 200, [picture()])]:
        with pytest.raises(InputError):
            chat.ask(text, images)
    after = chat.prompt("Sure?")
    assert np.array_equal(before.ids, after.ids)
    assert chat.ask("Sure?", max_new_tokens=4).reused_tokens > 0


def test_the_streamed_pieces_add_up_to_the_text(make_pipeline: Any) -> None:
    chat = make_pipeline(**NO_STOP).pipeline.chat()
    pieces: list[str] = []
    answer = chat.ask("Hello", max_new_tokens=40, sampling=Sampling(1.5, seed=3), on_text=pieces.append)
    assert "".join(pieces) == answer.text
    assert len(pieces) > 5
    assert all(pieces)


def test_a_seed_repeats_an_answer(make_pipeline: Any) -> None:
    chat = make_pipeline(**NO_STOP).pipeline.chat()

    def ask(seed: int) -> Answer:
        chat.clear()
        return chat.ask("Hello", max_new_tokens=20, sampling=Sampling(2.0, top_k=50, top_p=0.9, seed=seed))

    assert ask(1).ids == ask(1).ids != ask(2).ids


def test_a_stop_token_ends_the_answer_and_is_not_part_of_its_text(make_pipeline: Any) -> None:
    made = make_pipeline(llm=LLM)
    made.model.head[:, 258] = 0
    chat = made.pipeline.chat()
    long = chat.ask("Hello", max_new_tokens=30)
    made = make_pipeline(llm=LLM, stop_ids=(long.ids[4], 999))
    made.model.head[:, 258] = 0
    short = made.pipeline.chat().ask("Hello", max_new_tokens=30)
    stop = long.ids.index(long.ids[4])
    assert short.ids == long.ids[: stop + 1]
    assert short.stop_reason == "stop"
    assert short.text == made.pipeline.tokenizer.decode(short.ids[:-1])


def test_an_answer_ends_when_the_context_is_full(make_pipeline: Any) -> None:
    for use_cache in (True, False):
        made = make_pipeline(llm=(LlmEntry("prefill", 16, 64), LlmEntry("decode", 1, 64)), stop_ids=())
        chat = made.pipeline.chat(use_cache=use_cache)
        answer = chat.ask("Hello", max_new_tokens=1000)
        assert answer.stop_reason == "context"
        assert answer.prompt_tokens + len(answer.ids) - 1 == 64
        with pytest.raises(InputError, match="the context holds 64"):
            chat.ask("More?")
        chat.clear()
        assert chat.ask("Hello", max_new_tokens=2).stop_reason == "length"


def test_a_prompt_longer_than_the_context_names_all_figures_before_the_vision_entry_runs(make_pipeline: Any) -> None:
    made = make_pipeline(llm=(LlmEntry("prefill", 16, 64), LlmEntry("decode", 1, 64)))
    chat = made.pipeline.chat()
    with pytest.raises(
        InputError, match=r"64 tokens, 28 of them for 7 image tiles; the context holds 63|fewer"
    ) as error:
        chat.ask("What is in this picture?", [picture(0, 24, 16)])
    assert "28 of them for 7 image tiles; the context holds 64" in error.value.what
    assert "--contexts" in (error.value.fix or "")
    assert made.driver.executed == []


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3", None])
def test_max_new_tokens_must_be_a_count(make_pipeline: Any, bad: Any) -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        make_pipeline(**NO_STOP).pipeline.chat().ask("Hello", max_new_tokens=bad)


@pytest.mark.parametrize("images", ["a.png", b"abc", Path("a.png"), picture()])
def test_one_picture_instead_of_a_list_is_refused(make_pipeline: Any, images: Any) -> None:
    with pytest.raises(InputError, match="images must be a sequence"):
        make_pipeline(**NO_STOP).pipeline.chat().ask("Hello", images)


def test_system_messages_are_the_models_the_callers_or_none(make_pipeline: Any) -> None:
    prompt = PromptSpec("internvl2_5", "Be brief.", "<img>", "<IMG_CONTEXT>", "</img>")
    pipeline = make_pipeline(prompt=prompt, **NO_STOP).pipeline

    def text_of(chat: Chat) -> str:
        return str(pipeline.tokenizer.decode(chat.prompt("Hi").ids.tolist()))

    assert text_of(pipeline.chat()).startswith("system\nBe brief.\nuser\nHi")
    assert text_of(pipeline.chat(system="Be long.")).startswith("system\nBe long.\nuser")
    assert text_of(pipeline.chat(system=None)).startswith("user\nHi")


def test_a_text_only_model_chats_and_refuses_pictures(make_pipeline: Any) -> None:
    made = make_pipeline(image=None, prompt=PromptSpec("chatml", None), **NO_STOP)
    chat = made.pipeline.chat()
    assert made.pipeline.vision is None
    assert list(chat.ask("Hello", max_new_tokens=5).ids) == oracle_ids(made, made.pipeline.chat(), "Hello", count=5)
    with pytest.raises(InputError, match="text-only"):
        chat.ask("Look", [picture()])


def test_the_model_may_say_its_own_image_token_without_breaking_the_cache(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat, whole = made.pipeline.chat(), made.pipeline.chat(use_cache=False)
    made.model.head[:] = 0
    made.model.head[:, 261] = np.abs(made.model.layers[0]["o"]).sum()  # <IMG_CONTEXT> or nothing
    for c in (chat, whole):
        answer = c.ask("Hello", [picture()], max_new_tokens=6)
        assert set(answer.ids) <= {0, 261}
        c.ask("Again", [picture(1)], max_new_tokens=6)


def test_nothing_is_allocated_after_the_start(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    chat = made.pipeline.chat()

    def ask() -> None:
        made.driver.executed.clear()
        chat.clear()
        chat.ask("What is it?", [picture()], max_new_tokens=60)
        chat.ask("Sure?", max_new_tokens=60)

    def held() -> int:
        gc.collect()
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/isthmus/*")])
        return sum(trace.size for trace in ours.traces)

    ask()
    before = made.driver.allocations
    tracemalloc.start()
    try:
        ask()
        once = held()
        for _ in range(3):
            ask()
        grown = held() - once
    finally:
        tracemalloc.stop()
    assert made.driver.allocations == before
    assert grown < 1024  # after 360 more decode steps; one View that is kept per step and layer would be 100 kB


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
def test_logits_that_are_not_finite_stop_the_answer_and_poison_nothing(make_pipeline: Any, dtype: DType) -> None:
    made = make_pipeline(dtype=dtype, **NO_STOP)
    chat = made.pipeline.chat()
    expected = chat.ask("Hello", max_new_tokens=5).ids
    chat.clear()
    made.driver.broken = float("nan")
    with pytest.raises(ExecutionError, match="is nan"):
        chat.ask("Hello " * 30, max_new_tokens=5)  # leaves NaN in slots that the next question only masks
    made.driver.broken = None
    assert chat.ask("Hello", max_new_tokens=5).ids == expected


def test_a_lost_device_is_reported_as_such(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    made.driver.broken = DeviceLostError("the device is gone")
    with pytest.raises(DeviceLostError):
        made.pipeline.chat().ask("Hello")
    made.driver.live = 0


def test_closing_frees_everything_and_a_closed_chat_says_so(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    empty = made.driver.live
    with made.pipeline.chat() as chat:
        assert chat.session.nbytes > 2 * 2 * CONTEXT * 32  # 2 layers, keys and values
        assert made.driver.live > empty
    chat.close()
    assert made.driver.live == empty
    with pytest.raises(ClosedError):
        chat.ask("Hello")
    made.pipeline.chat()
    made.pipeline.close()
    made.pipeline.close()
    assert made.driver.live == 0


def test_a_pipeline_over_a_callers_program_leaves_it_loaded(make_pipeline: Any) -> None:
    program = make_pipeline(**NO_STOP).pipeline.program
    with Pipeline(program) as pipeline:
        pipeline.chat().ask("Hello", max_new_tokens=2)
    assert not program.closed


def test_chats_on_several_threads_do_not_disturb_each_other(make_pipeline: Any) -> None:
    made = make_pipeline(**NO_STOP)
    questions = [(f"Question {i}", [picture(i)]) for i in range(4)]
    expected = [made.pipeline.chat().ask(t, p, max_new_tokens=12).ids for t, p in questions]
    got: list[Any] = [None] * 4

    def work(i: int) -> None:
        got[i] = made.pipeline.chat().ask(*questions[i], max_new_tokens=12).ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected
