"""Inner tensors of a graph as extra outputs, in a copy that shares the weights."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import onnx

from .._files import inside
from ..errors import InputError
from ..graphset import GraphSet

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


@attrs.frozen
class Tap:
    """One float tensor that a node writes."""

    name: str
    node: str
    """Name of the node; that of the tensor where the node has none."""
    op: str
    inputs: tuple[str, ...]
    """Tensors and weights the node reads."""
    shape: tuple[int, ...]


def taps_of(graphs: GraphSet, entry: str) -> list[Tap]:
    """Every float tensor of static shape, in the order of computation, outputs of the graph included."""
    graph = _load(graphs, entry).graph
    known = {v.name: v for v in (*graph.value_info, *graph.output)}
    fused = _inside_gelu(graph)
    found = []
    for node in graph.node:
        for name in node.output:
            shape = _float_shape(known.get(name))
            if name and shape is not None and name not in fused:
                found.append(Tap(name, node.name or name, node.op_type, tuple(i for i in node.input if i), shape))
    return found


def tapped(graphs: GraphSet, entry: str, names: Sequence[str], out: Path) -> GraphSet:
    """Write a graph set with only ``entry`` to the directory ``out``, ``names`` being outputs too.

    Outputs of the graph keep their places; taps come after them. Weights are copied the first time ``out`` is used:
    ONNX's own loader takes hard links for an attack.
    """
    model = _load(graphs, entry)
    known = {v.name: v for v in model.graph.value_info}
    have = {v.name for v in model.graph.output}
    if unknown := [n for n in names if n not in known and n not in have]:
        raise InputError(f"entry {entry!r} has no inner tensor {unknown[0]!r} of known shape")
    model.graph.output.extend(known[n] for n in names if n not in have)
    kept = [v for name, v in known.items() if name not in names]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    out.mkdir(exist_ok=True)
    for place in _weight_files(model):
        copy = out / place
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(inside(graphs.path, place), copy)
    onnx.save(model, out / f"{entry}.onnx")
    made = attrs.evolve(graphs, path=out, graphs={entry: f"{entry}.onnx"}, assets=(), model={})
    made.save()
    return made


def _load(graphs: GraphSet, entry: str) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if entry not in graphs.graphs:
        raise InputError(f"{graphs.path} has no entry {entry!r}; it has: {', '.join(graphs.graphs)}")
    file = graphs.path / graphs.graphs[entry]
    try:
        model = onnx.load(file, load_external_data=False)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (DecodeError, OSError, onnx.shape_inference.InferenceError) as error:
        raise InputError(f"{file} is not an ONNX model: {error}") from error


def _inside_gelu(graph: Any) -> set[str]:
    """Tensors between the ends of Div, Erf, Add, Mul, Mul: compilers know GELU by the whole, and refuse a lone Erf."""
    producers = {name: node for node in graph.node for name in node.output}
    users: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    inside: set[str] = set()
    for erf in (node for node in graph.node if node.op_type == "Erf"):
        inside |= {name for name in erf.input if name in producers and producers[name].op_type in ("Div", "Mul")}
        name = erf.output[0]
        for op in ("Add", "Mul", "Mul"):
            following = users.get(name, [])
            if len(following) != 1 or following[0].op_type != op:
                break
            inside.add(name)
            name = following[0].output[0]
    return inside


def _weight_files(model: Any) -> list[str]:
    places = [e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"]
    return list(dict.fromkeys(places))


def _float_shape(value: Any) -> tuple[int, ...] | None:
    if value is None or value.type.tensor_type.elem_type not in _FLOATS:
        return None
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None
