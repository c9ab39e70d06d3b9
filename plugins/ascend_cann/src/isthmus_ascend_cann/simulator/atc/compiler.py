"""From an ONNX file and flags to an `.om`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import attrs
import onnx

from ..om_writer import OmModel, Weights, write_om
from . import aipp, io_block, memory, operators, precision, shapes, soc, weights
from .failure import AtcError, bad_value
from .graph import Shape, dtype_of, element_size, graph_inputs, set_shape, shape_of
from .lowering import Lowering


@attrs.frozen
class Result:
    """What was written, for the log."""

    path: Path
    work: int
    weight: int


def compile_model(flags: Mapping[str, str]) -> Result:
    """Do what ``atc`` does with these flags."""
    family = soc.family(flags["soc_version"])
    if family is None:
        raise bad_value("soc_version", flags["soc_version"], "It is not a known SoC version.")
    source = Path(flags["model"])
    model = _load(source)
    operators.check(model)
    given = shapes.read(flags, model.graph)
    if given.range_shape and family in soc.NO_RANGES:
        raise AtcError("EZ3003", "Not_Supported", "Dynamic shape is not supported on this chip!")
    return _compile(flags, model, given, precision.plan(flags, family), source.parent)


def _load(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError as error:
        raise AtcError("E10001", "Config_Error_Invalid_Argument", f"[--model] [{path}] does not exist.") from error
    except Exception as error:  # the parser's own exception type is no part of onnx's API
        raise AtcError("E16001", "Parse_Model", f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node:
        raise AtcError("E16005", "Parse_Model", f"{path} has no operators")
    return model


def _compile(
    flags: Mapping[str, str], model: onnx.ModelProto, given: shapes.Shapes, plan: precision.Plan, directory: Path
) -> Result:
    graph, out = model.graph, _output(flags, given)
    given, pictures = aipp.insert(flags["insert_op_conf"], graph, given)
    inferred = _infer(model, _largest(given))
    io_types = io_block.types(flags, inferred)
    io = io_block.describe(flags, given, inferred, io_types, pictures, lambda inputs: _infer(model, inputs))
    for value in graph_inputs(graph):
        set_shape(value, given.inputs[value.name])
    lowering = _lower(graph, inferred, plan, io_types)
    planned = _plan_memory(flags, given, inferred, lowering.narrow)
    store = weights.Store(directory, out, flags["external_weight"])
    _store_weights(graph, store, lowering, plan.narrow)
    om = OmModel(
        name=out.stem,
        soc=flags["soc_version"],
        operators=len(inferred.node),
        work_size=planned.work,
        zero_copy_size=planned.zero_copy,
        io=io,
        weights=Weights(store.partition.size, store.partition.pieces()),
        program=model.SerializeToString(),
        external=store.files(),
        range_shape=given.range_shape,
    )
    _write(om, out)
    return Result(out, planned.work, store.partition.size)


def _write(om: OmModel, out: Path) -> None:
    """Whole, or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.part")
    try:
        write_om(om, unfinished)
        unfinished.rename(out)
    finally:
        unfinished.unlink(missing_ok=True)


def _output(flags: Mapping[str, str], given: shapes.Shapes) -> Path:
    """Range-shape models carry the host in their name."""
    host = f"_{flags['host_env_os'] or 'linux'}_{flags['host_env_cpu'] or 'x86_64'}" if given.range_shape else ""
    return Path(f"{flags['output']}{host}.om")


def _largest(given: shapes.Shapes) -> Mapping[str, Shape]:
    return given.inputs if given.gears is None else given.in_gear(max(given.gears.values, key=prod))


def _infer(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> onnx.GraphProto:
    """The graph with all types and shapes for these inputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in graph_inputs(copy.graph):
        set_shape(value, inputs[value.name])
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise AtcError("E16004", "Infer_Shape", f"Shape inference failed: {error}") from error


def _values(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.value_info, *graph.output]


def _lower(
    graph: onnx.GraphProto, inferred: onnx.GraphProto, plan: precision.Plan, io_types: Mapping[str, int]
) -> Lowering:
    dtypes = {v.name: dtype_of(v) for v in _values(inferred)}
    dtypes.update({i.name: int(i.data_type) for i in graph.initializer})
    lowering = Lowering(graph, plan, dtypes, io_types)
    lowering.run()
    return lowering


def _plan_memory(
    flags: Mapping[str, str], given: shapes.Shapes, inferred: onnx.GraphProto, narrow: set[str]
) -> memory.MemoryPlan:
    """Range-shape models get their workspace while they run, and state 0."""
    if given.range_shape:
        return memory.MemoryPlan(0, 0)
    io = {v.name for v in [*inferred.input, *inferred.output]}
    sizes = {
        v.name: shape_of(v).elements * (2 if v.name in narrow - io else element_size(dtype_of(v)))
        for v in _values(inferred)
    }
    return memory.plan(
        inferred.node,
        [i.name for i in graph_inputs(inferred)],
        [o.name for o in inferred.output],
        sizes,
        reuse=flags["disable_reuse_memory"] == "0",
        in_place=flags["buffer_optimize"] == "l2_optimize",
    )


def _store_weights(graph: onnx.GraphProto, store: weights.Store, lowering: Lowering, narrow: int) -> None:
    """Replace the initializers by references into what the om, or files beside it, will hold."""
    originals = list(graph.initializer)
    inputs = graph_inputs(graph)
    del graph.initializer[:], graph.input[:]
    graph.input.extend(inputs)  # files of IR version 3 list constants among them
    for tensor in originals:
        if tensor.name in lowering.narrow_weights:
            graph.initializer.append(store.add(tensor, narrow, f"{tensor.name}__stored"))
        if tensor.name in lowering.wide_weights or tensor.name in {o.name for o in graph.output}:
            graph.initializer.append(store.add(tensor, tensor.data_type, tensor.name))
