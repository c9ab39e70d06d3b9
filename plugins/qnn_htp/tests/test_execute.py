"""Executing: aliased and offset regions, rebinding, threads, several devices, many rounds."""

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from isthmus import open_device
from isthmus.errors import IncompatibleError
from isthmus.types import Capability, Reality
from isthmus_qnn_htp.emulator import emulated_vtcm
from isthmus_qnn_htp.layout import ProgramRecord


def rss(pid):
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1])


@pytest.fixture
def step(contexts, case):
    return case(contexts, "step")


@pytest.fixture
def allocate(device):
    """Buffers that are closed at the end."""
    with ExitStack() as closing:
        yield lambda size: closing.enter_context(device.allocate(size))


def test_only_the_emulator_claims_aliased_io(device):
    assert (device.info.reality is Reality.EMULATED) == (Capability.ALIASED_IO in device.capabilities)


def test_an_output_may_lie_in_a_slot_of_an_input(device, allocate, artifact, step):
    """What a KV cache does: the new rows go straight into the cache that the step reads."""
    cache, rows = step.inputs["cache"], step.outputs["new"]
    memory, h, out = map(allocate, (cache.nbytes, step.inputs["h"].nbytes, step.outputs["out"].nbytes))
    with device.load(artifact(step.binary)) as program:
        h.write(step.inputs["h"])
        for slot in range(0, len(cache) - len(rows) + 1, 3):
            memory.write(cache)
            start = slot * cache.shape[1] * 4
            place = memory[start : start + rows.nbytes]
            program.execute("main", {"h": h, "cache": memory}, {"out": out, "new": place})
            wanted = cache.copy()
            wanted[slot : slot + len(rows)] = rows
            np.testing.assert_array_equal(np.frombuffer(memory.read(), np.float32).reshape(cache.shape), wanted)
            assert bytes(out.read()) == step.outputs["out"].tobytes(), "the cache was read before it was written"


@pytest.mark.parametrize("name", ["fp32", "fp16", "u16", "u8"])
@pytest.mark.parametrize("offset", [0, 4, 8, 36, 60, 64])
def test_a_region_may_start_at_any_multiple_of_io_alignment_and_nothing_beside_it_is_touched(
    device, artifact, contexts, case, name, offset
):
    wanted = case(contexts, name)
    x, y = wanted.inputs["x"], wanted.outputs["y"]
    assert offset % device.io_alignment == 0
    guard = np.full(4096, 0xA5, np.uint8)
    with (
        device.load(artifact(wanted.binary)) as program,
        device.allocate(4096) as memory,
        device.allocate(4096) as result,
    ):
        result.write(guard)
        memory.view(offset=offset).write(x)
        out = result[128 + offset : 128 + offset + y.nbytes]
        program.execute("main", {"x": memory[offset : offset + x.nbytes]}, {"y": out})
        guard[128 + offset : 128 + offset + y.nbytes] = y.view(np.uint8).ravel()
        assert bytes(result.read()) == guard.tobytes()


def test_rebinding_points_the_next_execute_at_other_memory(device, allocate, artifact, contexts, case):
    fp32 = case(contexts, "fp32")
    x, y = fp32.inputs["x"], fp32.outputs["y"]
    ones, zeros, first, second = map(allocate, (x.nbytes, x.nbytes, y.nbytes, y.nbytes))
    with device.load(artifact(fp32.binary)) as program:
        ones.write(x)
        zeros.write(np.zeros_like(x))
        first.write(np.ones_like(y))
        second.write(np.ones_like(y))
        with program.bind("main", {"x": zeros}, {"y": first}) as binding:
            binding.execute()
            binding.rebind({"x": ones}, {"y": second})
            binding.execute()
        assert bytes(first.read()) == bytes(y.nbytes)
        assert bytes(second.read()) == y.tobytes()


def test_four_threads_on_one_device_each_get_their_own_results(device, artifact, contexts, case):
    fp32 = case(contexts, "fp32")
    wrong, errors = [], []
    with device.load(artifact(fp32.binary)) as program:
        scales = [1.0, 0.5, 0.25, 2.0]  # powers of two are exact in every float
        wanted = [program.run("main", {"x": fp32.inputs["x"] * np.float32(s)})["y"] for s in scales]

        def work(i):
            try:
                for _ in range(25):
                    got = program.run("main", {"x": fp32.inputs["x"] * np.float32(scales[i])})["y"]
                    if not np.array_equal(got, wanted[i]):
                        wrong.append(i)
            except Exception as error:  # noqa: BLE001 - reported below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert not errors


