"""Loading, running, gears, shared weights, several devices, threads, and what is said when a call fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import isthmus
import numpy as np
import onnx
import pytest
from isthmus.artifact import Artifact
from isthmus.errors import DeviceLostError, ExecutionError, IncompatibleError, UnavailableError, UnsupportedError
from isthmus.graphset import GraphSet
from isthmus_ascend_cann import _lib, context
from isthmus_ascend_cann.plan import read_plan
from onnx import TensorProto, helper

Compile = Callable[..., Artifact]


@pytest.fixture
def compiled(simulator: Any, tmp_path: Path, atc_in_process: None) -> Compile:
    def make(source: Any, **options: object) -> Artifact:
        return isthmus.compile("ascend", source, tmp_path / f"artifact{len(list(tmp_path.iterdir()))}", options=options)

    return make


def expected(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(x.astype(np.float64) @ weights)))


def test_an_entry_computes_what_its_graph_says(device: isthmus.Device, compiled: Compile, graph: Any) -> None:
    file = graph()
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    with device.load(compiled(file)) as program:
        got = program.run("main", {"x": x})["y"]
    weights = (np.random.default_rng(0).standard_normal((64, 64)) / 8).astype(np.float32)
    np.testing.assert_allclose(got, expected(weights, x), atol=2e-3)


def test_entries_share_one_workspace_and_equal_weights(
    device: isthmus.Device, compiled: Compile, graphset: Any, simulator: Any
) -> None:
    artifact = compiled(graphset(inner=1024, columns=1024))
    need = device.memory_requirements(artifact)
    assert need.weights < 3 << 20  # one copy of 2 MiB for two models
    assert any("weights shared" in note for note in need.notes)
    assert need.peak_workspace == max(need.workspace.values())
    before = simulator.allocations()
    with device.load(artifact) as program:
        assert simulator.allocations() - before == 2  # weights, workspace
        one = np.ones((1, 1024), np.float32)
        decode = program.run("decode", {"x": one})["y"]
        prefill = program.run("prefill", {"x": np.ones((8, 1024), np.float32)})["y"]
        np.testing.assert_array_equal(prefill[0], decode[0])


def test_entries_with_different_weights_have_a_copy_each(
    device: isthmus.Device, compiled: Compile, graphset: Any
) -> None:
    artifact = compiled(graphset(seeds=(0, 1), inner=1024, columns=1024))
    assert device.memory_requirements(artifact).weights > 4 << 20
    assert any("external_weight=files" in note for note in artifact.manifest.notes)
    with device.load(artifact) as program:
        x = np.ones((1, 1024), np.float32)
        assert (
            np.abs(
                program.run("decode", {"x": x})["y"] - program.run("prefill", {"x": np.repeat(x, 8, 0)})["y"][0]
            ).max()
            > 0
        )


@pytest.mark.parametrize("where", ["files", "combined"])
def test_external_weights_are_loaded_into_our_memory(
    device: isthmus.Device, compiled: Compile, graphset: Any, where: str
) -> None:
    artifact = compiled(graphset(inner=256, columns=256), external_weight=where)
    plan = read_plan(artifact)
    assert plan.external
    assert all(m.weight_size == 0 for m in plan.models.values())
    need = device.memory_requirements(artifact)
    x = np.ones((1, 256), np.float32)
    with device.allocate(need.weights) as weights, device.load(artifact, weights=weights) as program:
        weight = (np.random.default_rng(0).standard_normal((256, 256)) / 8).astype(np.float32)
        np.testing.assert_allclose(program.run("decode", {"x": x})["y"], expected(weight, x), atol=5e-3)


def test_external_files_with_equal_weights_exist_once(compiled: Compile, graphset: Any) -> None:
    artifact = compiled(graphset(inner=256, columns=256), external_weight="files")
    assert len(read_plan(artifact).external) == 1


def test_external_weights_need_a_newer_cann(
    device: isthmus.Device, compiled: Compile, graphset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = compiled(graphset(inner=256, columns=256), external_weight="files")
    has = _lib.Acl.has
    monkeypatch.setattr(_lib.Acl, "has", lambda s, n: n != "aclmdlSetExternalWeightAddress" and has(s, n))
    with pytest.raises(UnsupportedError, match="cannot take external weights"):
        device.load(artifact)


GEARS = {
    "batch": ({"rows": "n"}, {"input_shape": "x:-1,64", "dynamic_batch_size": "1,2,4"}, ["main@1", "main@2", "main@4"]),
    "dims": ({"rows": "n"}, {"input_shape": "x:-1,64", "dynamic_dims": "1;3"}, ["main@1", "main@3"]),
}


@pytest.mark.parametrize("kind", GEARS)
def test_each_gear_is_an_entry_of_its_own(device: isthmus.Device, compiled: Compile, graph: Any, kind: str) -> None:
    about, options, entries = GEARS[kind]
    artifact = compiled(graph(**about), **options)
    assert sorted(artifact.entries) == entries
    assert len(read_plan(artifact).models) == 1
    weights = (np.random.default_rng(0).standard_normal((64, 64)) / 8).astype(np.float32)
    with device.load(artifact) as program:
        for entry in entries:
            count = int(entry.split("@")[1])
            x = np.random.default_rng(count).standard_normal((count, 64)).astype(np.float32)
            np.testing.assert_allclose(program.run(entry, {"x": x})["y"], expected(weights, x), atol=2e-3)


def test_gears_of_the_image_size_are_entries_too(device: isthmus.Device, compiled: Compile, picture: Path) -> None:
    artifact = compiled(picture, input_shape="x:1,3,-1,-1", dynamic_image_size="2,4;4,2")
    assert sorted(artifact.entries) == ["main@2x4", "main@4x2"]
    with device.load(artifact) as program:
        for entry, shape in (("main@2x4", (1, 3, 2, 4)), ("main@4x2", (1, 3, 4, 2))):
            x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            np.testing.assert_allclose(program.run(entry, {"x": x})["y"], 1 / (1 + np.exp(-x)), atol=2e-3)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """y = Sigmoid(x) over [1, 3, height, width]."""
    shape = [1, 3, "h", "w"]
    graph = helper.make_graph(
        [helper.make_node("Sigmoid", ["x"], ["y"])],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "main.onnx"
    )
    return tmp_path / "main.onnx"


def test_bindings_of_different_gears_do_not_disturb_each_other(
    device: isthmus.Device, compiled: Compile, graph: Any
) -> None:
    artifact = compiled(graph(rows="n"), **GEARS["batch"][1])
    with (
        device.load(artifact) as program,
        device.allocate(4 * 256) as x,
        device.allocate(4 * 256) as one,
        device.allocate(4 * 256) as four,
        program.bind("main@1", {"x": x}, {"y": one}) as small,
        program.bind("main@4", {"x": x}, {"y": four}) as large,
    ):
        x.write(np.ones((4, 64), np.float32))
        for _ in range(2):
            one.write(bytes(1024))
            small.execute()
            assert one.read(1024, 0)[256:] == bytes(768)  # rows beyond the gear stay as they were
            large.execute()
            assert four.read() == one.read(256) * 4


def test_rebinding_points_an_entry_at_other_memory(device: isthmus.Device, compiled: Compile, graph: Any) -> None:
    file = graph()
    with (
        device.load(compiled(file)) as program,
        device.allocate(1024) as x,
        device.allocate(1024) as other,
        device.allocate(2048) as y,
        program.bind("main", {"x": x}, {"y": y[:1024]}) as binding,
    ):
        x.write(np.zeros((4, 64), np.float32))
        other.write(np.ones((4, 64), np.float32))
        binding.execute()
        binding.rebind({"x": other}, {"y": y[1024:]})
        binding.execute()
        got = np.frombuffer(y.read(), np.float32).reshape(2, 4, 64)
        np.testing.assert_array_equal(got[0], np.full((4, 64), 0.5, np.float32))
        assert np.abs(got[1] - 0.5).max() > 0.1


def test_a_profile_has_the_time_on_the_device(device: isthmus.Device, plain_artifact: Artifact) -> None:
    with (
        device.load(plain_artifact) as program,
        device.allocate(4 * 4096) as x,
        device.allocate(4 * 4096) as y,
        program.bind("main", {"x": x}, {"y": y}) as binding,
    ):
        events = {e.name: e for e in binding.profile()}
        assert events["execute"].value > 0
        assert events["execute"].unit == "us"
        assert events["submit"].value > 0


def test_several_devices_work_in_one_process(simulator: Any, plain_artifact: Artifact) -> None:
    simulator.devices(3)
    x = np.ones((4, 1024), np.float32)
    with (
        isthmus.open_device("ascend:0") as first,
        isthmus.open_device("ascend:2") as second,
        first.load(plain_artifact) as one,
        second.load(plain_artifact) as two,
    ):
        np.testing.assert_array_equal(one.run("main", {"x": x})["y"], two.run("main", {"x": x})["y"])
        assert simulator.used(0) == simulator.used(2) > 0
        assert simulator.used(1) == 0


def test_several_programs_share_a_device(
    device: isthmus.Device, plain_artifact: Artifact, compiled: Compile, graph: Any
) -> None:
    with device.load(plain_artifact) as one, device.load(compiled(graph())) as two:
        assert one.run("main", {"x": np.ones((4, 1024), np.float32)})["y"].shape == (4, 1024)
        assert two.run("main", {"x": np.ones((4, 64), np.float32)})["y"].shape == (4, 64)


def test_a_program_runs_from_a_thread_that_did_not_open_the_device(
    device: isthmus.Device, plain_artifact: Artifact
) -> None:
    x, results = np.ones((4, 1024), np.float32), []
    with device.load(plain_artifact) as program:
        threads = [
            threading.Thread(target=lambda: results.append(program.run("main", {"x": x})["y"])) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.append(program.run("main", {"x": x})["y"])
    assert len(results) == 4
    assert all(np.array_equal(r, results[0]) for r in results)


def test_the_context_of_another_library_in_the_thread_is_given_back(simulator: Any, plain_artifact: Artifact) -> None:
    acl = _lib.library(True)
    acl.aclrtSetDevice(0)
    theirs = context._current(acl)
    try:
        with isthmus.open_device("ascend") as opened, opened.load(plain_artifact) as program:
            assert context._current(acl) == theirs
            program.run("main", {"x": np.ones((4, 1024), np.float32)})
            assert context._current(acl) == theirs
        assert context._current(acl) == theirs
    finally:
        acl.aclrtResetDevice(0)


def test_visible_devices_are_named(simulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator.devices(4)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1,3")
    listed = isthmus.registry().backend("ascend").devices()
    assert [(d.name, d.description) for d in listed] == [
        ("0", "simulated Ascend910B4, device 0 (ASCEND_RT_VISIBLE_DEVICES: card 1), AscendCL 1.17.0"),
        ("1", "simulated Ascend910B4, device 1 (ASCEND_RT_VISIBLE_DEVICES: card 3), AscendCL 1.17.0"),
    ]


def test_no_visible_device_is_unavailable(simulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "7")
    with pytest.raises(UnavailableError, match="sees no device") as caught:
        isthmus.open_device("ascend")
    assert "ASCEND_RT_VISIBLE_DEVICES is '7'" in str(caught.value)


def test_a_step_that_takes_too_long_loses_the_device_and_the_next_one_works(
    simulator: Any, plain_artifact: Artifact
) -> None:
    x = np.ones((4, 1024), np.float32)
    simulator.execute_delay(400_000)
    with isthmus.open_device("ascend", options={"timeout_ms": 20}) as opened:
        program = opened.load(plain_artifact)
        with pytest.raises(DeviceLostError, match="within 20 ms"):
            program.run("main", {"x": x})
    simulator.execute_delay(0)
    with (
        isthmus.open_device("ascend", options={"timeout_ms": 20_000}) as opened,
        opened.load(plain_artifact) as program,
    ):
        assert program.run("main", {"x": x})["y"].shape == (4, 1024)


def test_a_failed_step_says_what_the_code_means(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    with device.load(plain_artifact) as program:
        simulator.fail("aclmdlExecuteAsync", 1, 507015)
        with pytest.raises(ExecutionError) as caught:
            program.run("main", {"x": np.ones((4, 1024), np.float32)})
        text = str(caught.value)
        assert "aclmdlExecuteAsync -> 507015 ACL_ERROR_RT_AICORE_EXCEPTION" in text
        assert "outside its memory" in text
        assert program.run("main", {"x": np.ones((4, 1024), np.float32)})["y"].shape == (4, 1024)


def test_old_text_of_the_vendor_is_not_blamed_on_a_new_call(device: isthmus.Device, simulator: Any) -> None:
    with pytest.raises(isthmus.IsthmusError) as first:
        device.allocate(1 << 39)
    assert first.value.status is not None
    assert "EL0004" in first.value.status.text
    simulator.fail("aclrtMalloc", 1, 107000)  # the simulator injects the code and says nothing
    with pytest.raises(isthmus.IsthmusError) as second:
        device.allocate(64)
    assert second.value.status is not None
    assert second.value.status.code == 107000
    assert "EL0004" not in second.value.status.text


def test_a_real_artifact_does_not_load_on_the_simulator(
    device: isthmus.Device, plain_artifact: Artifact, copied: Any
) -> None:
    path = copied(plain_artifact)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"reality": "simulated"', '"reality": "real"'))
    with pytest.raises(IncompatibleError, match="was compiled by a real atc; ascend:0 is simulated"):
        device.load(isthmus.Artifact.open(path))


def test_an_artifact_for_another_chip_is_refused(simulator: Any, plain_artifact: Artifact) -> None:
    simulator.soc("Ascend310P3")
    with isthmus.open_device("ascend") as opened, pytest.raises(IncompatibleError, match="Ascend310P3"):
        opened.load(plain_artifact)


def test_a_manifest_that_states_another_shape_is_refused_and_nothing_is_left(
    device: isthmus.Device, plain_artifact: Artifact, copied: Any, simulator: Any
) -> None:
    path = copied(plain_artifact)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace("1024", "1023"))
    used = simulator.used()
    with pytest.raises(IncompatibleError, match=r"takes 16384 bytes in the \.om"):
        device.load(isthmus.Artifact.open(path))
    assert simulator.used() == used


def test_a_graph_set_is_compiled_entry_by_entry(compiled: Compile, graphset: Any) -> None:
    source: GraphSet = graphset(seeds=(0, 1, 2), rows=(8, 1, 2))
    artifact = compiled(source)
    assert sorted(p.name for p in artifact.path.glob("*.om")) == ["decode.om", "prefill.om", "vision.om"]
    assert set(artifact.entries) == {"prefill", "decode", "vision"}
