"""What is in an ONNX file or a graph set, without reading weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import attrs
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ..errors import InputError
from ..graphset import GraphSet


@attrs.frozen
class ValueSummary:
    """One graph input or output. A dimension that is not fixed is its name, or ``?``."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@attrs.frozen
class GraphSummary:
    """One entry."""

    file: str
    opsets: Mapping[str, int]
    """Domain -> version; the standard domain is ``ai.onnx``."""
    inputs: tuple[ValueSummary, ...]
    outputs: tuple[ValueSummary, ...]
    operators: Mapping[str, int]
    """Operator -> how often, most frequent first, subgraphs included; other domains as ``domain::Operator``."""
    weights: Mapping[str, int]
    """Element type -> bytes of initializers."""

    @property
    def nodes(self) -> int:
        """Number of nodes, subgraphs included."""
        return sum(self.operators.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of all initializers, wherever they are stored."""
        return sum(self.weights.values())


@attrs.frozen
class SetSummary:
    """All entries, and what they share."""

    dialect: str
    graphs: Mapping[str, GraphSummary]
    stored_weight_bytes: int
    """Bytes of initializers on disk: what entries share counts once."""


def inspect(path: Path | str) -> SetSummary:
    """Summarise an ``.onnx`` file (entry ``main``) or a graph set. ``InputError`` if it cannot be read."""
    graphs = GraphSet.open(path)
    models = {entry: _load(graphs.path / name) for entry, name in graphs.graphs.items()}
    stored = {}
    for entry, model in models.items():
        for value in _initializers(model):
            stored[_place(entry, value)] = value.nbytes
    return SetSummary(
        graphs.dialect,
        {entry: _summary(graphs.graphs[entry], model) for entry, model in models.items()},
        sum(stored.values()),
    )


def _load(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
    except (DecodeError, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not a readable ONNX file: {error}") from error
    if not model.graph.outputs:
        raise InputError(f"{path} is not a readable ONNX file: its graph has no output")
    return model


def _initializers(model: ir.Model) -> list[ir.TensorProtocol]:
    return [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]


def _place(entry: str, tensor: ir.TensorProtocol) -> tuple[str, object]:
    if isinstance(tensor, ir.ExternalTensor):
        return (str(tensor.location), tensor.offset)
    return (entry, tensor.name)


def _summary(file: str, model: ir.Model) -> GraphSummary:
    operators = Counter(n.op_type if n.domain == "" else f"{n.domain}::{n.op_type}" for n in model.graph.all_nodes())
    weights: Counter[str] = Counter()
    for tensor in _initializers(model):
        weights[_name(tensor.dtype)] += tensor.nbytes
    return GraphSummary(
        file,
        {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        tuple(_value(v) for v in model.graph.inputs),
        tuple(_value(v) for v in model.graph.outputs),
        dict(operators.most_common()),
        dict(weights),
    )


def _value(value: ir.Value) -> ValueSummary:
    shape = ("?",) if value.shape is None else tuple(_dimension(d) for d in value.shape)
    return ValueSummary(value.name or "?", _name(value.dtype), shape)


def _name(dtype: ir.DataType | None) -> str:
    """As in ``isthmus.types.DType``."""
    return "?" if dtype is None else dtype.numpy().name


def _dimension(dimension: int | ir.SymbolicDim) -> int | str:
    return dimension if isinstance(dimension, int) else dimension.value or "?"
