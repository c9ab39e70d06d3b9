"""Graph sets become ``program.json``, steps and tables of contents, and ``weights.bin``, one block for all entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from isthmus.errors import CompileError, InputError
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import DType, EntrySpec, MemoryRequirements, TensorSpec, Tolerance
from numpy.typing import NDArray

from .driver import PROGRAM, WEIGHTS
from .operators import OPERATORS

ALIGNMENT = 64


def compile_graphs(source: GraphSet, out: Path) -> CompileReport:
    """Write the two files below ``out``. ``CompileError`` names the node that numpy cannot run here."""
    weights = Weights()
    entries: dict[str, EntrySpec] = {}
    program: dict[str, Any] = {}
    for name, file in source.graphs.items():
        graph = load(source.path / file)
        entries[name] = EntrySpec(
            specs([v for v in graph.input if v.name not in {i.name for i in graph.initializer}]), specs(graph.output)
        )
        program[name] = {
            "spec": [[str(s) for s in entries[name].inputs], [str(s) for s in entries[name].outputs]],
            "constants": {i.name: weights.add(onnx.numpy_helper.to_array(i)) for i in graph.initializer},
            "steps": [step(node) for node in graph.node],
        }
    (out / PROGRAM).write_text(json.dumps(program))
    (out / WEIGHTS).write_bytes(weights.block)
    half = any(s.dtype is DType.FLOAT16 for e in entries.values() for s in (*e.inputs, *e.outputs))
    return CompileReport(
        entries,
        requirements(entries, len(weights.block)),
        toolchain={"numpy": np.__version__, "onnx": onnx.__version__},
        tolerance=Tolerance(2e-3, 1e-3) if half else Tolerance(1e-5, 1e-6),
    )


def load(file: Path) -> onnx.GraphProto:
    """The graph with its weights. ``InputError`` if it is none."""
    try:
        model = onnx.load(file)
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        if "No Op registered" in str(error) or "No opset import" in str(error):
            unknown = [node.op_type for node in model.graph.node if node.op_type not in OPERATORS]
            raise CompileError(f"{file.name}: no operator {', '.join(unknown)}") from error
        raise InputError(f"{file} is not a valid ONNX model: {error}") from error
    except Exception as error:
        raise InputError(f"{file} cannot be read as ONNX: {error}") from error
    return model.graph


def specs(values: Any) -> tuple[TensorSpec, ...]:
    """Name, type and static shape of inputs or outputs."""
    found = []
    for value in values:
        tensor = value.type.tensor_type
        if not all(d.HasField("dim_value") for d in tensor.shape.dim):
            raise CompileError(f"{value.name} has no fixed shape", fix="export the graph with static shapes")
        dtype = DType.of(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        found.append(TensorSpec(value.name, dtype, tuple(d.dim_value for d in tensor.shape.dim)))
    return tuple(found)


def step(node: onnx.NodeProto) -> dict[str, Any]:
    """A node as JSON data. ``CompileError`` if numpy has no function for it."""
    if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
        raise CompileError(
            f"node {node.name!r}: no operator {node.domain or 'ai.onnx'}.{node.op_type}",
            fix=f"use one of: {', '.join(OPERATORS)}",
        )
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {"op": node.op_type, "in": list(node.input), "out": list(node.output), "attributes": attributes}


class Weights:
    """Constants in one aligned block; equal ones are stored once, so that entries share them."""

    def __init__(self) -> None:
        self.block = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, array: NDArray[Any]) -> dict[str, Any]:
        """Where the array is."""
        data = np.ascontiguousarray(array).tobytes()
        if data not in self._places:
            self.block += bytes(-len(self.block) % ALIGNMENT)
            self._places[data] = len(self.block)
            self.block += data
        return {"offset": self._places[data], "dtype": array.dtype.name, "shape": list(array.shape)}


def requirements(entries: dict[str, EntrySpec], weights: int) -> MemoryRequirements:
    """Known before loading: the block, and the sizes of inputs and outputs."""
    return MemoryRequirements(
        weights=weights,
        workspace=dict.fromkeys(entries, 0),
        io={name: sum(s.nbytes for s in (*e.inputs, *e.outputs)) for name, e in entries.items()},
        exact=False,
        own_load=weights,
        caller_load=0,
        alignment=ALIGNMENT,
        notes=("intermediate results are numpy's own allocations and in no figure",),
    )
