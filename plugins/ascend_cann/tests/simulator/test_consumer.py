"""An independent consumer: ONNX Runtime's own CANN provider, as published, runs models on the simulator.

The provider knows nothing of this project. It links to AscendCL, and to a graph engine of which `consumer/` has the
eight symbols it calls; those compile with the simulated atc.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from isthmus_ascend_cann.simulator import atc_command

HERE = Path(__file__).parent / "consumer"
PROVIDER = "onnxruntime-cann==1.24.4"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of an environment that has the provider."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("unavailable here: uv")
    root = tmp_path_factory.mktemp("environment") / "venv"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([uv, "venv", "-q", "--python", version, str(root)], check=True)
    command = [uv, "pip", "install", "-q", "--python", str(root / "bin" / "python"), PROVIDER, "numpy<2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"unavailable here: {done.stderr.strip().splitlines()[-1]}")
    return root / "bin" / "python"


@pytest.fixture(scope="module")
def libraries(sim_path, tmp_path_factory) -> Path:
    """A directory with every shared object that the provider asks for."""
    directory = tmp_path_factory.mktemp("libraries")
    (directory / sim_path.name).symlink_to(sim_path)
    for name, source in (("libfmk_onnx_parser.so", "graph_engine.cpp"), ("libacl_op_compiler.so", "op_compiler.cpp")):
        flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{name}"]
        subprocess.run(["c++", *flags, str(HERE / source), "-o", str(directory / name)], check=True)
    return directory


@pytest.fixture
def session(python, libraries, linear_model, tmp_path):
    onnx.save(linear_model[0], str(tmp_path / "m.onnx"))

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(python), str(HERE / "session.py"), "m.onnx", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(libraries),
                "SIMULATED_ATC": " ".join(atc_command()),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "least", "most"), [("must_keep_origin_dtype", 0, 1e-5), ("force_fp16", 1e-4, 5e-2)])
def test_the_cann_provider_of_onnx_runtime_runs_on_the_simulator(session, mode, least, most):
    done = session(mode)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["providers"][0] == "CANNExecutionProvider"
    assert least <= max(result["errors"]) < most
    assert "simulated Ascend910B4" in done.stderr


@pytest.mark.slow
def test_it_meets_a_full_device_as_it_would_a_real_one(session):
    done = session(ISTHMUS_ASCEND_SIM_CAPACITY="4K")
    assert done.returncode != 0
    assert "CANN failure" in done.stderr
    assert "aclrtMalloc" in done.stderr or "aclmdlLoadFromMem" in done.stderr
