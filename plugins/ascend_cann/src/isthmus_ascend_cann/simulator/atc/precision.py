"""Precision modes: which operators compute in half precision, and a graph that really rounds where they do.

A tensor that an operator writes in float16 goes through Cast to float16 and back, so that ONNX Runtime's float32 kernels
give what a half-precision operator with a wide accumulator gives. Weights of such operators are stored in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import onnx
from onnx import TensorProto, helper

from . import tables
from .failure import AtcError, bad_value
from .soc import NO_BF16

CUBE = tables.words("precision", "cube")
WIDE = tables.words("precision", "wide")
MOVES = tables.words("precision", "moves")
# Inputs that are parameters of the operator, not data.
_NOT_DATA: Mapping[str, frozenset[int]] = {"Resize": frozenset({1, 2}), "Upsample": frozenset({1})}


@attrs.frozen
class Plan:
    """What a precision mode does to an operator: its inputs and outputs are of ``narrow`` type, or stay."""

    narrow: int
    inputs: Callable[[onnx.NodeProto], bool]
    outputs: Callable[[onnx.NodeProto], bool]
    kept: frozenset[str] = frozenset()
    """Operators by name or ``OpType::X`` that keep their type."""

    def narrows_inputs(self, node: onnx.NodeProto) -> bool:
        """True when the operator reads half precision."""
        return not self._keeps(node) and self.inputs(node)

    def narrows_outputs(self, node: onnx.NodeProto) -> bool:
        """True when the operator writes half precision."""
        return not self._keeps(node) and self.outputs(node)

    def _keeps(self, node: onnx.NodeProto) -> bool:
        return node.name in self.kept or f"OpType::{node.op_type}" in self.kept


def plan(flags: Mapping[str, str], family: str) -> Plan | None:
    """The plan for the flags, ``None`` when everything keeps its type."""
    old, new = flags["precision_mode"], flags["precision_mode_v2"]
    mode = new or old or "force_fp16"
    kept = _kept(flags["keep_dtype"])
    if mode in ("must_keep_origin_dtype", "origin"):
        return None
    if mode in ("cube_hif8", "mixed_hif8"):
        raise bad_value("precision_mode_v2", mode, "Only the Ascend950 has HiFloat8, and it is not simulated.")
    narrow = TensorProto.BFLOAT16 if "bf" in mode else TensorProto.FLOAT16
    if narrow == TensorProto.BFLOAT16 and family in NO_BF16:
        flag = "precision_mode_v2" if new else "precision_mode"
        raise bad_value(flag, mode, f"The chip has no bfloat16 ({flags['soc_version']}).")
    if mode in ("force_fp16", "fp16"):
        return Plan(narrow, lambda n: True, lambda n: True, kept)
    if mode in ("force_fp32", "cube_fp16in_fp32out"):
        return Plan(narrow, _is_cube, lambda n: False, kept)
    if mode.startswith("allow_fp32_to"):
        return Plan(narrow, _is_cube, _is_cube, kept)
    return Plan(narrow, _is_mixed, _is_mixed, kept)


def _is_cube(node: onnx.NodeProto) -> bool:
    return node.op_type in CUBE


def _is_mixed(node: onnx.NodeProto) -> bool:
    return node.op_type not in WIDE


def _kept(file: str) -> frozenset[str]:
    if not file:
        return frozenset()
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError as error:
        raise AtcError("E13001", "Open_File", f"[--keep_dtype] {file}: {error}") from error
    return frozenset(line.strip() for line in lines if line.strip())


class Lowering:
    """Rewrites a graph after a plan. ``narrow`` names the tensors that are in half precision on the device."""

    def __init__(self, graph: onnx.GraphProto, plan: Plan, dtypes: Mapping[str, int]) -> None:
        self._graph = graph
        self._plan = plan
        self._dtypes = dtypes
        self._weights = {i.name for i in graph.initializer}
        self._twins: dict[str, str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self.narrow: set[str] = set()
        self.narrow_weights: set[str] = set()
        self.wide_weights: set[str] = set()

    def run(self) -> None:
        """Replace the graph's nodes."""
        for node in self._graph.node:
            self._lower(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)

    def _lower(self, source: onnx.NodeProto) -> None:
        node = onnx.NodeProto()
        node.CopyFrom(source)
        data = [i for i in range(len(node.input)) if i not in _NOT_DATA.get(node.op_type, ())]
        floats = [i for i in data if self._is_float(node.input[i])]
        if self._plan.narrows_inputs(node):
            for index in floats:
                node.input[index] = self._narrowed(node.input[index])
        else:
            self.wide_weights.update(n for n in node.input if n in self._weights)
        exact = node.op_type in MOVES and all(source.input[i] in self.narrow for i in floats)
        self._nodes.append(node)
        if not self._plan.narrows_outputs(node):
            return
        for index, name in enumerate(source.output):
            if self._is_float(name):
                self.narrow.add(name)
                if not exact:
                    node.output[index] = f"{name}__wide"
                    self._round(f"{name}__wide", name)

    def _is_float(self, name: str) -> bool:
        return self._dtypes.get(name) == TensorProto.FLOAT

    def _narrowed(self, name: str) -> str:
        """The tensor as half precision has it: itself when it is rounded already, else a twin."""
        if name in self.narrow and name not in self._weights and name not in self._twins:
            return name
        if name not in self._twins:
            twin = self._twins[name] = f"{name}__narrow"
            if name in self._weights:
                self.narrow_weights.add(name)
                self._cast(f"{name}__stored", twin, TensorProto.FLOAT)
            else:
                self._round(name, twin)
            self.narrow.add(name)
        return self._twins[name]

    def _round(self, source: str, target: str) -> None:
        self._cast(source, f"{target}__half", self._plan.narrow)
        self._cast(f"{target}__half", target, TensorProto.FLOAT)

    def _cast(self, source: str, target: str, dtype: int) -> None:
        self._nodes.append(helper.make_node("Cast", [source], [target], name=f"cast_{target}", to=dtype))
