"""Every call that can fail is made to fail once, at every place it is made; nothing may leak and nothing may hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
RELEASE = {
    "aclrtFree",
    "aclrtFreeHost",
    "aclrtDestroyContext",
    "aclrtDestroyStream",
    "aclrtDestroyStreamForce",
    "aclrtDestroyEvent",
    "aclrtResetDevice",
    "aclmdlUnload",
    "aclmdlDestroyDesc",
    "aclmdlDestroyDataset",
    "aclDestroyDataBuffer",
    "aclmdlDestroyConfigHandle",
}
"""When one of these fails, what it should have released is lost; all else must still be released."""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory, loaded_simulator: Any) -> Artifact:
    """External weights and gears, so that every function of the table has a part."""
    from conftest import matmul

    directory: Path = tmp_path_factory.mktemp("failures")
    matmul(directory / "main.onnx", rows="n")
    options = {"input_shape": "x:-1,64", "dynamic_batch_size": "1,2", "external_weight": "files"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_lib.SIMULATOR_VARIABLE, "1")
        return isthmus.compile("ascend", directory / "main.onnx", directory / "artifact", options=options)


def story(*artifacts: Artifact) -> None:
    """All that a caller does."""
    x = np.ones((1, 64), np.float32)
    with isthmus.open_device("ascend") as device:
        device.memory_info()
        for artifact in artifacts:
            entry = next(iter(artifact.entries))
            spec = artifact.entries[entry]
            x = np.ones(spec.inputs[0].shape, np.float32)
            need = device.memory_requirements(artifact)
            with (
                device.allocate(need.weights, isthmus.Pages.PREFER_HUGE) as weights,
                device.load(artifact, weights=weights) as program,
                device.allocate(x.nbytes) as source,
                device.allocate(x.nbytes) as second,
                device.allocate(spec.outputs[0].nbytes) as result,
                program.bind(entry, {"x": source}, {"y": result}) as binding,
            ):
                source.write(x)
                second.view().copy_from(source)
                binding.execute()
                binding.rebind({"x": second})
                binding.profile()
                result.read()


def attempt(*artifacts: Artifact) -> bool:
    """Run the story; whether it got to its end."""
    try:
        story(*artifacts)
    except isthmus.IsthmusError:
        return False
    except ExceptionGroup as group:
        assert all(isinstance(e, isthmus.IsthmusError) for e in group.exceptions)
        return False
    return True


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_failure_at_any_call_leaks_nothing(
    function: str, simulator: Any, artifact: Artifact, plain_artifact: Artifact
) -> None:
    assert attempt(artifact, plain_artifact)
    simulator.reset()
    attempt(artifact, plain_artifact)
    calls = simulator.calls(function)
    places = sorted({*range(1, min(calls, 6) + 1), calls})
    for place in places:
        simulator.reset()
        simulator.fail(function, place)
        attempt(artifact, plain_artifact)
        simulator.reset()
        if function not in RELEASE:
            assert simulator.listing() == [], f"after {function} failed at call {place}"
        clean(simulator)
        assert attempt(artifact, plain_artifact), f"after {function} failed at call {place}"


def clean(simulator: Any) -> None:
    """What a failed release left; the device is reset as a new process would find it."""
    if simulator.listing():
        simulator._dll.aclrtResetDeviceForce(0)
