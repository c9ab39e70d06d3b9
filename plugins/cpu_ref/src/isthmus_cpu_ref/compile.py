"""Compiling for target ``host``: graphs optimised once, off line, over one shared weights file."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import attrs
import onnx
import onnxruntime as ort
from isthmus.errors import CompileError
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import DType, EntrySpec, MemoryRequirements, Tolerance

from .graph import entry_spec, read_model
from .session import failures_as, open_session, session_options
from .weights import WeightsFile, move_weights


class Optimization(enum.Enum):
    """Graph optimisations of ONNX Runtime. Levels that depend on the compiling machine's CPU are not offered."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"

    @property
    def level(self) -> ort.GraphOptimizationLevel:
        """ONNX Runtime's own name for it."""
        levels = ort.GraphOptimizationLevel
        return {
            "none": levels.ORT_DISABLE_ALL,
            "basic": levels.ORT_ENABLE_BASIC,
            "extended": levels.ORT_ENABLE_EXTENDED,
        }[self.value]


@attrs.frozen
class CompileOptions:
    """Options of ``isthmus compile --backend cpu``."""

    optimization: Optimization = attrs.field(
        default=Optimization.EXTENDED, metadata={"help": "graph optimisations applied now, for target host"}
    )


def compile_host(source: GraphSet, out: Path, options: CompileOptions) -> CompileReport:
    """Write ``ENTRY.onnx`` per entry and ``weights.data`` into ``out``."""
    entries: dict[str, EntrySpec] = {}
    with WeightsFile(out) as weights:
        for entry, file in source.graphs.items():
            graph = source.path / file
            entry_spec(read_model(graph), entry)  # a free dimension is said before any work is done
            model = _optimize(graph, out / entry_file(entry), options.optimization, entry)
            entries[entry] = entry_spec(model, entry)
            move_weights(model, graph, weights)
            onnx.save(model, out / entry_file(entry))
    return CompileReport(
        entries=entries,
        memory=_memory(entries, weights.size),
        toolchain={"onnxruntime": ort.__version__, "onnx": onnx.__version__},
        tolerance=_tolerance(entries),
    )


def entry_file(entry: str) -> str:
    """File of an entry's graph. ``CompileError`` for a name no file should have."""
    if not re.fullmatch(r"\w[\w.-]*", entry):
        raise CompileError(f"entry {entry!r} cannot be a file name", fix="use letters, digits, '_', '-' and '.'")
    return f"{entry}.onnx"


def _optimize(graph: Path, out: Path, optimization: Optimization, entry: str) -> onnx.ModelProto:
    """The graph as ONNX Runtime optimises it; its external weights still lie beside ``graph``, untouched."""
    options = session_options(optimization.level, threads=1)
    options.optimized_model_filepath = str(out)
    options.add_session_config_entry("session.disable_prepacking", "1")
    with failures_as(
        CompileError,
        f"entry {entry!r} ({graph.name}) does not run on ONNX Runtime {ort.__version__}",
        call="InferenceSession",
        fix="replace the node it names, or try: --target reference",
    ):
        open_session(graph, options)
    return read_model(out)


def _memory(entries: dict[str, EntrySpec], weights: int) -> MemoryRequirements:
    io = {name: sum(t.nbytes for t in (*spec.inputs, *spec.outputs)) for name, spec in entries.items()}
    return MemoryRequirements(
        weights=weights,
        workspace=dict.fromkeys(entries, 0),
        io=io,
        exact=False,
        own_load=weights,
        caller_load=0,
        alignment=4096,
    )


def _tolerance(entries: dict[str, EntrySpec]) -> Tolerance:
    halves = any(t.dtype is DType.FLOAT16 for spec in entries.values() for t in (*spec.inputs, *spec.outputs))
    return Tolerance(rtol=2e-3, atol=1e-3) if halves else Tolerance(rtol=1e-5, atol=1e-5)
