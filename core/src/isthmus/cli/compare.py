"""``isthmus compare``: the same inputs on several backends, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from ..api import open_device
from ..artifact import MANIFEST
from ..errors import InputError
from ..types import Tolerance
from . import flags
from .models import Build, bundled_package, resolve_artifact, resolve_graphs
from .output import Work, emit, label, table, working

if TYPE_CHECKING:
    from ..compare.cases import Case, Spoken
    from ..compare.judge import CaseVerdict, Recording, Verdict
    from ..compare.side import Side


class Look(StrEnum):
    """How far to look inside."""

    NONE = "none"
    AUTO = "auto"
    ALL = "all"


def compare(
    models: Annotated[
        list[Path] | None,
        typer.Argument(help="A model as for --model elsewhere, or two recordings: the reference's, then the other."),
    ] = None,
    backends: Annotated[
        str, typer.Option("--backends", "-b", help="Backends to judge, e.g. cpu,qnn_htp:0,ascend.")
    ] = "cpu",
    reference: Annotated[str, typer.Option("--reference", help="Device to judge by, e.g. cpu:reference.")] = "cpu",
    reference_model: Annotated[
        Path | None, typer.Option("--reference-model", help="What the reference runs; default: the same model.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", "-t", help="BACKEND=TARGET; default: what the device runs.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="BACKEND.KEY=VALUE for that backend's compiler.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", help=".npz of INPUT or ENTRY/INPUT arrays, or a recording.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="Directory of pictures, or one, to ask about.")
    ] = None,
    random: Annotated[int | None, typer.Option("--random", metavar="SEED", help="Random inputs.")] = None,
    question: Annotated[str, typer.Option("--question", "-q")] = "What is in the picture?",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Length of the answers.")] = 24,
    taps: Annotated[Look, typer.Option("--taps", help="Inner tensors to compare.")] = Look.AUTO,
    tolerances: Annotated[
        Path | None, typer.Option("--tolerances", help='JSON: {"BACKEND": {"rtol": 0.01, "atol": 0.002}}.')
    ] = None,
    sqnr: Annotated[
        float | None, typer.Option("--sqnr", help="dB below which an inner tensor is wrong; default: from rtol.")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write one self-contained HTML file.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Run only, and write a recording for another machine to judge.")
    ] = None,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Run the same inputs on several backends and say where they part. Exit code 1 if one misses its tolerance."""
    from ..compare import storage

    limits = _tolerances(tolerances)
    if models and len(models) == 2 and all(storage.is_recording(m) for m in models):
        want, got = (storage.load(m) for m in models)
        _finish(want, [(want, _judged(want, got, limits, sqnr))], report)
        return
    if models and len(models) > 1:
        raise InputError(f"{len(models)} models", fix="give one model, or two recordings made with --record")
    names = backends.split(",")
    for name in names:
        flags.use_simulator(name.partition(":")[0], simulator)
    builder = _Builder(flags.pairs(target), flags.pairs(option), flags.build("", None, None, contexts, prefill, dtype))
    if record and len(names) > 1:
        raise InputError(f"--record takes one backend, not {len(names)}")
    used = {name.partition(":")[0] for name in (*names, reference)}
    if stray := [k for k in (*builder.targets, *builder.options) if k.partition(".")[0] not in used]:
        raise InputError(f"{stray[0]!r} names none of the backends {', '.join(sorted(used))}")
    model = models[0] if models else None
    with working() as work, ExitStack() as stack:
        work.step("opening")
        judge_side = stack.enter_context(
            builder.side(names[0] if record else reference, reference_model or model, work)
        )
        cases, spoken = _cases(judge_side, inputs, images, random, question, max_new_tokens, work)
        want = _record(judge_side, cases, spoken, limits, work)
        if record:
            _save(judge_side, want, record, taps)
            return
        judged = []
        for name in names:
            with builder.side(name, model, work) as subject:
                said = _ask_again(subject, spoken, images, max_new_tokens, work)
                got = _record(subject, cases, said, limits, work)
                judged.append(_compared(judge_side, subject, want, got, taps, sqnr, work))
    _finish(want, judged, report)


