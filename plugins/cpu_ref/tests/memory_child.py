"""Run by the tests: load and execute artifacts, each in a process of its own, and print how its memory grew.

Usage: memory_child.py WARM_UP ARTIFACT... ; prints {ARTIFACT: {MODE: {measured, predicted, weights}}}
MODE is packed, mapped or lent. Each process is forked after the imports, before ONNX Runtime has done anything. Pages of
shared libraries are left out: they are the runtime's code, which the first kernel of each kind touches.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime  # noqa: F401 - before the fork
from isthmus import Artifact, open_device


def resident() -> int:
    """Bytes resident in this process but for shared libraries."""
    total, counted = 0, True
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = ".so" not in line
        elif line.startswith("Rss:") and counted:
            total += int(line.split()[1]) * 1024
    return total


def use(device, artifact, *, lend):
    need = device.memory_requirements(artifact)
    weights = device.allocate(need.weights, alignment=need.alignment) if lend else None
    program = device.load(artifact, weights=weights)
    for name, entry in program.entries.items():
        inputs, outputs = (
            {s.name: device.allocate(s.nbytes) for s in specs} for specs in (entry.inputs, entry.outputs)
        )
        for spec in entry.inputs:
            inputs[spec.name].write(np.zeros(spec.shape, spec.dtype.numpy))
        binding = program.bind(name, inputs, outputs)
        for _ in range(3):
            binding.execute()
    return need


def measure(warm_up, artifact, mode):
    options = {"prepack": "off" if mode == "mapped" else "auto", "threads": 1}
    with open_device("cpu", options=options) as device:
        use(device, warm_up, lend=False)
        before = resident()
        need = use(device, artifact, lend=mode == "lent")
        grown = resident() - before
    load = need.weights + need.caller_load if mode == "lent" else need.own_load
    return {"measured": grown, "predicted": load + sum(need.io.values()), "weights": need.weights}


def in_fork(*arguments):
    source, sink = os.pipe()
    if os.fork() == 0:
        os.write(sink, json.dumps(measure(*arguments)).encode())
        os._exit(0)
    os.close(sink)
    with open(source) as answer:  # noqa: PTH123 - a pipe
        result = json.loads(answer.read())
    os.wait()
    return result


def main() -> None:
    warm_up, *artifacts = sys.argv[1:]
    print(
        json.dumps(
            {
                path: {
                    mode: in_fork(Artifact.open(warm_up), Artifact.open(path), mode)
                    for mode in ("packed", "mapped", "lent")
                }
                for path in artifacts
            }
        )
    )


if __name__ == "__main__":
    main()
