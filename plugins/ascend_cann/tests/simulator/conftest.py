"""A small harness that calls the simulated library as a C program would: no binding of the product in between."""

from __future__ import annotations

import ctypes as ct
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from isthmus_ascend_cann.simulator import library
from isthmus_ascend_cann.simulator._build import OWN_HEADERS
from isthmus_ascend_cann.simulator.atc import flags
from isthmus_ascend_cann.simulator.atc.compiler import compile_model
from onnx import TensorProto, helper, numpy_helper

H2D, D2H, D2D = 1, 2, 3
HUGE_FIRST, HUGE_ONLY, NORMAL_ONLY = 0, 1, 2
SIZE = ct.c_size_t
POINTERS = {
    "aclCreateDataBuffer",
    "aclmdlCreateDataset",
    "aclmdlCreateDesc",
    "aclmdlCreateConfigHandle",
    "aclGetDataBufferAddr",
    "aclmdlGetDatasetBuffer",
    "aclmdlGetDatasetTensorDesc",
    "aclCreateTensorDesc",
}
SIZES = {
    "aclmdlGetNumInputs",
    "aclmdlGetNumOutputs",
    "aclmdlGetInputSizeByIndex",
    "aclmdlGetOutputSizeByIndex",
    "aclGetDataBufferSizeV2",
    "aclGetTensorDescNumDims",
    "isthmus_sim_used",
    "isthmus_sim_used_huge",
    "isthmus_sim_page_size",
    "isthmus_sim_allocations",
    "isthmus_sim_live",
    "isthmus_sim_calls",
}
TEXTS = {
    "aclGetRecentErrMsg",
    "aclrtGetSocName",
    "aclmdlGetInputNameByIndex",
    "aclmdlGetOutputNameByIndex",
    "aclmdlGetTensorRealName",
    "isthmus_sim_version",
}


class Sim:
    """The library with a device set. ``sim.aclX(...)`` returns the raw result, ``sim.ok("aclX", ...)`` insists on 0."""

    def __init__(self, path: Path) -> None:
        self.lib = ct.CDLL(str(path))
        for names, result in ((POINTERS, ct.c_void_p), (SIZES, ct.c_size_t), (TEXTS, ct.c_char_p)):
            for name in names:
                getattr(self.lib, name).restype = result
        self.baseline = int(self.lib.isthmus_sim_live())

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.lib, name)

        def call(*arguments: Any) -> Any:
            return function(*[_convert(a) for a in arguments])

        return call

    def ok(self, name: str, *arguments: Any) -> None:
        code = getattr(self, name)(*arguments)
        assert code == 0, (name, code, self.text())

    def text(self) -> str:
        return (self.lib.aclGetRecentErrMsg() or b"").decode()

    def live(self) -> int:
        """Handles made since the test began that are still live."""
        return int(self.lib.isthmus_sim_live()) - self.baseline

    def listing(self) -> str:
        """Live handles, one a line."""
        out = ct.create_string_buffer(1 << 16)
        self.lib.isthmus_sim_list(out, SIZE(len(out)))
        return out.value.decode()

    def malloc(self, size: int, policy: int = HUGE_FIRST) -> int:
        pointer = ct.c_void_p()
        self.ok("aclrtMalloc", ct.byref(pointer), size, policy)
        assert pointer.value
        return pointer.value

    def try_malloc(self, size: int, policy: int = HUGE_FIRST) -> tuple[int, int]:
        pointer = ct.c_void_p()
        code = self.aclrtMalloc(ct.byref(pointer), size, policy)
        return code, pointer.value or 0

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """A device copy of an array."""
        data = np.ascontiguousarray(array)
        pointer = self.malloc(max(data.nbytes, 1))
        self.ok("aclrtMemcpy", pointer, data.nbytes, data.ctypes.data, data.nbytes, H2D)
        return pointer

    def get(self, pointer: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """A host copy of device memory."""
        out = np.empty(shape, dtype)
        self.ok("aclrtMemcpy", out.ctypes.data, out.nbytes, pointer, out.nbytes, D2H)
        return out

    def load(self, path: Path) -> int:
        identity = ct.c_uint32()
        self.ok("aclmdlLoadFromFile", str(path).encode(), ct.byref(identity))
        return identity.value

    def query(self, path: Path) -> tuple[int, int]:
        work, weight = SIZE(), SIZE()
        self.ok("aclmdlQuerySize", str(path).encode(), ct.byref(work), ct.byref(weight))
        return work.value, weight.value

    def dataset(self, buffers: list[tuple[int, int]]) -> int:
        """A dataset over ``(address, size)`` pairs."""
        dataset = self.aclmdlCreateDataset()
        for address, size in buffers:
            self.ok("aclmdlAddDatasetBuffer", dataset, self.aclCreateDataBuffer(address, size))
        return int(dataset)

    def drop(self, dataset: int) -> None:
        """Destroy a dataset and its buffers, not the memory."""
        self.lib.aclmdlGetDatasetNumBuffers.restype = ct.c_size_t
        for index in range(self.aclmdlGetDatasetNumBuffers(dataset)):
            self.ok("aclDestroyDataBuffer", self.aclmdlGetDatasetBuffer(dataset, index))
        self.ok("aclmdlDestroyDataset", dataset)

    def run(
        self, model: int, inputs: list[np.ndarray[Any, Any]], shapes: list[tuple[int, ...]], dtype: Any = np.float32
    ) -> list[np.ndarray[Any, Any]]:
        """Copy in, execute, copy out, free."""
        ins = [(self.put(a), a.nbytes) for a in inputs]
        outs = [(self.malloc(n), n) for n in (int(np.prod(s)) * np.dtype(dtype).itemsize for s in shapes)]
        given, taken = self.dataset(ins), self.dataset(outs)
        try:
            self.ok("aclmdlExecute", model, given, taken)
            results = [self.get(a, s, dtype) for (a, _), s in zip(outs, shapes)]
        finally:
            self.drop(given)
            self.drop(taken)
        for address, _ in [*ins, *outs]:
            self.ok("aclrtFree", address)
        return results


def _convert(argument: Any) -> Any:
    """Python integers are pointers or sizes here: 64 bits; a callee that takes 32 reads the lower half."""
    return ct.c_uint64(argument & (2**64 - 1)) if isinstance(argument, int) else argument


@pytest.fixture(scope="session")
def sim_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled against our own declarations whatever is installed.

    A copy: the loader takes it for another library, so that the product's tests in this process have their own state.
    """
    return Path(shutil.copy(library(OWN_HEADERS), tmp_path_factory.mktemp("library")))


@pytest.fixture
def sim(sim_path: Path) -> Iterator[Sim]:
    """An initialised library with device 0 set and default knobs. The worker process serves all tests."""
    sim = Sim(sim_path)
    sim.isthmus_sim_reset_rules()
    sim.isthmus_sim_set_memory(1 << 30, 1 << 30, 1 << 30)
    sim.isthmus_sim_set_devices(1)
    sim.isthmus_sim_set_soc(b"Ascend910B4")
    sim.isthmus_sim_set_run_mode(0)
    assert sim.aclInit(None) in (0, 100002)
    sim.ok("aclrtSetDevice", 0)
    yield sim
    sim.isthmus_sim_reset_rules()
    sim.ok("aclrtResetDeviceForce", 0)
    assert sim.live() == 0, sim.listing()


Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_om(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Save a model and compile it in this process; returns the om."""

    def run(model: onnx.ModelProto | Path, **given: str) -> Path:
        directory = tmp_path_factory.mktemp("om")
        source = model if isinstance(model, Path) else directory / "m.onnx"
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, str(source))
        options = {"model": str(source), "output": str(directory / "m"), "soc_version": "Ascend910B4", **given}
        return compile_model(flags.parse(["--framework=5", *(f"--{k}={v}" for k, v in options.items())])).path

    return run