@attrs.frozen
class _Builder:
    """Opens sides as the flags say."""

    targets: dict[str, object]
    options: dict[str, object]
    shape: Build

    def side(self, name: str, model: Path | None, work: Work) -> Side:
        """``model`` on device ``name``, compiled and loaded."""
        from ..compare.side import Side

        backend = name.partition(":")[0]
        device = open_device(name)
        with ExitStack() as stack:
            stack.enter_context(device)
            target = str(self.targets.get(backend, device.info.targets[0]))
            prefix = f"{backend}."
            options = {k.removeprefix(prefix): v for k, v in self.options.items() if k.startswith(prefix)}
            build = attrs.evolve(self.shape, backend=backend, target=target, options=options)
            artifact = resolve_artifact(model, build, work)
            compiled = model is not None and (model / MANIFEST).is_file()
            graphs = None if compiled else resolve_graphs(model, build, work)
            side = Side(device, artifact, graphs)
            stack.pop_all()
        return side


def _cases(
    side: Side, inputs: Path | None, images: Path | None, random: int | None, question: str, tokens: int, work: Work
) -> tuple[list[Case], Spoken | None]:
    from ..compare import cases, storage
    from ..models.description import ModelDescription

    if sum(x is not None for x in (inputs, images, random)) > 1:
        raise InputError("several kinds of inputs", fix="give one of --inputs, --images and --random")
    entries, data = side.artifact.entries, side.artifact.manifest.model
    if inputs is not None and storage.is_recording(inputs):
        return [call.case for call in storage.load(inputs).calls], None
    if inputs is not None:
        return cases.from_npz(inputs, entries), None
    model = ModelDescription.from_json(data) if data else None
    if images is not None and model is None:
        raise InputError("the model has no description to ask it about pictures", fix="give --inputs or --random")
    if random is not None or model is None:
        return cases.at_random(entries, model, random or 0), None
    work.step(f"asking on {side.label}")
    found: list[Case] = []
    spoken: Spoken | None = None
    for picture in _pictures(images) if model.image else [None]:
        made, said = cases.captured(side.program, question, picture, tokens, picture.name if picture else "text")
        found, spoken = found + made, spoken or said
    return found, spoken


def _pictures(images: Path | None) -> list[Path]:
    if images is None:
        return sorted((bundled_package() / "eval" / "images").glob("caption_*.png"))[:1]
    kinds = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}
    found = [images] if images.is_file() else sorted(f for f in images.glob("*") if f.suffix.lower() in kinds)
    if not found:
        raise InputError(f"{images} holds no picture")
    return found


def _ask_again(side: Side, spoken: Spoken | None, images: Path | None, tokens: int, work: Work) -> Spoken | None:
    """The first question of the reference, on another side."""
    from ..compare.cases import captured

    if spoken is None:
        return None
    work.step(f"asking on {side.label}")
    picture = _pictures(images)[0] if "vision" in side.artifact.entries else None
    return captured(side.program, spoken.question, picture, tokens, "")[1]


def _record(side: Side, cases: Sequence[Case], spoken: Spoken | None, limits: Any, work: Work) -> Recording:
    from ..compare.run import record

    return _limited(record(side, cases, spoken, work.step), limits)


def _limited(recording: Recording, limits: dict[str, Tolerance]) -> Recording:
    backend = str(recording.identity.get("backend"))
    return attrs.evolve(recording, tolerance=limits.get(backend, recording.tolerance))


def _line(recording: Recording, sqnr: float | None) -> float:
    from ..compare.metrics import line_db

    return line_db(recording.tolerance) if sqnr is None else sqnr


def _judged(want: Recording, got: Recording, limits: dict[str, Tolerance], sqnr: float | None) -> Verdict:
    from ..compare.judge import judge

    got = _limited(got, limits)
    return judge(want, got, _line(got, sqnr))


def _compared(
    reference: Side, subject: Side, want: Recording, got: Recording, taps: Look, sqnr: float | None, work: Work
) -> tuple[Recording, Verdict]:
    from ..compare.run import Taps
    from ..compare.run import compare as run

    verdict, seen, _ = run(reference, subject, want, got, _line(got, sqnr), Taps(taps.value), work.step)
    return seen, verdict


