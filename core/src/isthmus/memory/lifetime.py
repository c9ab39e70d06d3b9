"""Live intervals of a graph's activations, for a memory plan before anything is loaded.

Steps are nodes in file order. Graph inputs and outputs are the caller's and not counted. A reshape is its input under
another name; an elementwise node may write over an input of the same size that nobody reads later. Both are what
runtimes do (ONNX Runtime's allocation planner), so leaving them out would overstate the plan.
"""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import onnx
from onnx import helper, shape_inference

from ..errors import InputError
from .arena import Interval

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
IN_PLACE = frozenset(
    [
        "Abs",
        "Add",
        "Cast",
        "Clip",
        "Div",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Mul",
        "Neg",
        "Pow",
        "Reciprocal",
        "Relu",
        "Round",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Sqrt",
        "Sub",
        "Swish",
        "Tanh",
    ]
)


@attrs.define
class _Storage:
    """Memory that one or more tensors share in turn."""

    name: str
    size: int
    first: int
    last: int


def activation_intervals(source: Path | onnx.ModelProto) -> list[Interval]:
    """Live intervals of all activations of an ONNX file or model with static shapes; weights are not read.

    ``InputError`` names a tensor whose shape is not static or cannot be inferred (an operator of a vendor's domain).
    """
    model = onnx.load(str(source), load_external_data=False) if isinstance(source, Path) else source
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    where = source if isinstance(source, Path) else f"graph {graph.name}"
    sizes = {v.name: _nbytes(v) for v in graph.value_info}
    outside = {v.name for v in (*graph.input, *graph.output)} | {i.name for i in graph.initializer}
    last_use = {name: step for step, node in enumerate(graph.node) for name in node.input}
    storages: list[_Storage] = []
    holder: dict[str, _Storage] = {}
    for step, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in outside:
                continue
            end = last_use.get(name, step)
            if (size := sizes.get(name)) is None:
                raise InputError(
                    f"{where}: the shape of {name!r} ({node.op_type} {node.name!r}) is not known and static"
                )
            shared = _reusable(node, size, step, holder)
            if shared is None:
                shared = _Storage(name, size, step, end)
                storages.append(shared)
            shared.last = max(shared.last, end)
            holder[name] = shared
    return [Interval(s.name, s.size, s.first, s.last) for s in storages]


def _reusable(node: onnx.NodeProto, size: int, step: int, holder: dict[str, _Storage]) -> _Storage | None:
    """The storage of an input that the node's output can take over."""
    if node.op_type in VIEWS:
        return holder.get(node.input[0])
    if node.op_type in IN_PLACE:
        for name in node.input:
            storage = holder.get(name)
            if storage is not None and storage.size == size and storage.last == step:
                return storage
    return None


def _nbytes(value: onnx.ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    elements = math.prod(d.dim_value for d in tensor.shape.dim)
    return int(elements * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)
