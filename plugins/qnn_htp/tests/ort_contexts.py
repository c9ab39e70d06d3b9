"""Makes context binaries, and their results, with ONNX Runtime's QNN EP: ``python ort_contexts.py OUT SOC [CASE ...]``.

Its own process: the SoC setting of the EP leaks between sessions. Per case: CASE.onnx, a context binary beside
CASE_ctx.onnx, and CASE.npz with inputs (in_NAME) and what the EP computed from them (out_NAME).
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

OUT, SOC, CASES = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
DTYPES = {T.FLOAT: np.float32, T.FLOAT16: np.float16, T.UINT16: np.uint16, T.UINT8: np.uint8, T.INT32: np.int32}


def value(name, dtype, shape):
    return h.make_tensor_value_info(name, dtype, shape)


def weights(shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])).astype(dtype)


def model(name, nodes, inputs, outputs, constants):
    graph = h.make_graph(nodes, name, inputs, outputs, [numpy_helper.from_array(v, k) for k, v in constants.items()])
    made = h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    onnx.save(made, OUT / f"{name}.onnx")
    return made


def matmul(name, dtype):
    nodes = [h.make_node("MatMul", ["x", "w"], ["m"], "mm"), h.make_node("Relu", ["m"], ["y"], "relu")]
    constants = {"w": weights((64, 32), DTYPES[dtype])}
    return model(name, nodes, [value("x", dtype, [2, 64])], [value("y", dtype, [2, 32])], constants)


def quantized(name, dtype):
    """uint8 or uint16 activations, int8 weights; quantised inputs and outputs."""
    kind = DTYPES[dtype]
    top, w = np.iinfo(kind).max, weights((64, 32))
    step = np.float32(np.abs(w).max() / 127)
    constants = {
        "wq": np.clip(np.round(w / step), -127, 127).astype(np.int8), "ws": step, "wz": np.int8(0),
        "xs": np.float32(8 / top), "xz": kind((top + 1) // 2), "ys": np.float32(10 / top), "yz": kind((top + 1) // 2),
    }  # fmt: skip
    nodes = [
        h.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        h.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wf"]),
        h.make_node("MatMul", ["xf", "wf"], ["yf"]),
        h.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
    ]
    constants = {k: np.asarray(v) for k, v in constants.items()}
    return model(name, nodes, [value("x", dtype, [4, 64])], [value("y", dtype, [4, 32])], constants)


def cache_step(name, rows, past, width):
    """A step of attention over a cache: two inputs, two outputs, the second as long as the rows."""
    nodes = [
        h.make_node("MatMul", ["h", "w"], ["m"], "mm"),
        h.make_node("Tanh", ["m"], ["new"], "th"),
        h.make_node("Concat", ["cache", "new"], ["all"], "cat", axis=0),
        h.make_node("Transpose", ["all"], ["allt"], "tr", perm=[1, 0]),
        h.make_node("MatMul", ["new", "allt"], ["score"], "qk"),
        h.make_node("Softmax", ["score"], ["p"], "sm", axis=-1),
        h.make_node("MatMul", ["p", "all"], ["out"], "pv"),
    ]
    inputs = [value("h", T.FLOAT, [rows, width]), value("cache", T.FLOAT, [past, width])]
    outputs = [value("out", T.FLOAT, [rows, width]), value("new", T.FLOAT, [rows, width])]
    return model(name, nodes, inputs, outputs, {"w": weights((width, width))})


def gather(name):
    """A float tensor and an int32 index."""
    nodes = [
        h.make_node("Gather", ["x", "last"], ["row"], "g", axis=0),
        h.make_node("MatMul", ["row", "w"], ["y"], "mm"),
    ]
    inputs = [value("x", T.FLOAT, [8, 64]), value("last", T.INT32, [1])]
    return model(name, nodes, inputs, [value("y", T.FLOAT, [1, 32])], {"w": weights((64, 32))})


def two_graphs(name):
    """Two graphs in one context, without shared weights: an op that HTP lacks stands between them."""
    nodes = [
        h.make_node("MatMul", ["x", "w1"], ["a"], "mm1"),
        h.make_node("Hardmax", ["a"], ["b"], "host", axis=-1),
        h.make_node("MatMul", ["b", "w2"], ["c"], "mm2"),
    ]
    outputs = [value("a", T.FLOAT, [2, 32]), value("b", T.FLOAT, [2, 32]), value("c", T.FLOAT, [2, 16])]
    constants = {"w1": weights((64, 32)), "w2": weights((32, 16))}
    return model(name, nodes, [value("x", T.FLOAT, [2, 64])], outputs, constants)


MAKERS = {
    "fp32": lambda n: matmul(n, T.FLOAT),
    "fp16": lambda n: matmul(n, T.FLOAT16),
    "u16": lambda n: quantized(n, T.UINT16),
    "u8": lambda n: quantized(n, T.UINT8),
    "step": lambda n: cache_step(n, 4, 28, 64),
    "long": lambda n: cache_step(n, 64, 4032, 256),
    "gather": gather,
    "two": two_graphs,
}


def session(path, **entries):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for key, text in entries.items():
        options.add_session_config_entry(key.replace("__", "."), text)
    device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNN")
    options.add_provider_for_devices([device], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": SOC})
    return ort.InferenceSession(path, options)


def sample(info, rng):
    if info.type == "tensor(int32)":
        return np.full(info.shape, 3, np.int32)
    if info.type.startswith("tensor(uint"):
        return rng.integers(0, 255, info.shape).astype(info.type[7:-1])
    return rng.standard_normal(info.shape).astype(np.float16 if "16" in info.type else np.float32)


def build(name):
    MAKERS[name](name)
    context = OUT / f"{name}_ctx.onnx"
    only_htp = {} if name == "two" else {"session__disable_cpu_ep_fallback": "1"}
    session(OUT / f"{name}.onnx", ep__context_enable="1", ep__context_file_path=str(context), **only_htp)
    run = session(context, **only_htp)
    rng = np.random.default_rng(7)
    inputs = {info.name: sample(info, rng) for info in run.get_inputs()}
    names = [info.name for info in run.get_outputs()]
    results = dict(zip(names, run.run(names, inputs)))
    np.savez(
        OUT / f"{name}.npz",
        **{f"in_{k}": v for k, v in inputs.items()},
        **{f"out_{k}": v for k, v in results.items()},
    )


def build_shared():
    """prefill and decode in one binary with shared weights, which the emulator cannot load."""
    cache_step("shared_prefill", 8, 24, 64)
    cache_step("shared_decode", 1, 24, 64)
    for name, last in (("shared_prefill", {}), ("shared_decode", {"ep__stop_share_ep_contexts": "1"})):
        path = str(OUT / f"{name}_ctx.onnx")
        entries = {"ep__context_enable": "1", "ep__context_file_path": path, "ep__share_ep_contexts": "1", **last}
        session(OUT / f"{name}.onnx", **entries)


ort.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
for case in CASES or MAKERS:
    build_shared() if case == "shared" else build(case)
