"""``isthmus export`` and ``isthmus compile``: checkpoint -> graph set -> artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
import typer

from .. import api
from ..artifact import Artifact, manifest_as_json
from ..errors import InputError, UnavailableError
from ..graphset import GraphSet
from ..memory.sweep import sweep_memory as sweep
from ..registry import registry
from ..types import Reality
from . import flags
from .models import Build, bundled_package, resolve_graphs
from .output import emit, human, label, note, table, working


def export(
    out: flags.Out,
    checkpoint: Annotated[
        Path | None, typer.Argument(help="Checkpoint directory or .gguf; default: the bundled one.")
    ] = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    json: flags.Json = False,
) -> None:
    """Build ONNX graphs with fixed shapes from a checkpoint, spelled for a backend."""
    from ..models.export import export as export_graphs  # the graph toolchain takes a second to import

    plugin = registry().backend(backend)
    dialect = plugin.dialect(target or next(iter(plugin.targets()), ""))
    with working() as work:
        graphs = export_graphs(
            checkpoint or bundled_package() / "checkpoint",
            out,
            dialect=dialect,
            dtype=dtype,
            contexts=flags.numbers(contexts, "--contexts"),
            prefill=flags.numbers(prefill, "--prefill"),
            progress=lambda _, done, total: work.report(done, total),
        )
    emit(
        {"path": str(graphs.path), "entries": dict(graphs.graphs), "dialect": graphs.dialect, "assets": graphs.assets},
        table(f"Graph set {graphs.path}", ("entry", "file"), list(graphs.graphs.items())),
    )


def compile(
    model: flags.ModelArgument = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Directory to create.")] = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    option: flags.CompileOption = None,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    sweep_memory: Annotated[
        bool, typer.Option("--sweep-memory", help="Keep nothing; tabulate what the compiler's memory options cost.")
    ] = False,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Compile a model for a backend and target, ahead of time."""
    if (out is None) != sweep_memory:
        raise InputError("compile needs one of --out DIR and --sweep-memory")
    flags.use_simulator(backend, simulator)
    build = flags.build(backend, target, option, contexts, prefill, dtype)
    with working() as work:
        graphs = resolve_graphs(model, build, work)
        work.step(f"compiling for {backend}")
        if out is None:
            _sweep(build, graphs)
            return
        artifact = api.compile(backend, graphs, out, target=target, options=build.options)
    emit({"path": str(artifact.path), **manifest_as_json(artifact.manifest)}, *artifact_lines(artifact))


def _sweep(build: Build, graphs: GraphSet) -> None:
    """The table of ``--sweep-memory``; results are compared where the backend has a device here."""
    try:
        device, reality = (found := registry().backend(build.backend).devices()[0]).id, found.reality
    except UnavailableError as error:
        note(f"results are not compared: {error.what}")
        device, reality = None, Reality.REAL
    rows = sweep(build.backend, graphs, target=build.target, options=build.options, device=device)
    cells = [(r.configuration, r.entry, human(r.work_size), human(r.weight_size), r.difference) for r in rows]
    columns = ("configuration", "entry", "workspace", "weights", "difference")
    emit(
        {"configurations": [attrs.asdict(r) for r in rows], "device": device, "reality": reality.value},
        table(f"{build.backend}{label(reality)}", columns, cells),
    )


def artifact_lines(artifact: Artifact) -> list[str]:
    """An artifact in a few lines for people."""
    manifest = artifact.manifest
    lines = [
        f"{artifact.path}: {human(artifact.nbytes)} for {manifest.backend} {manifest.target}{label(manifest.reality)}",
        f"  toolchain: {', '.join(f'{k} {v}' for k, v in manifest.toolchain.items())}; dialect {manifest.dialect}",
    ]
    for name, spec in manifest.entries.items():
        lines.append(f"  {name}: {', '.join(map(str, spec.inputs))} -> {', '.join(map(str, spec.outputs))}"[:400])
    lines += [f"  {node} runs on {where}" for node, where in manifest.placement.items()]
    return lines + [f"  note: {n}" for n in manifest.notes]
