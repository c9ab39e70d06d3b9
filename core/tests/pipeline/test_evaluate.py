from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isthmus.errors import InputError
from isthmus.models.description import LlmEntry
from isthmus.pipeline import evaluate
from PIL import Image

LLM = (LlmEntry("prefill", 32, 128), LlmEntry("decode", 1, 128))


def write_lines(folder: Path, *lines: Any) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "eval.jsonl").write_text(text)
    return folder


def question(name: str, task: str = "t", image: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": name, "task": task, "image": image, "question": f"What is {name}?", "answer": "x", **more}


@pytest.fixture
def made(make_pipeline: Any) -> Any:
    return make_pipeline(llm=LLM, stop_ids=())


@pytest.fixture
def dataset(made: Any, tmp_path: Path) -> Path:
    """Two questions with reference tensors from plain full-sequence attention, one of them about a picture."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    lines = []
    with made.pipeline.chat() as chat:
        for name, image in (("one", "p.png"), ("two", None)):
            images = [tmp_path / image] if image else []
            prompt = chat.prompt(f"What is {name}?", images)
            rows = made.model.embedding[prompt.ids].astype(np.float64)
            rows[prompt.is_image] = prompt.features
            prompt_logits = made.model.logits(rows)
            ids: list[int] = []
            steps = []
            for _ in range(32):
                steps.append(made.model.logits(rows)[-1])
                ids.append(int(np.argmax(steps[-1].astype(np.float32))))
                rows = np.concatenate([rows, made.model.embedding[ids[-1:]]])
            text = made.pipeline.tokenizer.decode(ids)
            tensors = {"image_features": prompt.features} if images else {}
            np.savez(
                tmp_path / f"reference_{name}.npz", input_ids=prompt.ids, prompt_logits=prompt_logits,
                generated_ids=ids, step_logits=np.array(steps), extra=np.zeros(3), **tensors,
            )  # fmt: skip
            lines.append(
                question(
                    name, "see" if image else "read", image, answer=text, hf_answer=text, hf_ids=ids, source="numpy"
                )
            )
    return write_lines(tmp_path, *lines)


def test_a_perfect_model_scores_perfectly(made: Any, dataset: Path) -> None:
    seen: list[tuple[int, int]] = []
    for use_cache in (True, False):
        result = evaluate(made.pipeline, dataset, progress=lambda *p: seen.append(p), use_cache=use_cache)
        assert (result.questions, result.references) == (2, 2)
        assert result.accuracy == result.agreement_with_reference == 1
        assert result.differences == ()
        assert result.max_logit_error is not None
        assert 0 < result.max_logit_error < 1e-4
        assert result.max_feature_error == 0
        assert result.logit_sqnr_db is not None
        assert result.logit_sqnr_db > 90
        assert result.seconds_per_picture is not None
        assert result.reality == "real"
        assert result.device == "numpy:0"
    assert seen == [(0, 2), (1, 2), (2, 2)] * 2


def test_the_report_is_json_with_the_keys_others_rely_on(made: Any, dataset: Path) -> None:
    data = json.loads(json.dumps(evaluate(made.pipeline, dataset).to_json()))
    assert data["accuracy"] == 1
    assert data["per_task"] == {"see": 1, "read": 1}
    assert data["tasks"] == {"see": {"questions": 1, "correct": 1}, "read": {"questions": 1, "correct": 1}}
    assert {"agreement_with_reference", "differences", "max_logit_error", "logit_sqnr_db"} <= data.keys()


def test_an_error_in_the_model_is_measured_and_every_difference_listed(made: Any, dataset: Path) -> None:
    made.model.head = made.model.head + np.random.default_rng(1).normal(0, 0.5, made.model.head.shape)
    result = evaluate(made.pipeline, dataset)
    assert result.max_logit_error is not None
    assert result.max_logit_error > 0.5
    assert result.logit_sqnr_db is not None
    assert result.logit_sqnr_db < 30
    assert result.agreement_with_reference == result.accuracy == 0
    assert [d.id for d in result.differences] == ["one", "two"]
    for difference in result.differences:
        assert difference.step is not None
        assert difference.margin is not None
        assert difference.margin > 0
        assert difference.got != difference.expected


def test_an_error_in_vision_shows_in_the_features(made: Any, dataset: Path) -> None:
    made.model.vision = made.model.vision * 1.01
    result = evaluate(made.pipeline, dataset, limit=1)
    assert result.questions == 1
    assert result.max_feature_error is not None
    assert result.max_feature_error > 1e-3


def test_the_margin_is_that_of_the_first_token_that_differs(made: Any, dataset: Path) -> None:
    lines = [json.loads(line) for line in (dataset / "eval.jsonl").read_text().splitlines()]
    lines[1]["hf_ids"][5] = (lines[1]["hf_ids"][5] + 1) % 256
    lines[1]["hf_answer"] = "another"
    result = evaluate(made.pipeline, write_lines(dataset, *lines))
    (difference,) = result.differences
    with np.load(dataset / "reference_two.npz") as stored:
        second, first = np.sort(stored["step_logits"][5])[-2:]
    assert difference.step == 5
    assert difference.margin == pytest.approx(first - second, abs=1e-3)


def test_a_dataset_without_references_gives_accuracy_only(made: Any, tmp_path: Path) -> None:
    result = evaluate(made.pipeline, write_lines(tmp_path, question("a"), "", question("b", hf_answer="no")))
    assert result.accuracy == 0
    assert result.agreement_with_reference == 0
    assert result.differences[0].margin is None
    for value in (result.max_logit_error, result.logit_sqnr_db, result.max_feature_error, result.seconds_per_picture):
        assert value is None
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: "),
        ("[1]", "line 2: a JSON object, not list"),
        ({"id": "a", "task": "t", "question": "?"}, "line 2: .*answer"),
        (question("a", answer=3), "line 2: .*answer"),
        (question("a", hf_ids=["1"]), "line 2: .*hf_ids"),
        (question("ok"), "line 2: the id 'ok' was used before"),
        (question("a", image="none.png"), "line 2: no picture none.png"),
        (question("a", image="../../etc/passwd"), "leaves the directory"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(made: Any, tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(made.pipeline, write_lines(tmp_path, question("ok"), line))
    assert made.driver.executed == []


def test_a_missing_or_empty_dataset_and_a_bad_limit_are_refused(made: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        evaluate(made.pipeline, tmp_path / "no")
    with pytest.raises(InputError, match="no questions"):
        evaluate(made.pipeline, write_lines(tmp_path, ""))
    with pytest.raises(InputError, match="limit"):
        evaluate(made.pipeline, write_lines(tmp_path, question("a")), limit=0)


def test_a_damaged_reference_is_refused(made: Any, dataset: Path) -> None:
    file = dataset / "reference_one.npz"
    whole = file.read_bytes()
    with np.load(file) as stored:
        tensors = dict(stored)
    for content in (b"", whole[:100], whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"reference_one\.npz"):
            evaluate(made.pipeline, dataset)
    np.savez(file, **{**tensors, "step_logits": tensors["step_logits"][:3]})
    with pytest.raises(InputError, match=r"reference_one\.npz.*32 generated ids with logits \[3, 268\]"):
        evaluate(made.pipeline, dataset)


def test_a_reference_of_another_prompt_or_vocabulary_is_refused(made: Any, dataset: Path) -> None:
    with np.load(dataset / "reference_one.npz") as stored:
        tensors = dict(stored)
    ids = tensors["input_ids"].copy()
    ids[7] += 1
    np.savez(dataset / "reference_one.npz", **{**tensors, "input_ids": ids})
    with pytest.raises(InputError, match="first difference at 7"):
        evaluate(made.pipeline, dataset)
    short = {k: tensors[k][:, :100] for k in ("prompt_logits", "step_logits")}
    np.savez(dataset / "reference_one.npz", **{**tensors, **short})
    with pytest.raises(InputError, match=r"logits of one: the model gives \[268\], the reference has \[100\]"):
        evaluate(made.pipeline, dataset)
