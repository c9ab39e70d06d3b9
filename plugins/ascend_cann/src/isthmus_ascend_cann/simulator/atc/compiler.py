"""From an ONNX file and flags to an `.om`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import attrs
import onnx
from onnx import TensorProto

from ..om_writer import IoBlock, IoTensor, OmModel, Weights, write_om
from . import memory, operators, precision, shapes, soc, weights
from .failure import AtcError, bad_value
from .graph import ACL_DTYPES, Shape, dtype_of, element_size, graph_inputs, set_shape, shape_of

GEAR_INPUT = "ascend_mbatch_shape_data"
_NCHW, _NHWC, _ND = 0, 1, 2
_INT64 = 9


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
    if flags["insert_op_conf"]:
        raise AtcError("E10055", "Not_Supported", "[--insert_op_conf]: AIPP is not simulated")
    source = Path(flags["model"])
    model = _load(source)
    operators.check(model)
    given = shapes.read(flags, model.graph)
    if given.ranges and given.gears is None and family in soc.NO_RANGES:
        raise AtcError("EZ3003", "Not_Supported", "Dynamic shape is not supported on this chip!")
    job = _Job(flags, model, given, precision.plan(flags, family), source.parent)
    return job.run()


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


class _Job:
    """One compilation."""

    def __init__(
        self,
        flags: Mapping[str, str],
        model: onnx.ModelProto,
        given: shapes.Shapes,
        plan: precision.Plan | None,
        directory: Path,
    ) -> None:
        self._flags = flags
        self._model = model
        self._graph = model.graph
        self._given = given
        self._plan = plan
        self._directory = directory
        self._ranges = bool(given.ranges) and given.gears is None
        self._out = self._output()

    def run(self) -> Result:
        """Compile and write."""
        inferred = self._infer(self._largest())
        dtypes = {v.name: dtype_of(v) for v in _values(inferred)}
        dtypes.update({i.name: int(i.data_type) for i in self._graph.initializer})
        nodes = list(self._graph.node)
        io = self._io(inferred)
        lowered = self._lower(dtypes)
        sizes = self._sizes(inferred, lowered)
        planned = memory.plan(
            nodes,
            [i.name for i in graph_inputs(inferred)],
            [o.name for o in inferred.output],
            sizes,
            reuse=self._flags["disable_reuse_memory"] == "0",
            in_place=self._flags["buffer_optimize"] == "l2_optimize",
        )
        store = self._store_weights(lowered)
        model = OmModel(
            name=self._out.stem,
            soc=self._flags["soc_version"],
            operators=len(nodes),
            work_size=0 if self._ranges else planned.work,
            zero_copy_size=0 if self._ranges else planned.zero_copy,
            io=io,
            weights=Weights(store.partition.size, store.partition.pieces()),
            program=self._model.SerializeToString(),
            external=store.files(),
            range_shape=self._ranges,
        )
        self._out.parent.mkdir(parents=True, exist_ok=True)
        write_om(model, self._out)
        return Result(self._out, model.work_size, model.weights.size)

    def _output(self) -> Path:
        """Range-shape models carry the host in their name."""
        suffix = ".om"
        if self._ranges:
            suffix = f"_{self._flags['host_env_os'] or 'linux'}_{self._flags['host_env_cpu'] or 'x86_64'}.om"
        return Path(self._flags["output"] + suffix)

    # ---- shapes ----

    def _largest(self) -> dict[str, Shape]:
        if self._given.gears is None:
            return dict(self._given.inputs)
        return self._given.in_gear(max(self._given.gears.values, key=prod))

    def _infer(self, inputs: Mapping[str, Shape]) -> onnx.GraphProto:
        """The graph with all shapes for these inputs."""
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        for value in graph_inputs(copy.graph):
            set_shape(value, inputs[value.name])
        for output in copy.graph.output:
            output.type.tensor_type.ClearField("shape")
        del copy.graph.value_info[:]
        try:
            return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True).graph
        except onnx.shape_inference.InferenceError as error:
            raise AtcError("E16004", "Infer_Shape", f"Shape inference failed: {error}") from error

    def _io(self, inferred: onnx.GraphProto) -> IoBlock:
        for value in graph_inputs(self._graph):
            set_shape(value, self._given.inputs[value.name])
        inputs = [self._input(v) for v in graph_inputs(inferred)]
        producers = _producers(self._graph)
        outputs = [self._output_tensor(v, producers) for v in inferred.output]
        gears = self._given.gears
        if gears is None:
            return IoBlock(inputs, outputs)
        inputs.append(IoTensor(GEAR_INPUT, 8 * len(gears.values[0]), _ND, _INT64, (len(gears.values[0]),)))
        return IoBlock(inputs, outputs, gears.kind, gears.values, self._gear_outputs(gears), self._given.order)

    def _input(self, value: onnx.ValueInfoProto) -> IoTensor:
        shape = self._given.inputs[value.name]
        size = shape_of(value).elements * element_size(dtype_of(value))
        layout = self._flags["input_format"] or "NCHW"
        ranges = self._given.ranges.get(value.name, ()) if self._ranges else ()
        form = {"NCHW": _NCHW, "NHWC": _NHWC}.get(layout, _ND) if len(shape) == 4 else _ND
        return IoTensor(value.name, size, form, _acl(value), tuple(shape), ranges)

    def _output_tensor(self, value: onnx.ValueInfoProto, producers: Mapping[str, str]) -> IoTensor:
        shape = shape_of(value)
        if shape.open and not self._ranges:
            raise AtcError("E16004", "Infer_Shape", f"The shape of output [{value.name}] is not known: {tuple(shape)}")
        size = shape.elements * element_size(dtype_of(value))
        return IoTensor(producers[value.name], size, _ND, _acl(value), tuple(shape))

    def _gear_outputs(self, gears: shapes.Gears) -> list[str]:
        lines = []
        for index, gear in enumerate(gears.values):
            inferred = self._infer(self._given.in_gear(gear))
            for position, value in enumerate(inferred.output):
                lines.append(",".join(map(str, (index, position, *shape_of(value)))))
        return lines

    # ---- precision and memory ----

    def _lower(self, dtypes: Mapping[str, int]) -> precision.Lowering | None:
        if self._plan is None:
            return None
        lowered = precision.Lowering(self._graph, self._plan, dtypes)
        lowered.run()
        return lowered

    def _sizes(self, inferred: onnx.GraphProto, lowered: precision.Lowering | None) -> dict[str, int]:
        narrow = lowered.narrow if lowered is not None else set()
        io = {v.name for v in [*inferred.input, *inferred.output]}
        sizes = {}
        for value in _values(inferred):
            width = 2 if value.name in narrow and value.name not in io else element_size(dtype_of(value))
            sizes[value.name] = shape_of(value).elements * width
        return sizes

    # ---- weights ----

    def _store_weights(self, lowered: precision.Lowering | None) -> weights.Store:
        """Replace the initializers by references into what the om, or files beside it, will hold."""
        store = weights.Store(self._directory, self._out, self._flags["external_weight"])
        originals = list(self._graph.initializer)
        del self._graph.initializer[:]
        for tensor in originals:
            narrow = lowered is not None and tensor.name in lowered.narrow_weights
            if narrow and self._plan is not None:
                self._graph.initializer.append(store.add(tensor, self._plan.narrow, f"{tensor.name}__stored"))
            if not narrow or (lowered is not None and tensor.name in lowered.wide_weights):
                self._graph.initializer.append(store.add(tensor, tensor.data_type, tensor.name))
        return store


def _values(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.value_info, *graph.output]


def _acl(value: onnx.ValueInfoProto) -> int:
    dtype = dtype_of(value)
    if dtype not in ACL_DTYPES:
        name = TensorProto.DataType.Name(dtype)
        raise AtcError(
            "E10055", "Not_Supported", f"[{value.name}] is {name}, which is not simulated as input or output"
        )
    return ACL_DTYPES[dtype][0]


def _producers(graph: onnx.GraphProto) -> dict[str, str]:
    """Names that outputs get: ``node:index:tensor``."""
    names = {}
    for position, node in enumerate(graph.node):
        for index, tensor in enumerate(node.output):
            names[tensor] = f"{node.name or f'{node.op_type}_{position}'}:{index}:{tensor}"
    return names
