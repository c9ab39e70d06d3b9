"""``isthmus generate`` and ``isthmus evaluate``: the pipeline on any backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from ..api import open_device
from ..artifact import Artifact
from ..device import Device
from ..pipeline import Answer, Evaluation, Gate, Pipeline, Sampling
from ..pipeline import evaluate as evaluate_pipeline
from ..types import Reality
from . import flags
from .models import Build, bundled_package, resolve_artifact
from .output import Work, emit, in_json_mode, label, note, table, working


def generate(
    question: Annotated[str, typer.Option("--question", "-q", help="What to ask.")],
    image: Annotated[list[Path] | None, typer.Option("--image", "-i", help="Picture; repeat for several.")] = None,
    model: flags.Model = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message instead of the model's own.")] = None,
    kv_cache: Annotated[
        bool, typer.Option("--kv-cache/--no-kv-cache", help="Without: feed the whole context again each step.")
    ] = True,
    gate: Annotated[
        bool, typer.Option("--gate/--no-gate", help="Stop when the output cannot be right: zeros, NaN, endless loops.")
    ] = True,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    force: flags.Force = False,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Answer a question about pictures (or about nothing), token by token."""
    flags.use_simulator(backend, simulator)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    build = flags.build(backend, target, option, contexts, prefill, dtype)
    with open_pipeline(model, build, device, device_option, force=force) as (opened, pipeline, artifact):
        note(
            f"{artifact.manifest.model.get('name', artifact.path.name)} on {opened.info.description}{_label(opened, artifact)}"
        )
        with pipeline.chat(use_cache=kv_cache, **({} if system is None else {"system": system})) as chat:
            answer = chat.ask(
                question,
                list(image or ()),
                sampling=sampling,
                max_new_tokens=max_new_tokens,
                on_text=None if in_json_mode() else _stream,
                gate=Gate() if gate else None,
            )
        reality = reality_of(opened, artifact)
        identity = {"device": opened.info.id, "reality": reality.value, "target": artifact.manifest.target}
    if not in_json_mode():
        _stream("\n")
    emit({**_answer_facts(answer), **identity})
    note(_summary(answer) + label(reality))


def evaluate(
    model: flags.Model = None,
    dataset: Annotated[
        Path | None,
        typer.Option("--dataset", help="Directory with eval.jsonl, pictures, references. Default: bundled."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N questions.")] = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    kv_cache: Annotated[bool, typer.Option("--kv-cache/--no-kv-cache")] = True,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Ask every question of a dataset and compare with the truth and with the reference implementation."""
    flags.use_simulator(backend, simulator)
    build = flags.build(backend, target, option, contexts, prefill, dtype)
    with (
        open_pipeline(model, build, device, device_option) as (opened, pipeline, artifact),
        working() as work,
    ):
        work.step("asking")
        found = evaluate_pipeline(
            pipeline, dataset or bundled_package() / "eval", limit, work.report, use_cache=kv_cache
        )
        reality = reality_of(opened, artifact)
        identity = {"backend": backend, "target": artifact.manifest.target, "reality": reality.value}
    emit({**found.to_json(), **identity}, *_evaluation_tables(found, f"{backend} {artifact.manifest.target}", reality))


@contextmanager
def open_pipeline(
    model: Path | None,
    build: Build,
    device: str | None,
    device_options: list[str] | None,
    *,
    prepare: Callable[[Device], None] | None = None,
    force: bool = False,
) -> Iterator[tuple[Device, Pipeline, Artifact]]:
    """Resolve the model, open the device, load: the start of every command that answers questions.

    ``prepare`` is called with the open device before anything is allocated on it.
    """
    with open_device(flags.device_id(build.backend, device), options=flags.pairs(device_options)) as opened:
        if prepare is not None:
            prepare(opened)
        with working() as work:
            artifact = resolve_artifact(model, _for_device(build, opened), work)
            pipeline = _load(opened, artifact, work, force)
        with pipeline:
            yield opened, pipeline, artifact


def _for_device(build: Build, device: Device) -> Build:
    """Without ``--target``, compile for what the device runs by default."""
    return build if build.target else attrs.evolve(build, target=device.info.targets[0])


def _load(device: Device, artifact: Artifact, work: Work, force: bool) -> Pipeline:
    work.step("loading")
    return Pipeline.load(device, artifact, force=force)


def reality_of(device: Device, artifact: Artifact) -> Reality:
    """How real a result is: no more than the device, and no more than the compiler."""
    order = (Reality.REAL, Reality.EMULATED, Reality.SIMULATED)
    return max(device.info.reality, artifact.manifest.reality, key=order.index)


def _label(device: Device, artifact: Artifact) -> str:
    return label(reality_of(device, artifact))


def _stream(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _answer_facts(answer: Answer) -> dict[str, Any]:
    facts = attrs.asdict(answer)
    facts["timings"]["tokens_per_second"] = answer.timings.tokens_per_second
    return facts


def _summary(answer: Answer) -> str:
    times = answer.timings
    speed = f", {times.tokens_per_second:.1f} tokens/s" if times.tokens_per_second else ""
    return (
        f"{answer.prompt_tokens} prompt tokens ({answer.image_tokens} of pictures), {len(answer.ids)} new; "
        f"vision {times.vision:.3f} s, prefill {times.prefill:.3f} s, decode {times.decode:.3f} s{speed}; "
        f"stopped by {answer.stop_reason}"
    )


def _evaluation_tables(found: Evaluation, where: str, reality: Reality) -> list[Any]:
    rows: list[tuple[object, ...]] = [
        (task, r.questions, r.correct, f"{r.accuracy:.4f}") for task, r in found.per_task.items()
    ]
    rows.append(("all", found.questions, round(found.accuracy * found.questions), f"{found.accuracy:.4f}"))
    facts = [
        ("agreement with the reference", found.agreement_with_reference),
        (f"max logit error over {found.references} references", found.max_logit_error),
        ("logit SQNR, dB", found.logit_sqnr_db),
        ("max image feature error", found.max_feature_error),
        (f"seconds per picture{label(reality)}", found.seconds_per_picture),
    ]
    tables = [
        table(f"{where}{label(reality)}", ("task", "questions", "right", "accuracy"), rows),
        table("", ("figure", "value"), [(k, "-" if v is None else f"{v:.6g}") for k, v in facts]),
    ]
    if found.differences:
        columns = ("id", "reference says", "we say", "first differing step", "top-1/top-2 margin")
        tables.append(
            table(
                "Answers that differ", columns, [(d.id, d.expected, d.got, d.step, d.margin) for d in found.differences]
            )
        )
    return tables
