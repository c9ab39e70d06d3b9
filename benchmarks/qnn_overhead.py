"""Overhead of one ``execute`` of backend qnn_htp, against ONNX Runtime with IO binding on the same context binary.

    python benchmarks/qnn_overhead.py [--rounds 60] [--json FILE]

Three ways to run one small context take turns, 50 calls each per round, so that a busy machine slows them alike: ``ort``
(``run_with_iobinding`` of the QNN EP), ``ours`` (isolation=in_process) and ``child`` (the default). Reported per graph:
medians over the rounds of the time per call, of the ratio ours/ort and of the difference child - ours. On x86 all three
run the emulator: the ratio and the difference mean something, the times do not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import isthmus
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_qnn
from isthmus_qnn_htp.layout import read_program
from onnx import TensorProto, helper, numpy_helper

CALLS = 50
TARGET, SOC = "sm8650", "57"
Array = np.ndarray[Any, Any]


def matmul(path: Path, kind: int, dtype: type) -> Path:
    """[1,64] x [64,32], then ReLU: what is measured is the call, not the work."""
    weights = (np.random.default_rng(0).standard_normal((64, 32)) / 8).astype(dtype)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [1, 64]), ("y", [1, 32])))
    graph = helper.make_graph(nodes, "matmul", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def wrap(artifact: isthmus.Artifact, folder: Path, kind: int) -> Path:
    """An ONNX file that makes ONNX Runtime load the artifact's own context binary."""
    ((file, record),) = read_program(artifact).binaries.items()
    (name,) = record.graphs
    folder.mkdir()
    shutil.copyfile(artifact.file(file), folder / file)
    node = helper.make_node(
        "EPContext", ["x"], ["y"], name, domain="com.microsoft",
        main_context=1, embed_mode=0, ep_cache_context=file, partition_name=name, source="QNN",
    )  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [1, 64]), ("y", [1, 32])))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "context.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "wrap", [x], [y]), opset_imports=opsets, ir_version=9), path)
    return path


def ours(device: isthmus.Device, artifact: isthmus.Artifact, x: Array, closing: ExitStack) -> tuple[Any, Any]:
    """Our execute, and a function that reads its result."""
    program = closing.enter_context(device.load(artifact))
    (source,), (result,) = program.entries["main"].inputs, program.entries["main"].outputs
    given, got = (closing.enter_context(device.allocate(spec.nbytes)) for spec in (source, result))
    given.write(x)
    binding = closing.enter_context(program.bind("main", {"x": given}, {"y": got}))
    return binding.execute, lambda: bytes(got.read(result.nbytes))


def theirs(path: Path, x: Array) -> tuple[Any, Any]:
    """The same of ONNX Runtime."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    device = next(d for d in ort.get_ep_devices() if d.ep_name == "QNN")
    settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": SOC}
    options.add_provider_for_devices([device], settings)
    session = ort.InferenceSession(path, options)
    result = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 32), x.dtype))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", result)
    return lambda: session.run_with_iobinding(binding), lambda: result.numpy().tobytes()


def microseconds(run: Callable[[], None]) -> float:
    """Of one call."""
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - start) / CALLS * 1e6


def measure(kind: int, dtype: type, rounds: int, folder: Path) -> dict[str, float]:
    """One graph, all three ways; they must agree in every bit."""
    x = np.random.default_rng(1).standard_normal((1, 64)).astype(dtype)
    artifact = isthmus.compile("qnn_htp", matmul(folder / "matmul.onnx", kind, dtype), folder / "a", target=TARGET)
    with ExitStack() as closing:
        here = closing.enter_context(isthmus.open_device("qnn_htp", options={"isolation": "in_process"}))
        there = closing.enter_context(isthmus.open_device("qnn_htp"))
        ways = {
            "ort": theirs(wrap(artifact, folder / "ort", kind), x),
            "ours": ours(here, artifact, x, closing),
            "child": ours(there, artifact, x, closing),
        }
        for run, _ in ways.values():
            microseconds(run)
        results = {name: read() for name, (_, read) in ways.items()}
        if len(set(results.values())) != 1:
            raise SystemExit("the three ways differ in their results")
        taken = [{name: microseconds(run) for name, (run, _) in ways.items()} for _ in range(rounds)]
    found = {f"{name}_us": statistics.median(t[name] for t in taken) for name in ways}
    found["ratio_ours_to_ort"] = statistics.median(t["ours"] / t["ort"] for t in taken)
    found["child_minus_ours_us"] = statistics.median(t["child"] - t["ours"] for t in taken)
    return found


def main() -> None:
    """Print one line per graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ort.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    cases = {"fp32": (TensorProto.FLOAT, np.float32), "fp16": (TensorProto.FLOAT16, np.float16)}
    report = {}
    for name, (kind, dtype) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            report[name] = measure(kind, dtype, arguments.rounds, Path(folder))
        print(name, "  ".join(f"{key} {value:.3f}" for key, value in report[name].items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
