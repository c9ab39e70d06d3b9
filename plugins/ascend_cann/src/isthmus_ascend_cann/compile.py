"""Compiles a graph set with ATC: checks first, one ``.om`` per graph, then what the ``.om`` says is compared with the graph."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
from isthmus.errors import CompileError, IsthmusError
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import EntrySpec, Reality, TensorSpec, Tolerance

from . import atc, soc
from .atc import Atc
from .atc_checks import check_options, gear_specs, input_shapes
from .atc_options import CompileOptions, Precision
from .gears import GearKind, Gears
from .om import Om, Tensor, read_om, weights_sha256
from .plan import EXTERNAL, EntryPlan, ModelPlan, ProgramPlan, entry_plan
from .soc import Soc
from .source import Source, check_operators, read_source

_TOLERANCES = {
    Precision.MUST_KEEP_ORIGIN_DTYPE: Tolerance(rtol=1e-3, atol=1e-4),
    Precision.ALLOW_FP32_TO_FP16: Tolerance(rtol=1e-2, atol=1e-3),
}
_HALF = Tolerance(rtol=2e-2, atol=2e-3)
"""For everything that may run in a half precision throughout."""


@attrs.frozen
class Compiled:
    """One ``.om`` and the entries it gives."""

    name: str
    model: ModelPlan
    entries: Mapping[str, EntryPlan]
    specs: Mapping[str, EntrySpec]


def compile_graphs(
    source: GraphSet, target: str, out: Path, options: CompileOptions, *, simulator: bool
) -> CompileReport:
    """Compile every graph of ``source`` for ``target`` into ``out``. See ``isthmus.spi.Backend.compile``."""
    chip = soc.find(target)
    sources = [read_source(entry, source.path / file) for entry, file in source.graphs.items()]
    check_options(options, chip, sources)
    for graph in sources:
        check_operators(graph)
    tool = atc.find(simulator)
    names = file_names([graph.entry for graph in sources])
    compiled = [_compile_one(graph, names[graph.entry], chip, out, options, tool) for graph in sources]
    plan = ProgramPlan(
        soc_version=chip.version,
        models={c.name: c.model for c in compiled},
        entries={name: entry for c in compiled for name, entry in c.entries.items()},
        external={f.name: f.stat().st_size for f in sorted((out / EXTERNAL).glob("*"))},
    )
    plan.write(out)
    specs = {name: spec for c in compiled for name, spec in c.specs.items()}
    memory = plan.requirements(specs)
    return CompileReport(
        entries=specs,
        memory=memory,
        toolchain={"atc": tool.version},
        tolerance=_TOLERANCES.get(options.precision, _HALF),
        reality=Reality.SIMULATED if tool.simulated else Reality.REAL,
        notes=(*options.notes(), *_notes(plan, chip, memory.own_load)),
    )


def file_names(entries: Sequence[str]) -> dict[str, str]:
    """A file name for each entry, without suffix: the entry's own where a file may be called so, and all different."""
    names: dict[str, str] = {}
    for number, entry in enumerate(entries):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", entry)[:100]
        names[entry] = name if name and name not in names.values() else f"{name}_{number}"
    return names


def _notes(plan: ProgramPlan, chip: Soc, need: int) -> Iterable[str]:
    inside = [m.weight_size for m in plan.models.values() if m.weight_size]
    if not plan.external and len(inside) > 1 and len({m.weights_sha256 for m in plan.models.values()}) == len(inside):
        yield (
            f"{len(inside)} models hold {sum(inside)} bytes of weights of their own; "
            "external_weight=files keeps equal weights once"
        )
    if chip.memory_gib is not None and need > chip.memory_gib * 2**30:
        yield f"loading needs {need} bytes; a {chip.name} has {chip.memory_gib:g} GiB"


def _compile_one(source: Source, name: str, chip: Soc, out: Path, options: CompileOptions, tool: Atc) -> Compiled:
    gears, shapes = options.gears, input_shapes(options, chip, source)
    log = out / f"{name}.atc.log"
    flags = [
        f"--model={source.path.absolute()}",
        "--framework=5",
        f"--soc_version={chip.version}",
        *_shape_flags(source, shapes, gears, options),
        *options.flags(),
    ]
    with tempfile.TemporaryDirectory(prefix="isthmus-atc-") as scratch:
        directory = Path(scratch)
        try:
            what = f"entry {source.entry!r}"
            output = f"--output={directory / name}"
            limits = atc.limits(options)
            need = 2 * source.weight_bytes
            atc.run(tool, [*flags, output], directory=directory, log=log, limits=limits, what=what, need=need)
            om = _collect(directory, name, out) or _raise(atc.no_output(log, tool, what))
        except CompileError as error:
            raise _keep_log(error, log) from error
        external = _collect_external(directory, out)
    return _describe(source, om, gears, shapes, external, options)


def _shape_flags(
    source: Source, shapes: Sequence[Sequence[int]], gears: Gears | None, options: CompileOptions
) -> Iterable[str]:
    if options.input_shape is not None:
        spelled = (f"{v.name}:{','.join(map(str, s))}" for v, s in zip(source.inputs, shapes))
        yield f"--input_shape={';'.join(spelled)}"
    if gears is not None:
        yield f"--{gears.kind.value}={gears.flag()}"
        if options.input_format is None:
            yield f"--input_format={'NCHW' if gears.kind is GearKind.IMAGE else 'ND'}"


