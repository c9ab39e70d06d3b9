"""Precision modes: which operators read and write half precision.

What the modes mean is the vendor's documentation of `--precision_mode`; which operators the mixed modes choose is in
files of an installed CANN, and approximated here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import onnx
from onnx import TensorProto

from . import tables
from .failure import AtcError, bad_value
from .soc import NO_BF16

CUBE = tables.words("precision", "cube")
WIDE = tables.words("precision", "wide")


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


def plan(flags: Mapping[str, str], family: str) -> Plan:
    """The plan for the flags."""
    old, new = flags["precision_mode"], flags["precision_mode_v2"]
    mode = new or old or "force_fp16"
    kept = _kept(flags["keep_dtype"])
    if mode in ("must_keep_origin_dtype", "origin"):
        return Plan(TensorProto.FLOAT, _never, _never)
    if mode in ("cube_hif8", "mixed_hif8"):
        raise bad_value("precision_mode_v2", mode, "Only the Ascend950 has HiFloat8, and it is not simulated.")
    narrow = TensorProto.BFLOAT16 if "bf" in mode else TensorProto.FLOAT16
    if narrow == TensorProto.BFLOAT16 and family in NO_BF16:
        flag = "precision_mode_v2" if new else "precision_mode"
        raise bad_value(flag, mode, f"The chip has no bfloat16 ({flags['soc_version']}).")
    if mode in ("force_fp16", "fp16"):
        return Plan(narrow, _always, _always, kept)
    if mode in ("force_fp32", "cube_fp16in_fp32out"):
        return Plan(narrow, _is_cube, _never, kept)
    if mode.startswith("allow_fp32_to"):
        return Plan(narrow, _is_cube, _is_cube, kept)
    return Plan(narrow, _is_mixed, _is_mixed, kept)


def _always(_: onnx.NodeProto) -> bool:
    return True


def _never(_: onnx.NodeProto) -> bool:
    return False


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
