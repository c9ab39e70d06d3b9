"""Compiling a graph set for one Snapdragon: checks, a compiler process per binary, ``program.json``."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from isthmus.errors import CompileError, IncompatibleError, UnsupportedError
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import DType, EntrySpec, Tolerance

from . import ort_compiler, qairt, targets
from .binary import ContextBinary
from .built import Built, Compiler, Prepared
from .checks import match
from .io_dtype import apply_io_dtype
from .layout import BinaryRecord, ProgramRecord
from .onnx_graph import complete_external, entry_spec, read_model
from .options import CompileOptions, Precision, Toolchain, check_options
from .precheck import is_quantized, precheck
from .requirements import requirements
from .targets import Target
from .toolchain import require_ort

LOGGER = logging.getLogger("isthmus.qnn")

# |got - want| <= atol + rtol * max|want|. Float: of the ONNX backend tests that pass on the emulator in fp16, all are
# within 0.76 % of the output's range or 2e-3. Quantised: ViT and Llama blocks, 8 and 16 bits, against the same QDQ graph.
_FLOAT = Tolerance(rtol=1e-2, atol=2e-3)
_QUANTIZED = Tolerance(rtol=1e-1, atol=2e-3)
_BFLOAT16 = Tolerance(rtol=5e-2, atol=1e-2)  # eight times fewer steps than fp16; one MatMul: 0.4 % of the largest value


def compile_graphs(source: GraphSet, target: str, out: Path, options: CompileOptions) -> CompileReport:
    """Write one context binary per entry, or one for all that share weights, and ``program.json`` into ``out``.

    The binaries are the vendor's own for the chip, so the report says ``REAL`` wherever they were compiled; the device
    that runs them may be emulated. ``InputError``, ``UnsupportedError`` and most ``CompileError`` come before any
    vendor code runs.
    """
    chip = targets.parse(target)
    check_options(options, chip)
    groups = _groups(source, options)
    compiler = _compiler(options)
    prepared = {name: _prepare(source, name, chip, options) for name in source.graphs}
    built = []
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=out) as scratch:
        for number, group in enumerate(groups):
            LOGGER.info("compiling %s for %s", " and ".join(group), chip)
            directory = Path(scratch, str(number))
            directory.mkdir()
            built.append(compiler([prepared[name] for name in group], chip, directory, out, options))
    return _report(built, prepared, chip, out, target, options)


def _compiler(options: CompileOptions) -> Compiler:
    if options.toolchain is Toolchain.QAIRT:
        return qairt.find_sdk().build
    require_ort()
    return ort_compiler.build


def _groups(source: GraphSet, options: CompileOptions) -> list[tuple[str, ...]]:
    """Entries that go into one binary. ONNX Runtime puts several graphs into one only with weight sharing."""
    if not options.weight_sharing:
        return [(name,) for name in source.graphs]
    llm = [entry["name"] for entry in source.model.get("llm", ())] or list(source.graphs)
    sharing = tuple(name for name in source.graphs if name in llm)
    if len(sharing) < 2:
        raise UnsupportedError(
            f"weight_sharing needs two language-model entries; the graph set has {', '.join(sharing) or 'none'}"
        )
    return [*((name,) for name in source.graphs if name not in sharing), sharing]


def _prepare(source: GraphSet, name: str, chip: Target, options: CompileOptions) -> Prepared:
    path = source.path / source.graphs[name]
    model = read_model(path)
    entry_spec(model, name)  # a free dimension first: it is the most common reason
    precheck(model, name, chip, options.precision)
    complete_external(model, path.parent)
    apply_io_dtype(model, options.io_dtype)
    return Prepared(name, model, path.parent.resolve(), entry_spec(model, name))


def _report(
    built: Sequence[Built],
    prepared: Mapping[str, Prepared],
    chip: Target,
    out: Path,
    target: str,
    options: CompileOptions,
) -> CompileReport:
    binaries = {one.file: one.metadata for one in built}
    record = ProgramRecord(
        {one.file: BinaryRecord(one.graphs) for one in built},
        chip.soc,
        chip.arch,
        built[0].metadata.sdk.lstrip("v"),
        options.vtcm_mb,
    )
    entries = {name: _with_scales(entry.spec, name, built) for name, entry in prepared.items()}
    _check_binaries(record, binaries, entries, options)
    record.write(out)
    return CompileReport(
        entries=entries,
        memory=requirements(binaries, record, entries),
        toolchain={**built[0].toolchain, "qairt": record.sdk},
        tolerance=_tolerance(prepared, options),
        notes=(*(note for one in built for note in one.notes), *_notes(built, entries, chip, target)),
    )


def _tolerance(prepared: Mapping[str, Prepared], options: CompileOptions) -> Tolerance:
    quantized = options.calibration is not None or any(is_quantized(entry.model) for entry in prepared.values())
    return _QUANTIZED if quantized else _BFLOAT16 if options.precision is Precision.BF16 else _FLOAT


def _with_scales(spec: EntrySpec, entry: str, built: Sequence[Built]) -> EntrySpec:
    """The entry's spec with the scales the binary records for its inputs and outputs."""
    graph = next(g for one in built for g in one.metadata.graphs if one.graphs.get(g.name) == entry)
    scales = {tensor.name: tensor.quantization for tensor in (*graph.inputs, *graph.outputs)}
    return EntrySpec(
        tuple(attrs.evolve(t, quantization=scales.get(t.name)) for t in spec.inputs),
        tuple(attrs.evolve(t, quantization=scales.get(t.name)) for t in spec.outputs),
    )


def _check_binaries(
    record: ProgramRecord,
    binaries: Mapping[str, ContextBinary],
    entries: Mapping[str, EntrySpec],
    options: CompileOptions,
) -> None:
    """Check what the compiler wrote against what was asked, as ``load`` will."""
    try:
        match(record, binaries, entries)
    except IncompatibleError as error:
        raise CompileError(
            error.what,
            why="the optimiser dropped an input without effect, made an output constant, or changed a type",
            fix="remove such inputs and outputs from the graph",
        ) from error
    for file, binary in binaries.items():
        if (binary.soc, binary.arch) != (record.soc, record.arch):
            raise CompileError(f"{file} is for SoC {binary.soc} v{binary.arch}, not {record.soc} v{record.arch}")
        levels = {graph.optimization_level for graph in binary.graphs} - {None, options.optimization}
        if levels:
            raise CompileError(f"{file} is of optimisation level {levels}, {options.optimization} was asked for")


def _notes(built: Sequence[Built], entries: Mapping[str, EntrySpec], chip: Target, target: str) -> list[str]:
    notes = []
    if shared := sum(one.metadata.shared_weights for one in built):
        notes.append(
            f"{shared} bytes of weights are stored once for several entries; the x86 emulator cannot load them"
        )
    elif len(built) > 1:
        notes.append(
            "one binary per entry, each with its own weights; weight_sharing=true stores them once, for devices"
        )
    wide = [t.name for spec in entries.values() for t in spec.inputs if t.dtype is DType.INT64]
    if wide:
        notes.append(f"inputs {', '.join(sorted(set(wide)))} are int64, of which the HTP reads the low 32 bits")
    if target.strip().lower().startswith("v"):
        notes.append(
            f"compiled for {chip}; chips of its architecture with less than {chip.vtcm_mb} MiB VTCM may refuse it"
        )
    return notes
