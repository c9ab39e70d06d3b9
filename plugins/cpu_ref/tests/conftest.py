"""Small ONNX models, compiled by the real backend."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from isthmus import compile as compile_artifact
from isthmus import open_device
from isthmus.graphset import GraphSet
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


class Models:
    """Writes models below a directory and compiles them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = (f"{n}" for n in itertools.count())

    def write(self, nodes, inputs, outputs, weights=None, *, name="graph", where=None, opset=17, external=True) -> Path:
        """An ``.onnx`` file. ``inputs`` and ``outputs`` map names to (element type, shape), ``weights`` to arrays."""
        directory = where or self.root / next(self._names)
        directory.mkdir(exist_ok=True, parents=True)

        def infos(tensors):
            return [helper.make_tensor_value_info(key, *value) for key, value in tensors.items()]

        tensors = [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()]
        graph = helper.make_graph(nodes, "graph", infos(inputs), infos(outputs), tensors)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        path = directory / f"{name}.onnx"
        location = {"save_as_external_data": True, "location": f"{name}.data", "size_threshold": 256}
        onnx.save(model, path, **(location if external and weights else {}))
        return path

    def mlp(self, *, rows=4, width=32, layers=2, dtype=np.float32, seed=0, name="graph", where=None) -> Path:
        """x -> (MatMul, Add, Relu) * layers -> y, both [rows, width]."""
        rng = np.random.default_rng(seed)
        weights, nodes, x = {}, [], "x"
        for i in range(layers):
            weights[f"w{i}"] = (rng.standard_normal((width, width)) / width**0.5).astype(dtype)
            weights[f"b{i}"] = rng.standard_normal(width).astype(dtype)
            y = "y" if i == layers - 1 else f"y{i}"
            nodes += [
                helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"], name=f"matmul{i}"),
                helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], name=f"add{i}"),
                helper.make_node("Relu", [f"a{i}"], [y], name=f"relu{i}"),
            ]
            x = y
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        io = (kind, [rows, width])
        return self.write(nodes, {"x": io}, {"y": io}, weights, name=name, where=where)

    def attention(self, *, tokens=577, heads=8, width=512) -> Path:
        """One attention block whose scores outweigh its weights."""
        rng = np.random.default_rng(0)
        weights = {k: (rng.standard_normal((width, width)) / width**0.5).astype(np.float32) for k in "qkvo"}
        weights["split"] = np.array([1, tokens, heads, width // heads])
        weights["join"] = np.array([1, tokens, width])
        node, nodes = helper.make_node, []
        for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes += [
                node("MatMul", ["x", part], [f"{part}1"]),
                node("Reshape", [f"{part}1", "split"], [f"{part}2"]),
                node("Transpose", [f"{part}2"], [f"{part}3"], perm=perm),
            ]
        nodes += [
            node("MatMul", ["q3", "k3"], ["scores"]),
            node("Softmax", ["scores"], ["probs"], axis=-1),
            node("MatMul", ["probs", "v3"], ["mix"]),
            node("Transpose", ["mix"], ["mixed"], perm=[0, 2, 1, 3]),
            node("Reshape", ["mixed", "join"], ["joined"]),
            node("MatMul", ["joined", "o"], ["y"]),
        ]
        io = (FLOAT, [1, tokens, width])
        return self.write(nodes, {"x": io}, {"y": io}, weights)

    def quantized(self, *, width=256, accuracy_level=4) -> Path:
        """One MatMulNBits of 4 bits, whose weights are always packed."""
        rng = np.random.default_rng(0)
        weights = {
            "w": rng.integers(0, 255, (width, width // 32, 16)).astype(np.uint8),
            "s": np.full(width * (width // 32), 0.01, np.float32),
        }
        attributes = {"K": width, "N": width, "bits": 4, "block_size": 32, "accuracy_level": accuracy_level}
        node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
        return self.write([node], {"x": (FLOAT, [2, width])}, {"y": (FLOAT, [2, width])}, weights)

    def graph_set(self, files) -> GraphSet:
        """A graph set with an entry per file, all in one directory."""
        graphs = {entry: path.name for entry, path in files.items()}
        graph_set = GraphSet(next(iter(files.values())).parent, graphs)
        graph_set.save()
        return graph_set

    def compile(self, source, *, target="host", **options):
        """Compile to a new artifact."""
        return compile_artifact("cpu", source, self.root / next(self._names), target=target, options=options)


@pytest.fixture
def models(tmp_path) -> Models:
    return Models(tmp_path)


@pytest.fixture(scope="module")
def module_models(tmp_path_factory) -> Models:
    """For models that several tests of a module share."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def kept() -> list:
    """Buffers put here live until the device has closed them."""
    return []


@pytest.fixture
def cpu(kept):
    with open_device("cpu", options={"threads": 1}) as device:
        yield device


@pytest.fixture
def reference():
    with open_device("cpu:reference") as device:
        yield device


@pytest.fixture(scope="session")
def in_child():
    """Run a script of this directory, or code, in a process of its own; its last line of output, read as JSON."""

    def run(script, *arguments):
        path = Path(__file__).parent / script if script.endswith(".py") else None
        command = [str(path)] if path else ["-c", script]
        done = subprocess.run(
            [sys.executable, *command, *map(str, arguments)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
