from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.graph.inspect import inspect
from isthmus.graphset import GraphSet
from onnx import TensorProto, helper, numpy_helper


def save_model(path, *, weight=None, external=False):
    """y[N, 3] = x[N, 2] @ w"""
    w = np.arange(6, dtype=np.float32).reshape(2, 3) if weight is None else weight
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "mm"), helper.make_node("Relu", ["h"], ["y"], "act")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, save_as_external_data=external, location="w.data", size_threshold=0)


def test_a_single_file_is_summarised(tmp_path):
    save_model(tmp_path / "m.onnx")
    found = inspect(tmp_path / "m.onnx").graphs["main"]
    assert found.opsets == {"ai.onnx": 17}
    assert found.operators == {"MatMul": 1, "Relu": 1}
    assert found.nodes == 2
    assert [(v.name, v.dtype, v.shape) for v in (*found.inputs, *found.outputs)] == [
        ("x", "float32", ("N", 2)),
        ("y", "float32", ("?", 3)),
    ]
    assert found.weights == {"float32": 24}


def test_weights_are_not_read(tmp_path):
    save_model(tmp_path / "m.onnx", external=True)
    (tmp_path / "w.data").unlink()
    assert inspect(tmp_path / "m.onnx").graphs["main"].weight_bytes == 24


def test_shared_weights_count_once(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "w.data").unlink(missing_ok=True)  # onnx appends
        save_model(tmp_path / f"{name}.onnx", external=True)
    GraphSet(tmp_path, {"a": "a.onnx", "b": "b.onnx"}).save()
    found = inspect(tmp_path)
    assert sum(g.weight_bytes for g in found.graphs.values()) == 48
    assert found.stored_weight_bytes == 24


def test_own_weights_of_two_entries_count_twice(tmp_path):
    for name in ("a", "b"):
        save_model(tmp_path / f"{name}.onnx")
    GraphSet(tmp_path, {"a": "a.onnx", "b": "b.onnx"}).save()
    assert inspect(tmp_path).stored_weight_bytes == 48


@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a readable ONNX file"):
        inspect(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_model_is_refused(tmp_path, share):
    path = tmp_path / "m.onnx"
    save_model(path, weight=np.zeros((2, 3000), np.float32))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match="not a readable ONNX file"):
        inspect(path)
