"""Target ``reference`` and device ``cpu:reference``: the graphs as they are, evaluated by ``onnx.reference`` in float64.

Slow, and the truth the other backends are measured against. ONNX Runtime has no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
import onnx
from isthmus.artifact import Artifact
from isthmus.errors import ExecutionError, IncompatibleError, OutOfMemoryError
from isthmus.graphset import GraphSet
from isthmus.spi import CallerMemory, CompileReport, Region
from isthmus.types import Capability, EntrySpec, MemoryRequirements, Tolerance

from .evaluate import FAILURES, Evaluation, last_uses
from .graph import ONNX_TYPES, damage_told, entry_file, entry_spec, io_bytes, read_model
from .memory import HostDriver, host_memory, view
from .weights import WeightsFile, graphs, move_weights, tensor_bytes
from .widen import NARROW, NOT_DOUBLE, to_array, to_bytes, widened


@attrs.frozen
class CompiledGraph:
    """One entry as it was written, and the most its results take at once, in bytes."""

    model: onnx.ModelProto
    spec: EntrySpec
    scratch: int


def compile_reference(source: GraphSet, out: Path) -> CompileReport:
    """Write each graph unchanged, over one ``weights.data``. ``CompileError`` names an operator that is not ONNX's."""
    compiled: dict[str, CompiledGraph] = {}
    with WeightsFile(out) as weights:
        for entry, file in source.graphs.items():
            with damage_told(source.path / file):
                compiled[entry] = _compile_entry(source.path / file, out, entry, weights)
    entries = {name: graph.spec for name, graph in compiled.items()}
    halves = any(t.dtype.bits == 16 for spec in entries.values() for t in spec.outputs)
    return CompileReport(
        entries=entries,
        memory=_requirements(compiled, weights.size),
        toolchain={"onnx": onnx.__version__, "numpy": np.__version__},
        tolerance=Tolerance(rtol=1e-3, atol=1e-6) if halves else Tolerance(rtol=1e-6, atol=1e-7),
        placement={f"{e}/{node}": "float32" for e, graph in compiled.items() for node in _not_double(graph.model)},
        notes=("float tensors are float64 inside, and are rounded to their own type as outputs",),
    )


def _compile_entry(graph: Path, out: Path, entry: str, weights: WeightsFile) -> CompiledGraph:
    model = read_model(graph)
    spec = entry_spec(model, entry)
    move_weights(model, graph, weights)
    onnx.save(model, out / entry_file(entry))
    Evaluation(model, {}, entry)  # refuses what it cannot evaluate
    return CompiledGraph(model, spec, _peak_bytes(model))


@attrs.define(eq=False)
class BoundEvaluation:
    """An entry with its buffers fixed."""

    entry: str
    evaluation: Evaluation
    spec: EntrySpec
    inputs: dict[int, Region]
    outputs: dict[int, Region]


ReferenceProgram = dict[str, tuple[Evaluation, EntrySpec]]


class ReferenceDriver(HostDriver):
    """``onnx.reference`` over host memory."""

    capabilities = frozenset({Capability.HUGE_PAGES, Capability.HOST_VISIBLE, Capability.ALIASED_IO})

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return artifact.manifest.memory

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> ReferenceProgram:
        return {name: (_load(artifact, name, spec), spec) for name, spec in artifact.entries.items()}

    def unload(self, program: ReferenceProgram) -> None:
        program.clear()

    def bind(
        self, program: ReferenceProgram, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]
    ) -> BoundEvaluation:
        return BoundEvaluation(entry, *program[entry], dict(enumerate(inputs)), dict(enumerate(outputs)))

    def rebind(self, binding: BoundEvaluation, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        binding.inputs.update(inputs)
        binding.outputs.update(outputs)

    def unbind(self, binding: BoundEvaluation) -> None:
        """Nothing to undo: a binding is a note of where its tensors are."""

    def execute(self, binding: BoundEvaluation) -> None:
        specs = binding.spec.inputs
        arrays = {
            s.name: widened(to_array(view(binding.inputs[i]), s.shape, ONNX_TYPES[s.dtype]))
            for i, s in enumerate(specs)
        }
        what = f"entry {binding.entry!r} cannot be evaluated"
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are results here
                results = binding.evaluation.run(arrays)
        except MemoryError as error:
            raise OutOfMemoryError(f"{what}: {error}; {host_memory().free} bytes are free") from error
        except FAILURES as error:
            raise ExecutionError(f"{what}: {type(error).__name__}: {error}") from error
        for i, (spec, result) in enumerate(zip(binding.spec.outputs, results)):
            if np.shape(result) != spec.shape:
                raise ExecutionError(f"{what}: output {spec} came out as {list(np.shape(result))}")
            view(binding.outputs[i])[:] = to_bytes(result, ONNX_TYPES[spec.dtype])

    def close(self) -> None:
        """Nothing of its own to release."""


def _load(artifact: Artifact, entry: str, spec: EntrySpec) -> Evaluation:
    path = artifact.file(entry_file(entry))
    model = read_model(path)
    if entry_spec(model, entry) != spec:
        raise IncompatibleError(f"{path} is not the entry {entry!r} its manifest states", fix="compile it again")
    weights = {
        t.name: widened(to_array(tensor_bytes(t, path).data, tuple(t.dims), t.data_type))
        for t in model.graph.initializer
        if t.external_data
    }
    return Evaluation(model, weights, entry)


def _not_double(model: onnx.ModelProto) -> list[str]:
    """Nodes that onnx.reference computes in float32."""
    nodes = (node for graph in graphs(model.graph) for node in graph.node)
    return [node.name or node.output[0] for node in nodes if node.op_type in NOT_DOUBLE]


def _requirements(compiled: Mapping[str, CompiledGraph], weights: int) -> MemoryRequirements:
    wide = sum(_wide_bytes(t.dims, t.data_type) for graph in compiled.values() for t in graph.model.graph.initializer)
    load = wide + sum(graph.scratch for graph in compiled.values())
    return MemoryRequirements(
        weights=weights,
        workspace={name: graph.scratch for name, graph in compiled.items()},
        io={name: io_bytes(graph.spec) for name, graph in compiled.items()},
        exact=False,
        own_load=load,
        caller_load=load,
        notes=(
            f"weights are copied as float64, per entry: {wide} bytes",
            "workspace: results of nodes in float64, first to last use; what numpy takes within a node is not counted",
            "no caller weights, no caller workspace: numpy computes in memory of its own",
        ),
    )


def _peak_bytes(model: onnx.ModelProto) -> int:
    """The most that results take at once, as far as their shapes can be inferred."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*inferred.value_info, *inferred.output)
    sizes = {
        v.name: _wide_bytes([d.dim_value for d in v.type.tensor_type.shape.dim], v.type.tensor_type.elem_type)
        for v in values
    }
    live = peak = 0
    for node, done in zip(model.graph.node, last_uses(model.graph)):
        live += sum(sizes.get(name, 0) for name in node.output)
        peak = max(peak, live)
        live -= sum(sizes.get(name, 0) for name in done)
    return peak


def _wide_bytes(dims: Iterable[int], data_type: int) -> int:
    size = 8 if data_type in NARROW else onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize
    return math.prod(dims) * int(size)
