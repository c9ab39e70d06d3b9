from __future__ import annotations

import numpy as np
import onnx
import pytest
from isthmus.graphset import GraphSet
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def gelu_set(tmp_path):
    """y = gelu(x @ w) + 1 with the weight in a file of its own."""
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    scalars = {"root2": 2**0.5, "one": 1.0, "half": 0.5}
    steps = [
        ("MatMul", ["x", "w"], "mm"),
        ("Div", ["mm", "root2"], "d"),
        ("Erf", ["d"], "e"),
        ("Add", ["e", "one"], "a"),
        ("Mul", ["mm", "a"], "m"),
        ("Mul", ["m", "half"], "g"),
        ("Add", ["g", "one"], "y"),
    ]
    shape = [2, 8]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [name], name=f"node.{name}") for op, inputs, name in steps],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")]
        + [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in scalars.items()],
    )
    path = tmp_path / "set"
    path.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path / "main.onnx", save_as_external_data=True, location="weights.data", size_threshold=100)
    made = GraphSet(path, {"main": "main.onnx"})
    made.save()
    return made