def _save(side: Side, recording: Recording, out: Path, taps: Look) -> None:
    from ..compare import storage
    from ..compare.run import Taps, tap_all

    recording = tap_all(side, recording, Taps(taps.value))
    storage.save(recording, out)
    count = sum(len(c.taps) for c in recording.calls)
    emit(
        {"recording": str(out), "calls": len(recording.calls), "taps": count, "identity": dict(recording.identity)},
        f"{out}: {len(recording.calls)} calls, {count} inner tensors, on {recording.identity['device']}",
    )


def _tolerances(path: Path | None) -> dict[str, Tolerance]:
    """``InputError`` unless the file maps backends to tolerances."""
    from .._json import DAMAGE, explain, read_json, strict_converter

    if path is None:
        return {}
    try:
        found: dict[str, Tolerance] = strict_converter().structure(read_json(path), dict[str, Tolerance])
    except (OSError, *DAMAGE) as error:
        raise InputError(f"{path} holds no tolerances: {explain(error)}") from error
    return found


def _finish(want: Recording, judged: list[tuple[Recording, Verdict]], report: Path | None) -> None:
    """Print, write the report, and leave with the exit code."""
    verdicts = [verdict for _, verdict in judged]
    if report is not None:
        from ..compare.report import write

        partial = report.with_name(f".{report.name}.part")
        try:
            partial.write_text(write(want, verdicts), "utf-8")
            partial.replace(report)
        except OSError as error:
            raise InputError(f"cannot write {report}: {error}") from error
    passed = all(v.passed for v in verdicts)
    emit(
        {"passed": passed, "reference": dict(want.identity), "verdicts": [v.to_json() for v in verdicts]},
        *(line for v in verdicts for line in _lines(want, v)),
    )
    if not passed:
        raise typer.Exit(1)


def _lines(want: Recording, verdict: Verdict) -> list[Any]:
    from ..types import Reality

    who = verdict.subject
    title = f"{who['device']} {who['target']}{label(Reality(who['reality']))} against {want.identity['device']}"
    rows = [row for case in verdict.cases for row in _rows(case)]
    columns = ("case", "output", "max abs", "limit", "rel. L2", "cosine", "SQNR dB", "verdict")
    lines: list[Any] = [table(title, columns, rows)]
    for case in verdict.cases:
        lines += _case_lines(case)
    if text := verdict.text:
        where = "the same" if text.step is None else f"differ from token {text.step} on"
        lines.append(f"answers {where}: {text.reference!r} / {text.subject!r}")
        if text.reference_margin is not None:
            lines.append(f"  margins there: {text.reference_margin:.4g} (reference), {text.subject_margin:.4g}")
        lines.append(f"  KL {text.logits.kl:.3g}, top-1 {text.logits.top1:.2%}, top-5 {text.logits.top5:.2%}")
    return lines


def _rows(case: CaseVerdict) -> list[tuple[object, ...]]:
    """Caches of keys and values are one row: the worst."""
    groups: dict[str, list[Any]] = {}
    for name, f in case.outputs.items():
        groups.setdefault("keys and values" if name.startswith("new_") else name, []).append(f)
    rows: list[tuple[object, ...]] = []
    for name, found in groups.items():
        f = max(found, key=lambda f: f.max_abs / f.limit if f.limit else f.max_abs)
        numbers = (f.max_abs, f.limit, f.relative_l2, f.cosine, f.sqnr_db)
        verdict = "ok" if all(g.within for g in found) else "MISS"
        rows.append((case.case, name, *(f"{n:.4g}" for n in numbers), verdict))
    return rows


def _case_lines(case: CaseVerdict) -> list[str]:
    lines = []
    if first := case.first:
        got, want = first.figures.got, first.figures.want
        lines.append(
            f"{case.case}: first divergence at node {first.tap.node} ({first.tap.op}), tensor {first.tap.name}"
        )
        lines.append(f"  SQNR {first.figures.sqnr_db:.1f} dB; cause: {first.cause}")
        lines += [
            f"  {who}: {r.low} to {r.high}, {r.nan} NaN, {r.infinite} infinite, {r.saturated} saturated of {r.size}"
            for who, r in (("here", got), ("reference", want))
        ]
    if not case.steadiness.repeats:
        lines.append(f"{case.case}: run 2 differs from run 1: nondeterministic, or part of an output is not written")
    elif not case.steadiness.forgets:
        lines.append(f"{case.case}: the result depends on the call before: a stale buffer or state")
    return lines + [f"{case.case}: {note}" for note in case.notes]