def _make(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, tuple[int, list[Any] | None]],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model from nodes and ``{name: (dtype, shape)}``."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, *spec) for n, spec in inputs.items()],
        [helper.make_tensor_value_info(n, *spec) for n, spec in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="session")
def make() -> Callable[..., onnx.ModelProto]:
    """Builds a model from nodes and ``{name: (dtype, shape)}`` of inputs, outputs, and constants."""
    return _make


def _linear(rows: int | str = 4) -> tuple[onnx.ModelProto, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """``y = x @ w + b`` with x [rows,64], w [64,32] and b [32]."""
    random = np.random.default_rng(0)
    w = random.standard_normal((64, 32)).astype(np.float32)
    b = random.standard_normal(32).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="mm"),
        helper.make_node("Add", ["m", "b"], ["y"], name="add"),
    ]
    model = _make(
        nodes, {"x": (TensorProto.FLOAT, [rows, 64])}, {"y": (TensorProto.FLOAT, [rows, 32])}, {"w": w, "b": b}
    )
    return model, w, b


@pytest.fixture
def linear_model() -> tuple[onnx.ModelProto, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The linear model as ONNX, w and b."""
    return _linear()


@pytest.fixture(scope="session")
def symbolic_linear() -> onnx.ModelProto:
    """The linear model with a symbol for its rows."""
    return _linear("n")[0]


Linear = tuple[Path, np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture(scope="session")
def linear(compile_om: Compile) -> Linear:
    """An om of the linear model in float32, and its weights."""
    model, w, b = _linear()
    return compile_om(model, precision_mode_v2="origin"), w, b


@pytest.fixture(scope="session")
def batches(compile_om: Compile) -> Linear:
    """The linear model with batch gears 1, 2 and 4."""
    model, w, b = _linear("n")
    path = compile_om(model, precision_mode_v2="origin", input_shape="x:-1,64", dynamic_batch_size="1,2,4")
    return path, w, b
