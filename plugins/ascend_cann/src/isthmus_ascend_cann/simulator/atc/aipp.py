"""Static AIPP: the device takes uint8 pictures and prepares them itself.

`--insert_op_conf` is prototxt. Simulated: RGB888_U8, red-blue swap, crop, and normalisation, which is
``(pixel - mean - min) * var_reci`` per channel after the swap. The rest is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .failure import AtcError
from .graph import Shape, dtype_of, graph_inputs, set_shape
from .shapes import Shapes

_CHANNELS = 3
_KNOWN = frozenset(
    [
        *("aipp_mode", "related_input_rank", "related_input_name", "input_format", "csc_switch", "rbuv_swap_switch"),
        *("src_image_size_w", "src_image_size_h", "crop", "load_start_pos_w", "load_start_pos_h"),
        *("crop_size_w", "crop_size_h"),
        *(f"{kind}_chn_{c}" for kind in ("mean", "min", "var_reci") for c in range(_CHANNELS + 1)),
    ]
)


def insert(file: str, graph: onnx.GraphProto, given: Shapes) -> tuple[Shapes, dict[str, Shape]]:
    """Put the blocks of ``file`` in front of the graph.

    Returns the shapes that its inputs have now, and of those that became pictures the shapes that they had.
    """
    inputs, shapes, before = graph_inputs(graph), dict(given.inputs), {}
    for block in _blocks(file) if file else ():
        value = _related(block, inputs)
        before[value.name] = shapes[value.name]
        shapes[value.name] = _insert(block, graph, value, shapes[value.name])
    return attrs.evolve(given, inputs=shapes), before


def _refuse(text: str) -> AtcError:
    return AtcError("E10055", "Not_Supported", f"[--insert_op_conf]: {text} is not simulated")


def _wrong(text: str) -> AtcError:
    return AtcError("E10052", "Config_Error_AIPP", f"[--insert_op_conf]: {text}")


def _blocks(file: str) -> list[dict[str, str]]:
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"{file}: {error}") from error
    bodies = re.findall(r"aipp_op\s*\{([^}]*)\}", re.sub(r"#.*", "", text))
    if not bodies:
        raise _wrong(f"{file} has no aipp_op")
    blocks = [dict(re.findall(r"(\w+)\s*:\s*\"?([\w.+-]+)\"?", body)) for body in bodies]
    for block in blocks:
        _check(block)
    return blocks


def _check(block: Mapping[str, str]) -> None:
    unknown = sorted(set(block) - _KNOWN)
    if unknown:
        raise _refuse(unknown[0])
    if block.get("aipp_mode") != "static":
        raise _refuse(f"aipp_mode {block.get('aipp_mode')}")
    if block.get("input_format") != "RGB888_U8":
        raise _refuse(f"input_format {block.get('input_format')}")
    if block.get("csc_switch", "false") != "false":
        raise _refuse("csc_switch")


def _related(block: Mapping[str, str], inputs: list[onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    names = [i.name for i in inputs]
    name = block.get("related_input_name")
    rank = names.index(name) if name in names else int(block.get("related_input_rank", 0))
    if (name is not None and name not in names) or not 0 <= rank < len(inputs):
        raise _wrong(f"the model has no input {name or rank}")
    return inputs[rank]


def _insert(block: Mapping[str, str], graph: onnx.GraphProto, value: onnx.ValueInfoProto, shape: Shape) -> Shape:
    if len(shape) != 4 or shape[1] != _CHANNELS or min(shape[1:]) < 0 or dtype_of(value) != TensorProto.FLOAT:
        raise _wrong(f"input {value.name} is not a float [N,{_CHANNELS},H,W] with a fixed height and width")
    height, width = shape[2:]
    picture = Shape(
        (shape[0], int(block.get("src_image_size_h", height)), int(block.get("src_image_size_w", width)), _CHANNELS)
    )
    tensor = f"{value.name}__prepared"
    _rename(graph, value.name, tensor)
    nodes, constants = _nodes(block, value.name, tensor, picture, (height, width))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    graph.initializer.extend(constants)
    value.type.tensor_type.elem_type = TensorProto.UINT8
    set_shape(value, tuple(picture))
    return picture


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _nodes(
    block: Mapping[str, str], source: str, target: str, picture: Shape, size: tuple[int, int]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    top, left = int(block.get("load_start_pos_h", 0)), int(block.get("load_start_pos_w", 0))
    crop = block.get("crop", "false") == "true"
    if not crop and tuple(picture[1:3]) != size:
        raise _wrong(f"the picture is {picture[1]}x{picture[2]}, the model takes {size[0]}x{size[1]}: crop")
    if crop and (int(block.get("crop_size_h", size[0])), int(block.get("crop_size_w", size[1]))) != size:
        raise _wrong(f"the crop is not the model's {size[0]}x{size[1]}")
    if crop and (top + size[0] > picture[1] or left + size[1] > picture[2]):
        raise _wrong("the crop leaves the picture")
    channels = [2, 1, 0] if block.get("rbuv_swap_switch", "false") == "true" else [0, 1, 2]
    constants = {
        "start": np.array([top, left], np.int64),
        "end": np.array([top + size[0], left + size[1]], np.int64),
        "axes": np.array([1, 2], np.int64),
        "swap": np.array(channels, np.int64),
        "offset": _per_channel(block, "mean", 0.0) + _per_channel(block, "min", 0.0),
        "factor": _per_channel(block, "var_reci", 1.0),
    }
    name = {key: f"{target}_{key}" for key in [*constants, "cropped", "swapped", "float", "shifted", "scaled"]}
    nodes = [
        helper.make_node("Gather", [source, name["swap"]], [name["swapped"]], axis=3),
        helper.make_node("Slice", [name["swapped"], name["start"], name["end"], name["axes"]], [name["cropped"]]),
        helper.make_node("Cast", [name["cropped"]], [name["float"]], to=TensorProto.FLOAT),
        helper.make_node("Sub", [name["float"], name["offset"]], [name["shifted"]]),
        helper.make_node("Mul", [name["shifted"], name["factor"]], [name["scaled"]]),
        helper.make_node("Transpose", [name["scaled"]], [target], perm=[0, 3, 1, 2]),
    ]
    for node in nodes:
        node.name = f"aipp_{node.output[0]}"
    return nodes, [numpy_helper.from_array(array, name[key]) for key, array in constants.items()]


def _per_channel(block: Mapping[str, str], kind: str, default: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([float(block.get(f"{kind}_chn_{c}", default)) for c in range(_CHANNELS)], np.float32)
