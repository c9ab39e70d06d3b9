"""``isthmus conformance`` and ``isthmus bench``: is it right, and how fast is it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import attrs
import typer

from ..pipeline import Answer
from ..program import Program
from . import flags
from .answer import open_pipeline, reality_of
from .memory import one_question, soak_tables
from .models import Build, bundled_package
from .output import emit, label, table, working


def conformance(
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    artifacts: Annotated[
        Path | None,
        typer.Option("--artifacts", help="Model cases compiled elsewhere: python -m isthmus.conformance build"),
    ] = None,
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Run the conformance suite on a backend. Exit code 1 if it breaks a promise."""
    from ..conformance import run  # pytest is an extra; only this command needs it

    flags.use_simulator(backend, simulator)
    found = run(
        backend,
        device=device,
        target=target,
        artifacts=artifacts,
        options=flags.pairs(option),
        device_options=flags.pairs(device_option),
    )
    emit(found.to_json(), *found.lines())
    raise typer.Exit(found.exit_code)


def bench(
    model: flags.Model = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    image: Annotated[Path | None, typer.Option("--image", "-i", help="Picture; default: a bundled one.")] = None,
    question: Annotated[str, typer.Option("--question", "-q")] = "What is in the picture?",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Answers to time after one that warms up.")] = 5,
    soak: Annotated[
        int | None, typer.Option("--soak", min=10, help="Instead: ask so many times and see whether memory grows.")
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also where the device spends the time, per entry.")
    ] = False,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Time loading, vision, prefill and decode on this machine. With --soak: exit code 1 if memory leaks."""
    flags.use_simulator(backend, simulator)
    build = flags.build(backend, target, option, contexts, prefill, dtype)
    if soak is not None:
        _soak(model, build, device, device_option, image, question, soak)
        return
    picture = image or next(iter(sorted((bundled_package() / "eval" / "images").glob("caption_*.png"))))
    start = time.perf_counter()
    with open_pipeline(model, build, device, device_option) as (opened, pipeline, artifact), working() as work:
        ready = time.perf_counter() - start
        images = [picture] if pipeline.model.image else []
        answers = []
        with pipeline.chat() as chat:
            for done in range(repeat + 1):
                work.step("answering")
                work.report(done, repeat + 1)
                chat.clear()
                answers.append(chat.ask(question, images))
        events = _profile(pipeline.program) if profile else {}
        reality = reality_of(opened, artifact)
    figures = {"ready_seconds": ready, **_figures(answers[1:])}
    title = f"{backend} {artifact.manifest.target}{label(reality)}"
    tables = [table(title, ("figure", "median"), [(k, f"{v:.6g}") for k, v in figures.items() if v is not None])]
    for entry, found in events.items():
        rows = [(e["name"], e["value"], e["unit"]) for e in found[:20]]
        tables.append(table(f"{entry} (largest 20 of {len(found)})", ("event", "value", "unit"), rows))
    emit({"reality": reality.value, "repeat": repeat, **figures, "profile": events}, *tables)


def _soak(
    model: Path | None,
    build: Build,
    device: str | None,
    device_option: list[str] | None,
    image: Path | None,
    question: str,
    count: int,
) -> None:
    """Ask in one new conversation after another; then close everything and see what is left."""
    from ..memory.soak import soak

    with open_pipeline(model, build, device, device_option) as (opened, pipeline, artifact), working() as work:
        work.step("asking")
        ask = one_question(pipeline, image, question)
        found = soak(opened, lambda: ask(4, lambda: None), count, work.report)
        pipeline.close()
        found = attrs.evolve(found, left=len(opened.memory.records()))
        reality = reality_of(opened, artifact)
    title = f"{build.backend} {artifact.manifest.target}{label(reality)}"
    emit({**found.to_json(), "reality": reality.value}, *soak_tables(found, title))
    if found.leaking:
        raise typer.Exit(1)


def _figures(answers: list[Answer]) -> dict[str, float | None]:
    times = [a.timings for a in answers]
    speeds = [t.tokens_per_second for t in times if t.tokens_per_second]
    return {
        "tiling_seconds": median(t.tiling for t in times),
        "vision_seconds": median(t.vision for t in times),
        "prefill_seconds": median(t.prefill for t in times),
        "prefill_tokens_per_second": median(t.prefill_tokens / t.prefill for t in times),
        "first_token_seconds": median(t.tiling + t.vision + t.prefill for t in times),
        "decode_tokens_per_second": median(speeds) if speeds else None,
    }


def _profile(program: Program) -> dict[str, list[dict[str, Any]]]:
    """Events of one execute of each entry on zeros, the largest first."""
    found = {}
    for name, spec in program.entries.items():
        with ExitStack() as stack:
            inputs, outputs = (
                {t.name: stack.enter_context(program.device.allocate(t.nbytes)) for t in side}
                for side in (spec.inputs, spec.outputs)
            )
            for tensor in spec.inputs:
                inputs[tensor.name].write(bytes(tensor.nbytes))
            events = stack.enter_context(program.bind(name, inputs, outputs)).profile()
        found[name] = sorted((attrs.asdict(e) for e in events), key=lambda e: -e["value"])
    return found
