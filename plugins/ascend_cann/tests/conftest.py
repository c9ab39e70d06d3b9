"""Graphs, artifacts and the simulator's controls, shared by the tests of this plugin."""

from __future__ import annotations

import contextlib
import ctypes
import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import isthmus
import numpy as np
import onnx
import pytest
from isthmus.artifact import Artifact
from isthmus.errors import UnavailableError
from isthmus.graphset import GraphSet
from isthmus_ascend_cann import _lib, atc
from onnx import TensorProto, helper, numpy_helper

CAPACITY = 1 << 30
HUGE = 1 << 29


class Simulator:
    """The simulator's own exports."""

    def __init__(self, dll: ctypes.CDLL) -> None:
        self._dll = dll
        for name in ("used", "used_huge", "page_size", "allocations", "live", "calls"):
            getattr(dll, f"isthmus_sim_{name}").restype = ctypes.c_uint64
        dll.isthmus_sim_list.restype = ctypes.c_size_t
        dll.isthmus_sim_list.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    def memory(self, capacity: int = CAPACITY, huge: int = HUGE, giant: int = 0) -> None:
        self._dll.isthmus_sim_set_memory(ctypes.c_uint64(capacity), ctypes.c_uint64(huge), ctypes.c_uint64(giant))

    def devices(self, count: int) -> None:
        self._dll.isthmus_sim_set_devices(ctypes.c_uint32(count))

    def soc(self, name: str) -> None:
        self._dll.isthmus_sim_set_soc(name.encode())

    def run_mode(self, on_device: bool) -> None:
        self._dll.isthmus_sim_set_run_mode(int(on_device))

    def execute_delay(self, microseconds: int) -> None:
        self._dll.isthmus_sim_set_execute_delay(ctypes.c_uint32(microseconds))

    def fail(self, function: str, call: int, error: int = 507899) -> None:
        assert self._dll.isthmus_sim_fail(function.encode(), ctypes.c_uint64(call), error), function

    def calls(self, function: str) -> int:
        return int(self._dll.isthmus_sim_calls(function.encode()))

    def reset(self) -> None:
        self._dll.isthmus_sim_reset_rules()

    def used(self, device: int = 0) -> int:
        return int(self._dll.isthmus_sim_used(device))

    def allocations(self) -> int:
        return int(self._dll.isthmus_sim_allocations())

    def live(self) -> int:
        """Live handles of all kinds."""
        return int(self._dll.isthmus_sim_live())

    def listing(self) -> list[str]:
        """Live handles, one a line."""
        size = self._dll.isthmus_sim_list(None, 0) + 1
        text = ctypes.create_string_buffer(size)
        self._dll.isthmus_sim_list(text, size)
        return sorted(text.value.decode().splitlines())


@pytest.fixture(scope="session")
def loaded_simulator() -> Simulator:
    try:
        acl = _lib.library(True)
    except UnavailableError as error:
        pytest.skip(f"unavailable here: {error.what}")
    return Simulator(acl._dll)


@pytest.fixture
def simulator(loaded_simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """The simulator, named, with 1 GiB of which half comes in huge pages; nothing may be left behind."""
    monkeypatch.setenv(_lib.SIMULATOR_VARIABLE, "1")
    loaded_simulator.reset()
    loaded_simulator.memory()
    loaded_simulator.devices(1)
    loaded_simulator.soc("Ascend910B4")
    yield loaded_simulator
    loaded_simulator.reset()
    loaded_simulator.memory()
    loaded_simulator.run_mode(False)
    loaded_simulator.execute_delay(0)
    assert loaded_simulator.listing() == []


@pytest.fixture
def atc_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the simulated atc instead of starting it: each start imports onnx anew. `test_compile` starts it."""

    def run(tool: Any, flags: Sequence[str], *, directory: Path, log: Path, **_: object) -> None:
        from isthmus_ascend_cann.simulator.atc.__main__ import main

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.chdir(directory):
            code = main(list(flags))
        log.write_text(said.getvalue())
        assert code == 0, said.getvalue()

    monkeypatch.setattr(atc, "run", run)


@pytest.fixture
def device(simulator: Simulator) -> Iterator[isthmus.Device]:
    with isthmus.open_device("ascend") as opened:
        yield opened


def matmul(
    path: Path,
    *,
    rows: int | str = 4,
    inner: int = 64,
    columns: int = 64,
    seed: int = 0,
    opset: int = 17,
    op: str = "Sigmoid",
) -> np.ndarray:
    """Write y = op(x @ w); returns w."""
    weights = (np.random.default_rng(seed).standard_normal((inner, columns)) / 8).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "mm"), helper.make_node(op, ["h"], ["y"], "last")],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return weights


@pytest.fixture
def graph(tmp_path: Path) -> Callable[..., Path]:
    """Write y = Sigmoid(x @ w) and return the file."""

    def write(name: str = "main.onnx", **about: object) -> Path:
        matmul(tmp_path / name, **about)  # type: ignore[arg-type]
        return tmp_path / name

    return write


@pytest.fixture
def graphset(tmp_path: Path) -> Callable[..., GraphSet]:
    """A graph set with one entry per seed; equal seeds are equal weights."""

    def write(seeds: Sequence[int] = (0, 0), rows: Sequence[int] = (8, 1), **about: object) -> GraphSet:
        directory = tmp_path / "graphs"
        directory.mkdir()
        names = ["prefill", "decode", "vision", "other"][: len(seeds)]
        for name, seed, count in zip(names, seeds, rows):
            matmul(directory / f"{name}.onnx", rows=count, seed=seed, **about)  # type: ignore[arg-type]
        made = GraphSet(directory, {n: f"{n}.onnx" for n in names})
        made.save()
        return made

    return write


@pytest.fixture(scope="session")
def plain_artifact(tmp_path_factory: pytest.TempPathFactory, loaded_simulator: Simulator) -> Artifact:
    """One entry ``main``, y = Sigmoid(x @ w), 2 MiB of float16 weights; compiled once."""
    directory = tmp_path_factory.mktemp("plain")
    matmul(directory / "main.onnx", inner=1024, columns=1024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_lib.SIMULATOR_VARIABLE, "1")
        return isthmus.compile("ascend", directory / "main.onnx", directory / "artifact")


@pytest.fixture(scope="session")
def geared_artifact(tmp_path_factory: pytest.TempPathFactory, loaded_simulator: Simulator) -> Artifact:
    """External weights and gears of 1 and 2 rows: most functions of AscendCL have a part in running it."""
    directory = tmp_path_factory.mktemp("geared")
    matmul(directory / "main.onnx", rows="n")
    options = {"input_shape": "x:-1,64", "dynamic_batch_size": "1,2", "external_weight": "files"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_lib.SIMULATOR_VARIABLE, "1")
        return isthmus.compile("ascend", directory / "main.onnx", directory / "artifact", options=options)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Artifact], Path]:
    """A copy of an artifact that may be damaged."""

    def copy(artifact: Artifact) -> Path:
        return Path(shutil.copytree(artifact.path, tmp_path / "copy"))

    return copy