def _raise(error: IsthmusError) -> Path:
    raise error


def _collect(directory: Path, name: str, out: Path) -> Path | None:
    """Move the ``.om`` into ``out``. ATC adds ``_linux_x86_64`` to the name of some models."""
    found = sorted(directory.glob(f"{name}*.om"))
    return Path(shutil.move(found[0], out / f"{name}.om")) if found else None


def _collect_external(directory: Path, out: Path) -> tuple[str, ...]:
    """Move external weights into ``out/weight``; equal names of several graphs have equal content, by their hash."""
    names = []
    for file in sorted((directory / EXTERNAL).glob("*")):
        if file.suffix == ".json":
            continue
        names.append(file.name)
        target = out / EXTERNAL / file.name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            shutil.move(file, target)
        elif target.stat().st_size != file.stat().st_size:
            raise CompileError(f"two graphs have external weights {file.name} of different size")
    return tuple(names)


def _keep_log(error: CompileError, log: Path) -> CompileError:
    """Copy the log out of the directory that is about to be removed with the artifact that did not come to be."""
    if not log.exists():
        return error
    kept = Path(tempfile.mkdtemp(prefix="isthmus-atc-log-")) / log.name
    shutil.copyfile(log, kept)
    return CompileError(
        error.what.replace(str(log), str(kept)),
        why=error.why,
        fix=error.fix and error.fix.replace(str(log), str(kept)),
        status=error.status,
    )


def _describe(
    source: Source,
    file: Path,
    gears: Gears | None,
    shapes: Sequence[Sequence[int]],
    external: tuple[str, ...],
    options: CompileOptions,
) -> Compiled:
    om = read_om(file)
    if om.range_shape:
        raise CompileError(f"{file.name} has range shapes; entries have fixed ones", fix="give gears or fixed shapes")
    expected = {
        entry: EntrySpec(inputs, source.outputs_of(inputs))
        for entry, inputs in gear_specs(source, shapes, gears).items()
    }
    specs = {entry: _confirmed(source, om, spec, gears is not None, options) for entry, spec in expected.items()}
    chosen = (
        {entry: _gear_values(gears, gear, specs[entry]) for entry, gear in zip(specs, gears.values)} if gears else {}
    )
    model = ModelPlan(
        work_size=om.work_size,
        weight_size=om.weight_size,
        weights_sha256=weights_sha256(file, om),
        device_code_size=om.device_code_size,
        external=external,
        gear_kind=gears.kind if gears else None,
    )
    entries = {entry: entry_plan(file.name, spec, chosen.get(entry)) for entry, spec in specs.items()}
    return Compiled(file.name, model, entries, specs)


def _gear_values(gears: Gears, gear: tuple[int, ...], spec: EntrySpec) -> tuple[int, ...]:
    """What AscendCL is told: for dims gears, all dimensions of all inputs in order."""
    return tuple(d for t in spec.inputs for d in t.shape) if gears.kind is GearKind.DIMS else gear


def _confirmed(source: Source, om: Om, spec: EntrySpec, gears: bool, options: CompileOptions) -> EntrySpec:
    """The entry as compiled: names and shapes from the graph, checked against the ``.om``; element types from the ``.om``."""
    inputs = _matched(source, "input", spec.inputs, om.inputs, gears, aipp=options.insert_op_conf is not None)
    outputs = _matched(source, "output", spec.outputs, om.outputs, gears, aipp=False)
    return EntrySpec(inputs, outputs)


def _matched(
    source: Source, kind: str, want: Sequence[TensorSpec], have: Sequence[Tensor], gears: bool, *, aipp: bool
) -> tuple[TensorSpec, ...]:
    if len(want) != len(have):
        raise CompileError(
            f"entry {source.entry!r} has {len(want)} {kind}s, its .om {len(have)}: {[t.name for t in have]}",
            why="ATC dropped an unused one, or added one",
            fix=f"remove unused {kind}s from the graph",
        )
    return tuple(_match(source, kind, w, h, gears, aipp) for w, h in zip(want, have))


def _match(source: Source, kind: str, want: TensorSpec, have: Tensor, gears: bool, aipp: bool) -> TensorSpec:
    """Outputs are named ``node:index:tensor`` by newer ATCs and ``node:index`` by older ones, so order decides there."""
    if kind == "input" and have.name != want.name:
        raise CompileError(f"entry {source.entry!r}: input {want.name!r} is {have.name!r} in the .om")
    if aipp and have.shape != want.shape:
        return attrs.evolve(have.spec(), name=want.name)
    if gears:
        return attrs.evolve(want, dtype=attrs.evolve(have, shape=(), shape_v2=()).spec().dtype)
    found = have.spec()
    if found.shape != want.shape:
        raise CompileError(
            f"entry {source.entry!r}: {kind} {want} has shape {list(found.shape)} in the .om",
            why="ATC changed the layout or the order",
            fix="report it with the log",
        )
    return attrs.evolve(want, dtype=found.dtype)
