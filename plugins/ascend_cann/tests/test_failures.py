"""Every call that can fail is made to fail once, at every place it is made; nothing may leak and nothing may hang."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import isthmus
import numpy as np
import pytest
from isthmus.artifact import Artifact
from isthmus_ascend_cann import _abi, _lib

FUNCTIONS = sorted(
    name
    for name, (result, *_) in {**_abi.PROTOTYPES, **_abi.OPTIONAL}.items()
    if result in (_abi.aclError, _abi.aclCreated) and name not in ("aclInit", "aclFinalizeReference")
)
RELEASES = {
    "aclrtFree": "device memory",
    "aclrtFreeHost": "pinned host memory",
    "aclrtDestroyContext": "context",
    "aclrtDestroyStream": "stream",
    "aclrtDestroyEvent": "event",
    "aclrtResetDevice": "",
    "aclmdlUnload": "model",
    "aclmdlDestroyDesc": "model description",
    "aclmdlDestroyDataset": "dataset",
    "aclDestroyDataBuffer": "data buffer",
    "aclmdlDestroyConfigHandle": "model configuration",
}
"""What a failure of these leaves behind; all else must still be released."""


def story(simulator: Any, artifacts: Sequence[Artifact], left: list[str]) -> None:
    """All that a caller does. ``left`` gets what is still live when all but the device is closed, however that came."""
    with isthmus.open_device("ascend") as device:
        try:
            device.memory_info()
            for artifact in artifacts:
                use(device, artifact)
        finally:
            left += [s for s in simulator.listing() if not s.startswith(("context", "stream", "pinned host memory"))]


def use(device: isthmus.Device, artifact: Artifact) -> None:
    entry = next(iter(artifact.entries))
    spec = artifact.entries[entry]
    x = np.ones(spec.inputs[0].shape, np.float32)
    need = device.memory_requirements(artifact)
    device.load(artifact).close()
    with (
        device.allocate(need.weights, isthmus.Pages.PREFER_HUGE) as weights,
        device.load(artifact, weights=weights) as program,
        device.allocate(x.nbytes) as source,
        device.allocate(x.nbytes) as second,
        device.allocate(spec.outputs[0].nbytes) as result,
        program.bind(entry, {"x": source}, {"y": result}) as binding,
    ):
        source.write(x)
        with device.allocate(5 << 20) as large:
            large.write(bytes(5 << 20))
        second.view().copy_from(source)
        with ThreadPoolExecutor(1) as other:
            other.submit(binding.execute).result()
        binding.rebind({"x": second})
        binding.profile()
        result.read()


@attrs.define
class Outcome:
    """Whether a story got to its end, and what was live ahead of and after closing the device."""

    done: bool
    before_close: list[str]
    after_close: list[str]


def attempt(simulator: Any, *artifacts: Artifact) -> Outcome:
    """Run the story once."""
    before_close: list[str] = []
    done = False
    with contextlib.ExitStack() as stack:
        stack.push(only_ours)
        story(simulator, artifacts, before_close)
        done = True
    return Outcome(done, before_close, simulator.listing())


def only_ours(kind: object, error: BaseException | None, trace: object) -> bool:
    """Swallow an error of the one tree, alone or in a group; any other one fails the test."""
    group = error.exceptions if isinstance(error, ExceptionGroup) else [error]
    return error is not None and all(isinstance(e, isthmus.IsthmusError) for e in group)


@pytest.fixture(scope="module")
def counted(loaded_simulator: Any, geared_artifact: Artifact, plain_artifact: Artifact) -> dict[str, int]:
    """How often each function is called in the story when nothing fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_lib.SIMULATOR_VARIABLE, "1")
        loaded_simulator.reset()
        assert attempt(loaded_simulator, geared_artifact, plain_artifact).done
        return {name: loaded_simulator.calls(name) for name in FUNCTIONS}


def test_the_story_calls_every_function_of_the_table(counted: dict[str, int]) -> None:
    elsewhere = {"aclmdlSetDynamicHWSize", "aclmdlSetInputDynamicDims", "aclrtDestroyStreamForce"}
    assert {name for name, calls in counted.items() if not calls} == elsewhere


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_failure_at_some_calls_leaks_nothing(
    function: str, simulator: Any, counted: dict[str, int], geared_artifact: Artifact, plain_artifact: Artifact
) -> None:
    calls = counted[function]
    places = sorted({1, 2, calls // 2, calls} & set(range(1, calls + 1)))
    fail_at(places, function, simulator, geared_artifact, plain_artifact)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_failure_at_any_call_leaks_nothing(
    function: str, simulator: Any, counted: dict[str, int], geared_artifact: Artifact, plain_artifact: Artifact
) -> None:
    fail_at(range(1, counted[function] + 1), function, simulator, geared_artifact, plain_artifact)


def fail_at(places: Iterable[int], function: str, simulator: Any, *artifacts: Artifact) -> None:
    """Let the n-th call of a function fail, for each n; at most what it should have released may be left."""
    for place in places:
        simulator.reset()
        simulator.fail(function, place)
        outcome = attempt(simulator, *artifacts)
        for left in (outcome.before_close, outcome.after_close):
            assert len(left) <= (function in RELEASES), f"after {function} failed at call {place}"
            assert all(line.startswith(RELEASES[function]) for line in left)
        simulator.reset()
        release(simulator, outcome.after_close)
    assert attempt(simulator, *artifacts).done, f"after {function} failed"


def release(simulator: Any, left: list[str]) -> None:
    """Give back by hand what could not be released, so that the next attempt starts clean."""
    simulator._dll.aclrtResetDeviceForce(0)
    by_kind = {kind: function for function, kind in RELEASES.items()}
    for line in left:
        kind, address, _ = line.rsplit(" ", 2)
        if kind in by_kind:
            simulator._dll[by_kind[kind]](ctypes.c_void_p(int(address, 16)))
