"""Small ONNX graphs for the compiler."""

import itertools
import json

import numpy as np
import onnx
import pytest
from isthmus import compile as compile_artifact
from isthmus.graphset import GraphSet
from onnx import TensorProto as T
from onnx import helper, numpy_helper


class Graphs:
    """Writes ONNX files; each graph maps names to (element type, shape)."""

    def __init__(self, root):
        self.root = root
        self._names = (f"graphs{n}" for n in itertools.count())

    def write(self, nodes, inputs, outputs, weights=None, *, where=None, name="g", opset=17, external=None):
        where = where or self.root / next(self._names)
        where.mkdir(exist_ok=True)
        tensors = [numpy_helper.from_array(np.asarray(array), key) for key, array in (weights or {}).items()]
        infos = [[helper.make_tensor_value_info(k, *v) for k, v in side.items()] for side in (inputs, outputs)]
        graph = helper.make_graph(nodes, "graph", *infos, tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        kept = {"save_as_external_data": True, "location": external, "size_threshold": 0} if external else {}
        onnx.save(model, where / f"{name}.onnx", **kept)
        return where / f"{name}.onnx"

    def node(self, op, dtype=T.FLOAT, shape=(4, 4), *, inputs=("x",), out=None, name="", weights=None, opset=17, **kw):
        """A graph of one node, x -> y."""
        node = helper.make_node(op, list(inputs), ["y"], name, **kw)
        return self.write([node], {"x": (dtype, shape)}, {"y": out or (dtype, shape)}, weights, opset=opset)

    def matmul(self, rows=4, *, where=None, name="g", external=None, width=64, seed=0):
        """x [rows, width] -> MatMul -> Relu -> y [rows, 32]."""
        w = (np.random.default_rng(seed).standard_normal((width, 32)) / width**0.5).astype(np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "mm"), helper.make_node("Relu", ["m"], ["y"], "relu")]
        inputs, outputs = {"x": (T.FLOAT, [rows, width])}, {"y": (T.FLOAT, [rows, 32])}
        return self.write(nodes, inputs, outputs, {"w": w}, where=where, name=name, external=external)

    def quantized_matmul(self):
        """x float -> Q (uint16) -> MatMul with int8 weights -> Q, DQ (uint16) -> y float."""
        w = np.random.default_rng(0).integers(-127, 128, (64, 32)).astype(np.int8)
        weights = {
            "w": w, "ws": np.float32(1 / 500), "wz": np.int8(0),
            "xs": np.float32(8 / 65535), "xz": np.uint16(32768), "ys": np.float32(20 / 65535), "yz": np.uint16(32768),
        }  # fmt: skip
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "qx"),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"], "dx"),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], "dw"),
            helper.make_node("MatMul", ["xf", "wf"], ["m"], "mm"),
            helper.make_node("QuantizeLinear", ["m", "ys", "yz"], ["yq"], "qy"),
            helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"], "dy"),
        ]
        return self.write(nodes, {"x": (T.FLOAT, [4, 64])}, {"y": (T.FLOAT, [4, 32])}, weights, opset=21)

    def two_entries(self):
        """A graph set of ``prefill`` (8 rows) and ``decode`` (1 row) over one weights file."""
        where = self.root / next(self._names)
        for name, rows in (("prefill", 8), ("decode", 1)):
            self.matmul(rows, where=where, name=name, external="weights.data", width=256)
            (where / "weights.data").rename(where / f"{name}.data")
        (where / "prefill.data").rename(where / "weights.data")
        (where / "decode.data").unlink()
        (where / "token.json").write_text(json.dumps({"asset": True}))
        GraphSet(where, {"prefill": "prefill.onnx", "decode": "decode.onnx"}, ("token.json",)).save()
        return where


@pytest.fixture(scope="session")
def graphs(tmp_path_factory):
    return Graphs(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def compiled(tmp_path):
    """Compile a graph set or file for a target; options by keyword."""
    numbers = itertools.count()

    def run(source, target="sm8650", **options):
        return compile_artifact("qnn_htp", source, tmp_path / f"out{next(numbers)}", target=target, options=options)

    return run