def test_two_devices_at_once_one_in_a_child_and_one_here(artifact, contexts, case):
    fp32, u8 = case(contexts, "fp32"), case(contexts, "u8")
    with (
        open_device("qnn_htp") as first,
        open_device("qnn_htp", options={"isolation": "in_process"}) as second,
        first.load(artifact(fp32.binary)) as a,
        second.load(artifact(u8.binary)) as b,
    ):
        for _ in range(5):
            np.testing.assert_array_equal(a.run("main", fp32.inputs)["y"], fp32.outputs["y"])
            np.testing.assert_array_equal(b.run("main", u8.inputs)["y"], u8.outputs["y"])


def test_a_program_for_another_vtcm_size_does_not_break_the_one_that_is_loaded(
    device, artifact, contexts, sm7325_contexts, case
):
    """The emulator models one size per process: unrefused, the second load breaks the first program."""
    big, small = case(contexts, "fp32"), case(sm7325_contexts, "u8")
    other = artifact(small.binary, target="sm7325")
    with device.load(artifact(big.binary)) as program:
        with pytest.raises(IncompatibleError, match="for 2 MiB of VTCM, a program loaded in this process for 8 MiB"):
            device.load(other)
        np.testing.assert_array_equal(program.run("main", big.inputs)["y"], big.outputs["y"])
        with open_device("qnn_htp") as second, second.load(other) as elsewhere:
            np.testing.assert_array_equal(elsewhere.run("main", small.inputs)["y"], small.outputs["y"])
    with device.load(other) as program:
        np.testing.assert_array_equal(program.run("main", small.inputs)["y"], small.outputs["y"])


def test_the_vtcm_a_graph_was_compiled_for_counts_not_what_its_chip_has():
    whole, half = (ProgramRecord({}, 57, 75, "2.51.0", vtcm_mb) for vtcm_mb in (None, 4))
    with (
        emulated_vtcm(whole),
        emulated_vtcm(whole),
        pytest.raises(IncompatibleError, match=r"for 4 MiB of VTCM, .* for 8 MiB"),
        emulated_vtcm(half),
    ):
        pass
    with emulated_vtcm(half):
        pass


def rounds(device, made, inputs, count):
    for _ in range(count):
        with device.load(made) as program:
            program.run("main", inputs)


def test_loading_and_unloading_200_times_grows_nothing(device, artifact, contexts, case):
    fp32 = case(contexts, "fp32")
    made, pid = artifact(fp32.binary), getattr(device._ledger.driver, "pid", os.getpid())
    rounds(device, made, fp32.inputs, 60)  # allocators reach their plateau
    here, there = rss(os.getpid()), rss(pid)
    rounds(device, made, fp32.inputs, 200)
    assert rss(pid) < 1.01 * there
    assert rss(os.getpid()) < 1.01 * here


@pytest.mark.parametrize("level", ["basic", "detailed"])
def test_a_profile_has_the_time_of_the_whole_and_in_detail_of_each_node(isolation, level, artifact, step):
    options = {**isolation, "profile": level}
    with open_device("qnn_htp", options=options) as device, device.load(artifact(step.binary)) as program:
        inputs = {k: device.allocate(v.nbytes) for k, v in step.inputs.items()}
        outputs = {k: device.allocate(v.nbytes) for k, v in step.outputs.items()}
        for name, value in step.inputs.items():
            inputs[name].write(value)
        with program.bind("main", inputs, outputs) as binding:
            events = binding.profile()
            again = binding.profile()
        assert bytes(outputs["out"].read()) == step.outputs["out"].tobytes()
    assert any(event.unit == "us" and event.value > 0 and "execute" in event.name for event in events)
    nodes = [event.name for event in events if event.node]
    if level == "detailed":
        for node in ("mm", "th", "cat", "qk", "sm", "pv"):
            assert any(name.startswith(f"{node}:") for name in nodes), nodes
        assert not any("cycles" in name for name in nodes), "the unit is a field of its own"
    else:
        assert not nodes
    assert len(again) == len(events), "each profile starts afresh"


@pytest.mark.parametrize(
    "options",
    [
        {"power": p}
        for p in (
            "burst", "sustained_high", "high", "balanced", "low_balanced", "high_power_saver", "power_saver",
            "low_power_saver",
        )
    ]
    + [{"priority": p} for p in ("low", "normal", "normal_high", "high")],
    ids=lambda o: next(iter(o.values())),
)  # fmt: skip
def test_every_power_mode_and_priority_is_taken_by_the_runtime(options, artifact, contexts, case):
    fp32 = case(contexts, "fp32")
    options = {"isolation": "in_process", **options}
    with open_device("qnn_htp", options=options) as device, device.load(artifact(fp32.binary)) as program:
        np.testing.assert_array_equal(program.run("main", fp32.inputs)["y"], fp32.outputs["y"])
