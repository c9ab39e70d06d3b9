"""Compiling for target ``host``: graphs optimised once, off line, over one shared weights file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import onnxruntime as ort
from isthmus.errors import CompileError
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import EntrySpec, MemoryRequirements, Tolerance
from onnx import TensorProto

from .figures import Figures
from .graph import damage_told, entry_file, entry_spec, io_bytes, read_model
from .options import CompileOptions, Optimization, Prepack
from .session import failures_as, open_session, session_options
from .weights import LINE, WeightsFile, fold_casts, graphs, move_weights
from .workspace import Workspace, workspaces

WIDENED = "float16: weights and results of operators without a float16 CPU kernel are float32 inside the graph"


def compile_host(source: GraphSet, out: Path, options: CompileOptions) -> CompileReport:
    """Write ``ENTRY.onnx`` per entry, ``weights.data`` and ``cpu.json`` into ``out``."""
    models: dict[str, onnx.ModelProto] = {}
    with WeightsFile(out) as weights:
        for entry, file in source.graphs.items():
            models[entry] = _compile_entry(source.path / file, out, entry, options.optimization, weights)
    entries = {name: entry_spec(model, name) for name, model in models.items()}
    figures = Figures.of(models)
    figures.write(out)
    scratch = workspaces(out, entries, {name: f.always_packed for name, f in figures.entries.items()})
    return CompileReport(
        entries=entries,
        memory=_requirements(entries, weights.size, scratch, figures),
        toolchain={"onnxruntime": ort.__version__, "onnx": onnx.__version__},
        tolerance=_tolerance(models.values()),
        notes=(WIDENED,) if any(_has_halves(m) for m in models.values()) else (),
    )


def _compile_entry(
    graph: Path, out: Path, entry: str, optimization: Optimization, weights: WeightsFile
) -> onnx.ModelProto:
    file = out / entry_file(entry)
    with damage_told(graph):
        _check_computed(entry_spec(read_model(graph), entry), entry)  # before any work is done
        model = _optimize(graph, file, entry, optimization)
        move_weights(model, graph, weights, widen=fold_casts(model))
        onnx.save(model, file)
    return model


def _check_computed(spec: EntrySpec, entry: str) -> None:
    """ONNX Runtime leaves the buffer of an output that is an input as it was, and reports success."""
    for name in {t.name for t in spec.inputs} & {t.name for t in spec.outputs}:
        raise CompileError(f"output {name!r} of entry {entry!r} is an input; nothing computes it", fix="leave it out")


def _optimize(graph: Path, out: Path, entry: str, optimization: Optimization) -> onnx.ModelProto:
    """The graph as ONNX Runtime optimises it; its external weights still lie beside ``graph``, unread."""
    options = session_options(optimization)
    options.optimized_model_filepath = str(out)
    with failures_as(
        CompileError,
        f"entry {entry!r} ({graph.name}) does not run on ONNX Runtime {ort.__version__}",
        call="InferenceSession",
        fix="replace the node it names, or compile for --target reference",
    ):
        open_session(graph, options)
    return read_model(out)


def _requirements(
    entries: Mapping[str, EntrySpec], weights: int, scratch: Mapping[str, Workspace], figures: Figures
) -> MemoryRequirements:
    base = MemoryRequirements(
        weights=weights,
        workspace={name: w.size for name, w in scratch.items()},
        io={name: io_bytes(spec) for name, spec in entries.items()},
        exact=all(w.certain for w in scratch.values()),
        own_load=0,
        caller_load=0,
        alignment=LINE,
        notes=(
            *figures.explain(weights),
            *(f"workspace of {name}: {w.how}; each entry keeps its own" for name, w in scratch.items()),
            "no caller workspace: ONNX Runtime offers Python no way to give a session its scratch",
            "the code of ONNX Runtime itself is not counted",
        ),
    )
    return figures.requirements(base, Prepack.AUTO)


def _has_halves(model: onnx.ModelProto) -> bool:
    values = (*model.graph.input, *model.graph.output)
    return any(v.type.tensor_type.elem_type == TensorProto.FLOAT16 for v in values) or any(
        a.name == "to" and a.i == TensorProto.FLOAT16 for g in graphs(model.graph) for n in g.node for a in n.attribute
    )


def _tolerance(models: Iterable[onnx.ModelProto]) -> Tolerance:
    """By the coarsest arithmetic in any graph: 8-bit activations, float16, else float32."""
    nodes = [node for model in models for graph in graphs(model.graph) for node in graph.node]
    if any(_quantizes(node) for node in nodes):
        return Tolerance(rtol=2e-2, atol=1e-2)
    if any(_has_halves(model) for model in models):
        return Tolerance(rtol=2e-3, atol=1e-3)
    return Tolerance(rtol=2e-5, atol=1e-5)


def _quantizes(node: onnx.NodeProto) -> bool:
    """Whether a node rounds values to 8 bits, where one step more or less is right either way."""
    int8 = any(a.name == "accuracy_level" and a.i == 4 for a in node.attribute)
    return int8 or "Quantize" in node.op_type or node.op_type.startswith("QLinear")
