"""Older runtimes, each in an environment made for it: the same code, two layouts of the device config, older binaries.

2.3.0 (QAIRT 2.47, core API 2.36) is the oldest supported; 2.5.0 (2.49) is the release whose device config differs.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from isthmus import open_device
from isthmus.errors import IncompatibleError

pytestmark = pytest.mark.slow

# onnxruntime-qnn -> the onnxruntime that takes it; None: the one installed.
WHEELS = {"2.3.0": "onnxruntime==1.27.*", "2.5.0": None}


@pytest.fixture(scope="module", params=WHEELS)
def old(request, tmp_path_factory):
    """Folder of an old wheel's libraries, and of contexts compiled with it."""
    target, out = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("old_contexts")
    wanted = [f"onnxruntime-qnn=={request.param}", *filter(None, [WHEELS[request.param]])]
    command = ["uv", "pip", "install", "--no-deps", "--python", sys.executable, "--target", str(target), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"unavailable here: {done.stderr[-300:]}")
    script = request.path.parent / "ort_contexts.py"
    subprocess.run(
        [sys.executable, script, out, "57", "fp32", "fp16", "u16", "u8", "step", "two"],
        env={"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"}, check=True, capture_output=True,
    )  # fmt: skip
    return target / "onnxruntime_qnn", out


@pytest.fixture(scope="module", params=["child", "in_process"])
def old_device(request, old):
    options = {"isolation": request.param, "library_dir": str(old[0]), "power": "burst"}
    with open_device("qnn_htp", options=options) as device:
        yield device


@pytest.mark.parametrize("name", ["fp32", "fp16", "u16", "u8", "step"])
def test_an_old_runtime_gives_the_bits_of_its_own_onnx_runtime(old, old_device, case, artifact, name):
    wanted = case(old[1], name)
    with old_device.load(artifact(wanted.binary)) as program:
        got = program.run("main", wanted.inputs)
    for key, value in wanted.outputs.items():
        np.testing.assert_array_equal(got[key], value)


def test_two_graphs_of_one_context_run_on_an_old_runtime(old, old_device, case, artifact):
    wanted = case(old[1], "two")
    with old_device.load(artifact(wanted.binary, ("first", "second"))) as program:
        np.testing.assert_array_equal(program.run("first", {"x": wanted.inputs["x"]})["a"], wanted.outputs["a"])
        np.testing.assert_array_equal(program.run("second", {"b": wanted.outputs["b"]})["c"], wanted.outputs["c"])


def test_an_old_runtime_refuses_a_newer_binary_with_both_versions(old_device, contexts, case, artifact):
    newer = artifact(case(contexts, "fp32").binary)
    with pytest.raises(IncompatibleError, match=r"compiled with QNN v2\.\d+\.\d+\S*, the runtime is v2\.\d+"):
        old_device.load(newer)


def test_the_newest_runtime_runs_an_old_binary(old, device, case, artifact):
    wanted = case(old[1], "fp32")
    with device.load(artifact(wanted.binary)) as program:
        np.testing.assert_array_equal(program.run("main", wanted.inputs)["y"], wanted.outputs["y"])


def test_an_old_runtime_profiles_and_states_its_memory(old, old_device, case, artifact):
    wanted = case(old[1], "step")
    made = artifact(wanted.binary)
    assert old_device.memory_requirements(made).weights > 0
    with old_device.load(made) as program:
        inputs = {k: old_device.allocate(v.nbytes) for k, v in wanted.inputs.items()}
        outputs = {k: old_device.allocate(v.nbytes) for k, v in wanted.outputs.items()}
        with program.bind("main", inputs, outputs) as binding:
            assert any(event.node for event in binding.profile())
    for buffer in (*inputs.values(), *outputs.values()):
        buffer.close()


def test_the_conformance_suite_passes_with_an_old_wheel(old, tmp_path):
    """It compiles and runs with that wheel, which goes in front of the one installed."""
    wheel = str(old[0].parent)
    environment = {**os.environ, "PYTHONPATH": wheel, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "isthmus.cli.main", "conformance", "--backend", "qnn_htp"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
