"""The bundled checkpoint on the real CPU backend, from picture files to answers, against transformers' figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isthmus
import numpy as np
import pytest
from isthmus.models.export import export
from isthmus.pipeline import Pipeline, Sampling, evaluate
from isthmus.pipeline.dataset import read_samples
from isthmus.pipeline.picture import open_picture
from isthmus.pipeline.tiles import pixel_values
from isthmus_tiny_internvl import CHECKPOINT, EVALUATION

SAMPLES = {s.id: s for s in read_samples(EVALUATION)}
REFERENCES = sorted(EVALUATION.glob("reference_*.npz"))


def compiled(folder: Path, **options: Any) -> isthmus.Artifact:
    return isthmus.compile("cpu", export(CHECKPOINT, folder / "graphs", **options), folder / "artifact")


@pytest.fixture(scope="module")
def device() -> Iterator[isthmus.Device]:
    with isthmus.open_device("cpu") as device:
        yield device


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> isthmus.Artifact:
    return compiled(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="module")
def pipeline(device: isthmus.Device, artifact: isthmus.Artifact) -> Iterator[Pipeline]:
    with Pipeline.load(device, artifact) as pipeline:
        yield pipeline


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_evaluation_set_scores_as_the_reference_does(pipeline: Pipeline, use_cache: bool) -> None:
    result = evaluate(pipeline, EVALUATION, use_cache=use_cache)
    assert (result.questions, result.references) == (120, 5)
    for task, ours in result.per_task.items():
        theirs = [s.hf_answer == s.answer for s in SAMPLES.values() if s.task == task]
        assert (task, ours.questions, ours.correct) == (task, len(theirs), sum(theirs))
    assert result.agreement_with_reference == 1, result.differences
    assert result.max_logit_error is not None
    assert result.max_logit_error <= 1e-4
    assert result.logit_sqnr_db is not None
    assert result.logit_sqnr_db > 100
    assert result.max_feature_error is not None
    assert result.max_feature_error <= 1e-4
    assert result.reality == "real"


@pytest.mark.parametrize("file", REFERENCES, ids=lambda f: f.stem)
def test_pixels_and_prompt_ids_are_exactly_those_of_transformers(pipeline: Pipeline, file: Path) -> None:
    sample = SAMPLES[file.stem.removeprefix("reference_")]
    images = [EVALUATION / sample.image] if sample.image else []
    with np.load(file) as stored, pipeline.chat() as chat:
        assert chat.prompt(sample.question, images).ids.tolist() == stored["input_ids"].tolist()
        if images:
            assert pipeline.model.image is not None
            assert np.array_equal(
                pixel_values(open_picture(images[0]), pipeline.model.image)[0], stored["pixel_values"]
            )


def test_a_chat_reuses_what_was_said_and_answers_as_if_it_had_not(pipeline: Pipeline) -> None:
    picture = EVALUATION / "images" / "digit_000.png"
    with pipeline.chat() as chat, pipeline.chat(use_cache=False) as whole:
        reused = []
        for question, images in [
            ("What digit is this?", [picture]),
            ("Is this digit even or odd?", []),
            ("What is three plus four?", []),
        ]:
            answer, oracle = (c.ask(question, images) for c in (chat, whole))
            assert answer.ids == oracle.ids
            assert answer.stop_reason == "stop"
            reused.append((answer.prompt_tokens, answer.reused_tokens, answer.timings.tiles))
    # prompt + answer without its stop token: 34 + 6, then 59 + 6
    assert reused == [(34, 0, 1), (59, 40, 0), (83, 65, 0)]


VARIANTS = {
    "several contexts and prefill sizes": {"contexts": [48, 128], "prefill": [8, 32]},
    "one prefill over the whole context": {"contexts": [64], "prefill": [64]},
    "float16": {"dtype": "float16"},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_other_graphs_of_the_same_checkpoint_give_the_same_answers(
    device: isthmus.Device, tmp_path: Path, options: dict[str, Any]
) -> None:
    with Pipeline.load(device, compiled(tmp_path, **options)) as pipeline:
        result = evaluate(pipeline, EVALUATION, limit=32)
        assert result.agreement_with_reference == 1, result.differences
        assert result.max_logit_error is not None
        assert result.max_logit_error <= (0.05 if options.get("dtype") == "float16" else 1e-4)


def test_sampling_with_a_seed_is_repeatable(pipeline: Pipeline) -> None:
    sampling = Sampling(temperature=2.0, top_k=20, top_p=0.95, seed=11)
    with pipeline.chat() as chat:
        answers = []
        for _ in range(2):
            chat.clear()
            answers.append(chat.ask("What is three plus four?", sampling=sampling, max_new_tokens=16))
    assert answers[0].ids == answers[1].ids


def test_a_20000_x_3_picture_and_a_long_prompt_are_refused(pipeline: Pipeline) -> None:
    from PIL import Image

    with pipeline.chat() as chat:
        with pytest.raises(isthmus.IsthmusError, match="20000 x 3") as error:
            chat.ask("What is this?", [Image.new("RGB", (20000, 3))])
        assert error.value.exit_code == 2
        with pytest.raises(isthmus.IsthmusError, match="the context holds 256") as error:
            chat.ask("why " * 400)
        assert error.value.exit_code == 2


def test_a_dataset_line_that_names_another_folder_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    line = {"id": "x", "task": "t", "image": "../x.png", "question": "?", "answer": "!"}
    (tmp_path / "eval.jsonl").write_text(json.dumps(line))
    with pytest.raises(isthmus.IsthmusError, match="leaves the directory"):
        evaluate(pipeline, tmp_path)
