"""``isthmus size``, ``isthmus inspect`` and ``isthmus run``: what an artifact needs, is, and computes."""

from __future__ import annotations

import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import numpy as np
import typer

from ..api import open_device
from ..artifact import MANIFEST, Artifact, manifest_as_json
from ..errors import InputError
from ..graphset import FILE as GRAPHSET_FILE
from ..registry import registry
from ..types import DType, EntrySpec
from . import flags
from .build import artifact_lines
from .models import Build, resolve_artifact
from .output import emit, human, label, table, working

if TYPE_CHECKING:
    from ..graph.inspect import SetSummary


def size(
    model: flags.ModelArgument = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Say what a model needs before it is loaded: weights, workspace, I/O."""
    flags.use_simulator(backend, simulator)
    with working() as work:
        artifact = resolve_artifact(model, Build(backend, target, flags.pairs(option)), work)
    with open_device(flags.device_id(backend, device), options=flags.pairs(device_option)) as opened:
        need, have = opened.memory_requirements(artifact), opened.memory_info()
        reality = opened.info.reality
    rows = [(name, human(need.workspace.get(name)), human(need.io.get(name))) for name in artifact.entries]
    fits = have.free is None or need.own_load <= have.free
    emit(
        {
            **attrs.asdict(need),
            "peak_workspace": need.peak_workspace,
            "device": attrs.asdict(have),
            "reality": reality.value,
            "fits": fits,
        },
        table(f"{artifact.path.name} on {backend}{label(reality)}", ("entry", "workspace", "I/O"), rows),
        f"weights {human(need.weights)}; workspace {human(need.peak_workspace)}{'' if need.exact else ' (lower bound)'}",
        f"the runtime allocates {human(need.own_load)} itself, {human(need.caller_load)} with caller-owned memory",
        f"device memory free: {human(have.free)} of {human(have.total)}",
        *(f"note: {n}" for n in need.notes),
    )
    if not fits:
        raise typer.Exit(1)


def inspect(
    path: Annotated[Path, typer.Argument(help="Artifact, graph set, .onnx, or a backend's own file (.bin, .om).")],
    json: flags.Json = False,
) -> None:
    """Describe a file or directory without loading it on a device."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if (path / MANIFEST).is_file():
        artifact = Artifact.open(path)
        files = {name: inspect_file(path / name) for name in artifact.manifest.files}
        emit(
            {**manifest_as_json(artifact.manifest), "contents": {k: v for k, v in files.items() if v}},
            *artifact_lines(artifact),
        )
    elif (path / GRAPHSET_FILE).is_file() or path.suffix == ".onnx":
        from ..graph.inspect import inspect as inspect_graphs  # the graph toolchain takes a second to import

        summary = inspect_graphs(path)
        emit(attrs.asdict(summary), *_graph_tables(summary))
    elif (facts := inspect_file(path) or {}) and path.is_file():
        emit(facts, table(str(path), ("fact", "value"), list(facts.items())))
    else:
        raise InputError(
            f"{path} is none of: artifact, graph set, .onnx file, or a file format of an installed backend",
            fix="isthmus backends",
        )


def inspect_file(path: Path) -> dict[str, Any] | None:
    """What an installed backend can say of a file of its own format; ``None`` if none knows it."""
    if not path.is_file():
        return None
    problems = registry().problems()
    for name in registry().names():
        if name not in problems and (facts := registry().backend(name).inspect(path)) is not None:
            return {"format_of": name, **facts}
    return None


def run(
    model: Annotated[Path, typer.Argument(help="Artifact, graph set or .onnx file.")],
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    entry: Annotated[str | None, typer.Option("--entry", help="Entry to run; default: the only one.")] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz with one array per input.")] = None,
    random: Annotated[
        int | None, typer.Option("--random", min=0, metavar="SEED", help="Random inputs instead.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help=".npz to write the outputs to.")] = None,
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    force: flags.Force = False,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Run one entry once and describe its outputs."""
    flags.use_simulator(backend, simulator)
    if (inputs is None) == (random is None):
        raise InputError(
            "no inputs" if inputs is None else "two kinds of inputs", fix="give --inputs FILE.npz or --random SEED"
        )
    with working() as work:
        artifact = resolve_artifact(model, Build(backend, target, flags.pairs(option)), work)
        name = entry or _only_entry(artifact)
        with open_device(flags.device_id(backend, device), options=flags.pairs(device_option)) as opened:
            work.step("loading")
            with opened.load(artifact, force=force) as program:
                spec = program.entry(name)
                feeds = _load_inputs(inputs) if inputs else random_inputs(spec, random or 0)
                work.step("running")
                start = time.perf_counter()
                results = program.run(name, feeds)
                seconds = time.perf_counter() - start
            reality = opened.info.reality
    if output:
        _save_outputs(output, results)
    rows = [_describe_array(k, v) for k, v in results.items()]
    emit(
        {
            "entry": name,
            "reality": reality.value,
            "seconds": seconds,
            "outputs": [dict(zip(("name", "dtype", "shape", "min", "max", "mean", "finite"), r)) for r in rows],
        },
        table(
            f"{name} on {backend}{label(reality)}", ("output", "dtype", "shape", "min", "max", "mean", "finite"), rows
        ),
    )


def random_inputs(spec: EntrySpec, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs for a smoke run: normal floats, small non-negative integers, in the order of the entry."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in spec.inputs:
        if tensor.dtype in (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16):
            feeds[tensor.name] = rng.standard_normal(tensor.shape).astype(tensor.dtype.numpy)
        elif tensor.dtype in (DType.BFLOAT16, DType.INT4, DType.UINT4):
            raise InputError(f"cannot make random {tensor}", fix="give --inputs FILE.npz with its raw bytes as uint8")
        else:
            feeds[tensor.name] = rng.integers(0, 2, tensor.shape).astype(tensor.dtype.numpy)
    return feeds


def _only_entry(artifact: Artifact) -> str:
    if len(artifact.entries) != 1:
        raise InputError(
            f"{artifact.path.name} has the entries {', '.join(artifact.entries)}", fix="choose one with --entry"
        )
    return next(iter(artifact.entries))


def _load_inputs(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if path.exists() and not path.is_file():  # a pipe would wait for ever
        raise InputError(f"{path} is not a file", fix="write one with numpy.savez")
    try:
        with path.open("rb") as file:  # numpy leaves a file it opened itself open when the archive is damaged
            stored = np.load(file, allow_pickle=False)
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is not a readable .npz: {error}", fix="write it with numpy.savez") from error


def _save_outputs(path: Path, results: dict[str, np.ndarray[Any, Any]]) -> None:
    partial = path.with_name(f".{path.name}.part")
    try:
        with partial.open("wb") as file:
            np.savez(file, **results)  # type: ignore[arg-type]  # the stub has no **kwargs of arrays
        partial.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _describe_array(name: str, array: np.ndarray[Any, Any]) -> tuple[object, ...]:
    values = array.astype(np.float64)
    finite = bool(np.isfinite(values).all())
    stats = [float(f"{f(values):.6g}") for f in (np.min, np.max, np.mean)] if array.size else [None] * 3
    return (name, str(array.dtype), list(array.shape), *stats, finite)


def _graph_tables(summary: SetSummary) -> list[Any]:
    return [
        table(
            f"{entry}: {graph.file}, dialect {summary.dialect}",
            ("fact", "value"),
            [
                ("inputs", ", ".join(f"{v.name}: {v.dtype}{list(v.shape)}" for v in graph.inputs)),
                ("outputs", ", ".join(f"{v.name}: {v.dtype}{list(v.shape)}" for v in graph.outputs)),
                ("opsets", ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in graph.opsets.items())),
                ("operators", ", ".join(f"{k} {v}" for k, v in graph.operators.items())),
                (
                    "weights",
                    f"{human(graph.weight_bytes)} ({', '.join(f'{k} {human(v)}' for k, v in graph.weights.items())})",
                ),
            ],
        )
        for entry, graph in summary.graphs.items()
    ]
