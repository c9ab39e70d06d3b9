"""A compilation that is interrupted: its process ends and nothing half-made stays."""

import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from isthmus_qnn_htp.compile_job import ANSWER
from onnx import TensorProto as T
from onnx import helper

COMPILE = "import sys, isthmus; isthmus.compile('qnn_htp', sys.argv[1], sys.argv[2], target='sm8650')"


@pytest.fixture
def compiling(graphs, tmp_path):
    """A process that compiles something long into ``tmp_path/work/out``, and the compiler it has started."""
    rng, nodes, weights, x = np.random.default_rng(0), [], {}, "x"
    for i in range(60):
        weights[f"w{i}"] = rng.standard_normal((128, 128)).astype(np.float32) / 12
        nodes += [helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]), helper.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        x = f"t{i}"
    path = graphs.write(nodes, {"x": (T.FLOAT, [32, 128])}, {x: (T.FLOAT, [32, 128])}, weights)
    (tmp_path / "work").mkdir()
    parent = subprocess.Popen([sys.executable, "-c", COMPILE, path, tmp_path / "work" / "out"], stderr=subprocess.PIPE)
    compiler = None
    while compiler is None:
        assert parent.poll() is None, parent.stderr.read()
        compiler = next(iter(psutil.Process(parent.pid).children()), None)
        time.sleep(0.01)
    yield parent, compiler
    parent.kill()
    parent.wait()
    parent.stderr.close()


def test_ctrl_c_ends_the_compiler_and_leaves_nothing(compiling, tmp_path):
    parent, compiler = compiling
    parent.send_signal(signal.SIGINT)
    assert parent.wait() != 0
    assert not compiler.is_running()
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.slow
def test_a_compiler_whose_parent_is_killed_ends_early(compiling, tmp_path):
    parent, compiler = compiling
    parent.kill()
    parent.wait()
    psutil.wait_procs([compiler])
    assert not list((tmp_path / "work").rglob(ANSWER)), "it compiled to the end"
