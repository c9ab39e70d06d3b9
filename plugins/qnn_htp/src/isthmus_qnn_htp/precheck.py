"""What can be told of a graph without the compiler: refused here in milliseconds, with the node and the reason.

Only what is certain. Everything else is the compiler's own verdict, read from its log.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from isthmus.errors import CompileError, UnsupportedError
from onnx import TensorProto

from .onnx_graph import describe, shape_of, values
from .options import Precision
from .targets import Target

_MIN_OPSET = 7
# Measured on QNN 2.51: "Failed to map Onnx data type to Qnn data type" or "Failed to add node" in every operator.
_NO_TYPE: dict[int, str] = {
    TensorProto.DOUBLE: "the HTP has no float64",
    TensorProto.BFLOAT16: "the compiler takes no bfloat16 tensors; float32 graphs are computed in bf16 by precision=bf16",
    TensorProto.COMPLEX64: "the HTP has no complex numbers",
    TensorProto.COMPLEX128: "the HTP has no complex numbers",
    TensorProto.STRING: "the HTP has no strings",
    TensorProto.FLOAT8E4M3FN: "the compiler takes no float8 tensors",
    TensorProto.FLOAT8E5M2: "the compiler takes no float8 tensors",
}
_INT64_ARITHMETIC = frozenset(
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Pow",
        "Neg",
        "Abs",
        "Sum",
        "Max",
        "Min",
        "ReduceSum",
        "ReduceProd",
        "ReduceMax",
        "ReduceMin",
        "CumSum",
        "MatMul",
    ]
)
_QUANTIZED = frozenset(
    ["QuantizeLinear", "DequantizeLinear", "QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger"]
)


def precheck(model: onnx.ModelProto, entry: str, target: Target, precision: Precision) -> None:
    """Raise for the first thing in ``model`` that cannot run on ``target``.

    ``CompileError``: the graph. ``UnsupportedError``: a float graph on a chip without that precision.
    """
    known = values(model)
    _check_opset(model, entry)
    _check_inputs_used(model.graph, entry)
    _check_outputs_computed(model.graph, entry)
    _check_empty(known, model.graph, entry)
    for node in model.graph.node:
        _check_types(node, known, entry)
    _check_int64(model.graph, known, entry)
    _check_precision(model, known, entry, target, precision)


def is_quantized(model: onnx.ModelProto) -> bool:
    """Whether a graph holds quantised arithmetic."""
    return any(node.op_type in _QUANTIZED for node in model.graph.node)


def _check_opset(model: onnx.ModelProto, entry: str) -> None:
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is not None and opset < _MIN_OPSET:
        raise CompileError(
            f"entry {entry!r} is of ONNX opset {opset}; the compiler takes {_MIN_OPSET} and later",
            fix="convert it with onnx.version_converter.convert_version(model, 17)",
        )


def _check_inputs_used(graph: onnx.GraphProto, entry: str) -> None:
    used = {name for node in graph.node for name in node.input}
    weights = {t.name for t in graph.initializer}
    idle = [v.name for v in graph.input if v.name not in used | weights]
    if idle and not any(map(_has_body, graph.node)):
        raise CompileError(
            f"input {idle[0]!r} of entry {entry!r} is used by no node",
            why="the compiler would drop it, and the binary would not have the entry's inputs",
            fix="remove the input from the graph",
        )


def _check_outputs_computed(graph: onnx.GraphProto, entry: str) -> None:
    computed = {name for node in _depending_on_inputs(graph) for name in node.output}
    for value in graph.output:
        if value.name not in computed:
            raise CompileError(
                f"output {value.name!r} of entry {entry!r} is not computed from any input",
                why="the optimiser makes it a constant, and the binary would not have it",
                fix="remove the output from the graph",
            )


def _check_empty(known: dict[str, onnx.ValueInfoProto], graph: onnx.GraphProto, entry: str) -> None:
    """Tensors without elements kill the compiler with SIGFPE. An empty parameter, such as Resize's roi, is no tensor."""
    for name, value in known.items():
        if 0 not in shape_of(value):
            continue
        user = next((n for n in graph.node if name in n.output or list(n.input)[:1] == [name]), None)
        if user is not None or name in {v.name for v in graph.input}:
            where = f", of node {user.name!r} ({user.op_type})" if user is not None else ""
            raise CompileError(
                f"tensor {name!r} of entry {entry!r}{where} is {describe(value)}: it has no elements",
                why="the compiler crashes on empty tensors",
                fix="remove the nodes that handle it from the graph",
            )


def _check_types(node: onnx.NodeProto, known: dict[str, onnx.ValueInfoProto], entry: str) -> None:
    for name in (*node.input, *node.output):
        value = known.get(name)
        reason = _NO_TYPE.get(value.type.tensor_type.elem_type) if value is not None else None
        if value is not None and reason:
            raise CompileError(
                f"node {node.name!r} ({node.op_type}) of entry {entry!r} has tensor {name!r}, {describe(value)}",
                why=reason,
                fix="export the graph in float32 or float16",
            )


def _check_int64(graph: onnx.GraphProto, known: dict[str, onnx.ValueInfoProto], entry: str) -> None:
    """Arithmetic on int64 data. What depends on constants and shapes alone is folded away before the compiler runs."""
    for node in _depending_on_inputs(graph):
        value = known.get(node.output[0]) if node.output else None
        int64 = value is not None and value.type.tensor_type.elem_type == TensorProto.INT64
        if value is not None and int64 and node.op_type in _INT64_ARITHMETIC:
            raise CompileError(
                f"node {node.name!r} ({node.op_type}) of entry {entry!r} computes {describe(value)}",
                why="the HTP computes int64 in 32 bits and is silently wrong beyond 2147483647",
                fix="compute on the host, or cast to int32 before the node if 32 bits are enough",
            )


def _depending_on_inputs(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes whose result is not known before there are inputs. A body may use any tensor around it."""
    live = {v.name for v in graph.input} - {t.name for t in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and (live.intersection(node.input) or _has_body(node)):
            live.update(node.output)
            yield node


def _has_body(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") for attribute in node.attribute)


def _is_float(value: onnx.ValueInfoProto | None) -> bool:
    return value is not None and value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.FLOAT16)


def _check_precision(
    model: onnx.ModelProto, known: dict[str, onnx.ValueInfoProto], entry: str, target: Target, precision: Precision
) -> None:
    if target.float_graphs or (precision is Precision.BF16 and target.bf16):
        return
    floats = any(_is_float(known.get(name)) for node in model.graph.node for name in node.output)
    if is_quantized(model) or not floats:
        return  # float parts of a quantised graph are the compiler's to refuse
    why = (
        "its compiler takes no fp16 graphs"
        if not target.fp16
        else f"fp16 is missing or partial on v{target.arch} silicon, though the compiler takes such graphs"
    )
    raise UnsupportedError(
        f"entry {entry!r} is a float graph, and {target} runs quantised graphs only",
        why=why,
        fix="choose a target with fp16 (sm8550, sm8650, sm8750, sm8850 ...), or compile a quantised (QDQ) graph",
    )
