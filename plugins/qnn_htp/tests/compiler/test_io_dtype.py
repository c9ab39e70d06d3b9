"""Editing a graph's inputs and outputs, judged by ONNX's reference evaluator."""

import numpy as np
import onnx
import pytest
from isthmus.errors import CompileError
from isthmus_qnn_htp.io_dtype import apply_io_dtype
from isthmus_qnn_htp.options import IoDtype
from onnx import TensorProto as T
from onnx import helper
from onnx.reference import ReferenceEvaluator

X = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)


def edited(path, io_dtype):
    model = onnx.load(path)
    apply_io_dtype(model, io_dtype)
    onnx.checker.check_model(model)
    return model


def types(model):
    return [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]


def test_as_graph_changes_nothing(graphs):
    path = graphs.matmul()
    assert edited(path, IoDtype.AS_GRAPH) == onnx.load(path)


def test_float16_casts_at_the_boundary_only(graphs):
    path = graphs.matmul()
    model = edited(path, IoDtype.FLOAT16)
    assert types(model) == [T.FLOAT16, T.FLOAT16]
    want = ReferenceEvaluator(onnx.load(path)).run(None, {"x": X.astype(np.float16).astype(np.float32)})[0]
    (got,) = ReferenceEvaluator(model).run(None, {"x": X.astype(np.float16)})
    assert np.array_equal(got, want.astype(np.float16))


def test_float16_leaves_integers_and_an_output_that_is_used_inside(graphs):
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["first"]),
        helper.make_node("Relu", ["first"], ["second"]),
    ]
    inputs = {"x": (T.FLOAT, [4, 2]), "i": (T.INT32, [1])}
    outputs = {"first": (T.FLOAT, [1, 2]), "second": (T.FLOAT, [1, 2])}
    model = edited(graphs.write(nodes, inputs, outputs), IoDtype.FLOAT16)
    assert types(model) == [T.FLOAT16, T.INT32, T.FLOAT16, T.FLOAT16]
    feeds = {"x": X[:, :2].astype(np.float16), "i": np.array([2], np.int32)}
    first, second = ReferenceEvaluator(model).run(None, feeds)
    assert np.array_equal(second, np.maximum(first, 0))


def test_quantized_drops_the_nodes_at_the_boundary(graphs):
    path = graphs.quantized_matmul()
    model = edited(path, IoDtype.QUANTIZED)
    assert types(model) == [T.UINT16, T.UINT16]
    assert [n.op_type for n in model.graph.node] == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    want = ReferenceEvaluator(onnx.load(path)).run(None, {"x": X})[0]
    stored = np.clip(np.rint(X / np.float32(8 / 65535)) + 32768, 0, 65535).astype(np.uint16)
    (got,) = ReferenceEvaluator(model).run(None, {"x": stored})
    assert np.array_equal((got.astype(np.float32) - 32768) * np.float32(20 / 65535), want)


def test_quantized_is_refused_for_a_graph_without_quantised_boundary(graphs):
    with pytest.raises(CompileError, match="io_dtype=quantized"):
        edited(graphs.matmul(), IoDtype.QUANTIZED)


def test_quantized_is_refused_per_channel(graphs):
    weights = {"s": np.full(4, 0.1, np.float32), "z": np.zeros(4, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q", axis=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "d", axis=0),
    ]
    path = graphs.write(nodes, {"x": (T.FLOAT, [4, 4])}, {"y": (T.FLOAT, [4, 4])}, weights)
    with pytest.raises(CompileError, match="per channel"):
        edited(path, IoDtype.QUANTIZED)
