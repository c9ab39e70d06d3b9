"""Inputs, outputs and gears as the om states them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import onnx
from onnx import TensorProto

from ..om_writer import IoBlock, IoTensor
from .failure import AtcError, bad_value
from .graph import ACL_DTYPES, Shape, dtype_of, element_size, graph_inputs, shape_of
from .shapes import Gears, Shapes

GEAR_INPUT = "ascend_mbatch_shape_data"
_NCHW, _NHWC, _ND = 0, 1, 2
_INT64, _INT64_SIZE = 9, 8
Infer = Callable[[Mapping[str, Shape]], onnx.GraphProto]


def types(flags: Mapping[str, str], inferred: onnx.GraphProto) -> dict[str, int]:
    """Element types of inputs and outputs after ``--input_fp16_nodes`` and ``--output_type``."""
    found = {v.name: dtype_of(v) for v in [*graph_inputs(inferred), *inferred.output]}
    for name in filter(None, flags["input_fp16_nodes"].split(";")):
        if name not in {i.name for i in graph_inputs(inferred)}:
            raise AtcError(
                "E10016", "Config_Error_Node", f"Opname [{name}] in [--input_fp16_nodes] is not in the model."
            )
        found[name] = TensorProto.FLOAT16
    wanted = flags["output_type"]
    if wanted and wanted not in ("FP32", "FP16"):
        raise bad_value("output_type", wanted, "FP32 and FP16 are simulated.")
    for output in inferred.output:
        if wanted and found[output.name] in (TensorProto.FLOAT, TensorProto.FLOAT16):
            found[output.name] = TensorProto.FLOAT16 if wanted == "FP16" else TensorProto.FLOAT
    return found


def describe(
    flags: Mapping[str, str],
    given: Shapes,
    inferred: onnx.GraphProto,
    dtypes: Mapping[str, int],
    pictures: Mapping[str, Shape],
    infer: Infer,
) -> IoBlock:
    """The block for a graph whose shapes, in the largest gear, are ``inferred``.

    ``pictures`` names the inputs that AIPP prepares, with the shapes they have for the graph.
    """
    names = _output_names(inferred)
    inputs = [_input(v, flags["input_format"], given, dtypes[v.name], pictures) for v in graph_inputs(inferred)]
    outputs = [_tensor(names[v.name], v, shape_of(v), dtypes[v.name], _ND) for v in inferred.output]
    unknown = [o for o in outputs if min(o.dims, default=0) < 0]
    if unknown and not given.range_shape:
        raise AtcError(
            "E16004", "Infer_Shape", f"The shape of output [{unknown[0].name}] is not known: {unknown[0].dims}"
        )
    if given.gears is None:
        return IoBlock(inputs, outputs)
    values = given.gears.values
    inputs.append(IoTensor(GEAR_INPUT, _INT64_SIZE * len(values[0]), _ND, _INT64, (len(values[0]),)))
    return IoBlock(inputs, outputs, given.gears.kind, values, _gear_outputs(given, given.gears, infer), given.order)


def _input(
    value: onnx.ValueInfoProto, layout: str, given: Shapes, dtype: int, pictures: Mapping[str, Shape]
) -> IoTensor:
    shape = given.inputs[value.name]
    if value.name in pictures:
        picture = _tensor(value.name, value, shape, dtype, _NHWC)
        return attrs.evolve(picture, dims_v2=tuple(pictures[value.name]))
    form = {"": _NCHW, "NCHW": _NCHW, "NHWC": _NHWC}.get(layout, _ND) if len(shape) == 4 else _ND
    ranges = given.ranges.get(value.name, ()) if given.range_shape else ()
    return _tensor(value.name, value, shape, dtype, form, ranges)


def _tensor(
    name: str,
    value: onnx.ValueInfoProto,
    shape: Shape,
    dtype: int,
    form: int,
    ranges: tuple[tuple[int, int], ...] = (),
) -> IoTensor:
    """``shape`` is what is stated, ``value`` has the largest gear's: that is what the size is of."""
    if dtype not in ACL_DTYPES:
        text = TensorProto.DataType.Name(dtype)
        raise AtcError("E10055", "Not_Supported", f"[{name}] is {text}, which is not simulated as input or output")
    size = shape_of(value).elements * element_size(dtype)
    return IoTensor(name, size, form, ACL_DTYPES[dtype][0], tuple(shape), ranges)


def _output_names(graph: onnx.GraphProto) -> dict[str, str]:
    """``node:index:tensor``, as the real compiler names outputs of ONNX models."""
    names = {i.name: f"{i.name}:0:{i.name}" for i in [*graph.input, *graph.output]}
    for position, node in enumerate(graph.node):
        for index, tensor in enumerate(node.output):
            names[tensor] = f"{node.name or f'{node.op_type}_{position}'}:{index}:{tensor}"
    return names


def _gear_outputs(given: Shapes, gears: Gears, infer: Infer) -> list[str]:
    """``gear,output,d0,d1,...`` for every output in every gear."""
    lines = []
    for index, gear in enumerate(gears.values):
        for position, value in enumerate(infer(given.in_gear(gear)).output):
            lines.append(",".join(map(str, (index, position, *shape_of(value)))))
    return lines
