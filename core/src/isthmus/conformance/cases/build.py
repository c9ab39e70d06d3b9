"""Writes a case as a graph set, in the spelling a backend asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ...graph.builder import GraphBuilder
from ...graph.weights import INLINE, WeightsFile, inline
from ...graphset import GraphSet
from ...types import Dialect
from .case import Case


class Graph:
    """What an entry is built with: operators by position, weights by name."""

    def __init__(self, case: Case, entry: str, dialect: Dialect) -> None:
        self.builder = GraphBuilder(entry, dialect, case.dtype.numpy)
        self._weights = case.weights
        self._count = 0

    def name(self, kind: str) -> str:
        """A new name."""
        self._count += 1
        return f"{kind.lower()}_{self._count}"

    def op(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Add a node with one output."""
        return self.builder.op(kind, inputs, self.name(kind), **attributes)

    def weight(self, name: str) -> ir.Value:
        """A weight of the case."""
        array = self.array(name)
        return self.builder.weight(name, array.shape, lambda: array)

    def array(self, name: str) -> NDArray[Any]:
        """The values of a weight, for what declares it itself."""
        return self._weights[name]

    def ints(self, *values: int) -> ir.Value:
        """An int64 constant."""
        return self.builder.integers(*values)

    def split(self, x: ir.Value, axis: int, *sizes: int) -> list[ir.Value]:
        """Parts of the given sizes."""
        return self.builder.ops("Split", [x, self.ints(*sizes)], self.name("split"), len(sizes), axis=axis)

    def mean(self, x: ir.Value, axis: int) -> ir.Value:
        """Mean over an axis that is kept; the axes became an input in opset 18."""
        if self.builder.dialect.opset < 18:
            return self.op("ReduceMean", x, axes=[axis], keepdims=1)
        return self.op("ReduceMean", x, self.ints(axis), keepdims=1)


def write(case: Case, dialect: Dialect, out: Path) -> GraphSet:
    """Write the graph set of ``case`` into the new directory ``out``."""
    out.mkdir(parents=True)
    graphs = {name: _graph(case, name, dialect) for name in case.entries}
    weights = {name: weight for graph in graphs.values() for name, weight in graph.weights.items()}
    tensors: dict[str, ir.TensorProtocol] = {}
    with WeightsFile(out) as file:
        for name, weight in weights.items():
            tensors[name] = inline(weight) if weight.nbytes <= INLINE else file.append(weight)
    for name, graph in graphs.items():
        model = graph.model()
        for initializer in model.graph.initializers.values():
            initializer.const_value = tensors.get(initializer.name or "", initializer.const_value)
        ir.save(model, out / f"{name}.onnx")
    made = GraphSet(
        out, {name: f"{name}.onnx" for name in graphs}, dialect=dialect.name, source_sha256=case.fingerprint
    )
    made.save()
    return made


def _graph(case: Case, name: str, dialect: Dialect) -> GraphBuilder:
    entry, graph = case.entries[name], Graph(case, name, dialect)
    inputs = {
        i: graph.builder.input(i, made.shape, ir.DataType.from_numpy(made.dtype.numpy) if made.dtype else None)
        for i, made in entry.inputs.items()
    }
    outputs = entry.build(graph, inputs)
    for output, shape in entry.outputs.items():
        graph.builder.output(outputs[output], output, shape)
    return graph.builder
