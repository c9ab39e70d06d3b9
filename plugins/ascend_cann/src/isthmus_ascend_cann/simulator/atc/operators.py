"""What ATC's ONNX front end takes: opset 18 at most, and operators that have a parser.

Quantisation goes by operators of Ascend's own; attention and the newer normalisations have no
parser under their ONNX names.
"""

from __future__ import annotations

import onnx

from . import tables
from .failure import AtcError

MAX_OPSET = 18
SUPPORTED = tables.words("operators", "supported")


def check(model: onnx.ModelProto) -> None:
    """Fail as ``atc`` does for an opset or operator that it has no parser for."""
    opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    version = opsets.get("ai.onnx", 0)
    if version > MAX_OPSET:
        raise AtcError(
            "E16002",
            "No_Parser",
            f"No parser is registered for Op [{model.graph.node[0].name}, optype [ai.onnx::{version}::"
            f"{model.graph.node[0].op_type}]]: the ONNX opset is {version}, at most {MAX_OPSET} is known.",
        )
    for node in model.graph.node:
        if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
            raise AtcError(
                "E10055", "Not_Supported", f"Op [{node.name}, {node.op_type}]: control flow is not simulated."
            )
        if node.domain not in ("", "ai.onnx") or node.op_type not in SUPPORTED:
            domain = node.domain or "ai.onnx"
            raise AtcError(
                "E16002",
                "No_Parser",
                f"No parser is registered for Op [{node.name}, optype [{domain}::{opsets.get(domain, 1)}::{node.op_type}]].",
            )
