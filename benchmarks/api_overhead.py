"""What the API adds to a call of ONNX Runtime: one JSON object on stdout.

    python benchmarks/api_overhead.py [--rounds 400] [--calls 20]

One graph with two inputs and two outputs, one thread. The variants run in turn within every round, so that whatever
else the machine does falls on all of them; a round's figure is the mean of its calls, the result the median of the
rounds. `binding` and `driver` run on the very session and I/O binding that `raw` runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import onnx
import onnxruntime
from isthmus import compile, open_device
from onnx import TensorProto, helper

LIMIT_US = 10.0


def write_graph(path: Path) -> None:
    io = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in ("a", "b", "sum", "gap")}
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["gap"])]
    graph = helper.make_graph(nodes, "graph", [io["a"], io["b"]], [io["sum"], io["gap"]])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def measure(variants: dict[str, Callable[[], None]], rounds: int, calls: int) -> dict[str, float]:
    """Median microseconds per call of each variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for n in range(rounds + 10):
        for name, call in variants.items():
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            if n >= 10:  # the first rounds warm up
                times[name].append((time.perf_counter_ns() - start) / calls / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def run(directory: Path, rounds: int, calls: int) -> dict[str, object]:
    write_graph(directory / "graph.onnx")
    artifact = compile("cpu", directory / "graph.onnx", directory / "artifact")
    with ExitStack() as stack:
        device = stack.enter_context(open_device("cpu", options={"threads": 1}))
        program = stack.enter_context(device.load(artifact))
        buffers = {name: stack.enter_context(device.allocate(256)) for name in ("a", "b", "sum", "gap")}
        for name in ("a", "b"):
            buffers[name].write(bytes(256))
        inputs, outputs = ({n: buffers[n] for n in names} for names in (("a", "b"), ("sum", "gap")))
        binding = program.bind("main", inputs, outputs)
        bound, driver = binding._handle, device._ledger.driver
        session, io = bound.session, bound.io
        addresses = {name: buffers[name]._region.handle.address for name in buffers}

        def raw_one_shot() -> None:
            fresh = session.io_binding()
            for name in inputs:
                fresh.bind_input(name, "cpu", 0, TensorProto.FLOAT, [1, 64], addresses[name])
            for name in outputs:
                fresh.bind_output(name, "cpu", 0, TensorProto.FLOAT, [1, 64], addresses[name])
            session.run_with_iobinding(fresh)

        medians = measure(
            {
                "raw": lambda: session.run_with_iobinding(io),
                "driver": lambda: driver.execute(bound),
                "binding": binding.execute,
                "raw_one_shot": raw_one_shot,
                "program": lambda: program.execute("main", inputs, outputs),
            },
            rounds,
            calls,
        )
        binding.close()
    added = medians["binding"] - medians["driver"]
    return {
        "onnxruntime": onnxruntime.__version__,
        "us": {name: round(value, 2) for name, value in medians.items()},
        "added_us": {
            "driver over raw": round(medians["driver"] - medians["raw"], 2),
            "binding over driver": round(added, 2),
            "binding over raw": round(medians["binding"] - medians["raw"], 2),
            "program over raw bind and run": round(medians["program"] - medians["raw_one_shot"], 2),
        },
        "ratio": {
            "binding / raw": round(medians["binding"] / medians["raw"], 3),
            "program / raw bind and run": round(medians["program"] / medians["raw_one_shot"], 3),
        },
        "limit_us": LIMIT_US,
        "within_limit": added <= LIMIT_US,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calls", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(run(Path(directory), arguments.rounds, arguments.calls), indent=1))


if __name__ == "__main__":
    main()
