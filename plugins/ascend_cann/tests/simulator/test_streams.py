"""Streams and events: real queues beside the caller."""

from __future__ import annotations

import ctypes as ct
import time

import numpy as np
import pytest

H2D, D2H, D2D = 1, 2, 3
DELAY_US = 100_000


@pytest.fixture
def stream(sim):
    handle = ct.c_void_p()
    sim.ok("aclrtCreateStream", ct.byref(handle))
    yield handle
    sim.aclrtDestroyStream(handle)


def pinned(sim, size):
    pointer = ct.c_void_p()
    sim.ok("aclrtMallocHost", ct.byref(pointer), size)
    return pointer


@pytest.fixture
def job(sim, linear):
    """A loaded model with its datasets: ``(model, inputs, outputs, device output)``."""
    model = sim.load(linear[0])
    x = sim.put(np.ones((4, 64), np.float32))
    y = sim.malloc(4 * 32 * 4)
    inputs, outputs = sim.dataset([(x, 4 * 64 * 4)]), sim.dataset([(y, 4 * 32 * 4)])
    yield model, inputs, outputs, y
    sim.ok("aclrtSynchronizeDevice")
    sim.drop(inputs)
    sim.drop(outputs)


def test_work_is_queued_and_done_in_order(sim, linear, stream, job):
    _, w, b = linear
    model, inputs, outputs, y = job
    host = pinned(sim, 512)
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    start = time.monotonic()
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    sim.ok("aclrtMemcpyAsync", host, 512, y, 512, D2H, stream)
    queued = time.monotonic() - start
    sim.ok("aclrtSynchronizeStream", stream)
    done = time.monotonic() - start
    assert queued < DELAY_US / 1e6 <= done
    got = np.ctypeslib.as_array((ct.c_float * 128).from_address(host.value)).reshape(4, 32)
    np.testing.assert_allclose(got, np.ones((4, 64)) @ w + b, rtol=1e-4, atol=1e-4)
    sim.ok("aclrtFreeHost", host)


def test_pageable_memory_makes_the_copy_wait(sim, stream, job):
    model, inputs, outputs, y = job
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    out = np.zeros((4, 32), np.float32)
    start = time.monotonic()
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    sim.ok("aclrtMemcpyAsync", out.ctypes.data, 512, y, 512, D2H, stream)
    assert time.monotonic() - start >= DELAY_US / 1e6
    assert out.any()


def test_waiting_can_be_limited(sim, stream, job):
    model, inputs, outputs, _ = job
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    assert sim.aclrtSynchronizeStreamWithTimeout(stream, 5) == 507046
    assert "(EE1002)" in sim.text()
    assert sim.aclrtSynchronizeStreamWithTimeout(stream, 0) == 107000
    sim.ok("aclrtSynchronizeStreamWithTimeout", stream, -1)


def test_execute_v2_runs_in_a_stream_within_a_time(sim, stream, job):
    model, inputs, outputs, y = job
    sim.lib.aclmdlCreateExecConfigHandle.restype = ct.c_void_p
    handle = sim.aclmdlCreateExecConfigHandle()
    timeout = ct.c_int32(5)
    assert sim.aclmdlSetExecConfigOpt(handle, 0, ct.byref(timeout), 8) == 100000
    assert sim.aclmdlSetExecConfigOpt(handle, 5, ct.byref(timeout), 4) == 100000
    sim.ok("aclmdlExecuteV2", model, inputs, outputs, stream, handle)
    assert not np.isnan(sim.get(y, (4, 32))).any()
    sim.ok("aclmdlSetExecConfigOpt", handle, 0, ct.byref(timeout), 4)
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    assert sim.aclmdlExecuteV2(model, inputs, outputs, stream, handle) == 507046
    sim.ok("aclrtSynchronizeStream", stream)
    sim.ok("aclmdlDestroyExecConfigHandle", handle)


def test_the_default_stream_is_the_contexts(sim, job):
    model, inputs, outputs, y = job
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, None)
    sim.ok("aclrtSynchronizeStream", None)
    assert not np.isnan(sim.get(y, (4, 32))).any()


def test_a_failure_in_a_stream_is_told_to_who_waits(sim, stream):
    pointer = sim.malloc(64)
    host = pinned(sim, 64)
    sim.ok("aclrtFree", pointer)
    sim.ok("aclrtMemcpyAsync", host, 64, pointer, 64, D2H, stream)  # a drained stream would have been needed
    assert sim.aclrtSynchronizeStream(stream) == 107000
    assert "not inside one live device allocation" in sim.text()
    sim.ok("aclrtSynchronizeStream", stream)
    sim.ok("aclrtFreeHost", host)


def test_memory_freed_before_the_run_is_noticed(sim, stream, job, linear):
    model, inputs, outputs, y = job
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    other = sim.load(linear[0])
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    sim.ok("aclmdlExecuteAsync", other, inputs, outputs, stream)
    sim.ok("aclrtFree", y)
    assert sim.aclrtSynchronizeStream(stream) == 107000


def test_one_model_is_not_in_flight_twice(sim, stream, job):
    model, inputs, outputs, _ = job
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    time.sleep(DELAY_US / 4e6)
    assert sim.aclmdlExecute(model, inputs, outputs) == 507011
    assert "in flight" in sim.text()
    assert sim.aclmdlUnload(model) == 107037
    sim.ok("aclrtSynchronizeStream", stream)


def test_models_that_share_a_workspace_must_not_run_at_once(sim, stream, job, linear):
    path = linear[0]
    work, _ = sim.query(path)
    shared, ids = sim.malloc(work), []
    for _ in range(2):
        identity = ct.c_uint32()
        sim.ok("aclmdlLoadFromFileWithMem", str(path).encode(), ct.byref(identity), shared, work, None, 0)
        ids.append(identity.value)
    _, inputs, outputs, _ = job
    sim.ok("aclmdlExecute", ids[0], inputs, outputs)
    sim.ok("aclmdlExecute", ids[1], inputs, outputs)
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    sim.ok("aclmdlExecuteAsync", ids[0], inputs, outputs, stream)
    time.sleep(DELAY_US / 4e6)
    assert sim.aclmdlExecute(ids[1], inputs, outputs) == 507011
    assert "shares its workspace" in sim.text()
    sim.ok("aclrtSynchronizeStream", stream)


def test_events_order_streams_and_measure_time(sim, stream, job):
    model, inputs, outputs, y = job
    second, start, end, elapsed = ct.c_void_p(), ct.c_void_p(), ct.c_void_p(), ct.c_float()
    sim.ok("aclrtCreateStream", ct.byref(second))
    for event in (start, end):
        sim.ok("aclrtCreateEventWithFlag", ct.byref(event), 8)
    assert sim.aclrtEventElapsedTime(ct.byref(elapsed), start, end) == 107006
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    host = pinned(sim, 512)
    sim.ok("aclrtRecordEvent", start, stream)
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    sim.ok("aclrtRecordEvent", end, stream)
    sim.ok("aclrtStreamWaitEvent", second, end)
    sim.ok("aclrtMemcpyAsync", host, 512, y, 512, D2H, second)
    status = ct.c_int(9)
    sim.ok("aclrtQueryEventStatus", end, ct.byref(status))
    assert status.value == 0
    assert sim.aclrtSynchronizeEventWithTimeout(end, 5) == 507047
    sim.ok("aclrtSynchronizeStream", second)
    sim.ok("aclrtQueryEventStatus", end, ct.byref(status))
    assert status.value == 1
    assert not np.isnan((ct.c_float * 128).from_address(host.value)[0])
    sim.ok("aclrtEventElapsedTime", ct.byref(elapsed), start, end)
    assert elapsed.value >= DELAY_US / 1e3
    assert sim.aclrtEventElapsedTime(ct.byref(elapsed), end, start) == 107007
    for event in (start, end):
        sim.ok("aclrtDestroyEvent", event)
        assert sim.aclrtDestroyEvent(event) == 107017
    sim.ok("aclrtFreeHost", host)
    sim.ok("aclrtDestroyStream", second)


def test_an_event_that_was_never_recorded_holds_nobody_up(sim, stream):
    event = ct.c_void_p()
    sim.ok("aclrtCreateEvent", ct.byref(event))
    sim.ok("aclrtStreamWaitEvent", stream, event)
    sim.ok("aclrtSynchronizeStream", stream)
    sim.ok("aclrtSynchronizeEvent", event)
    sim.ok("aclrtDestroyEvent", event)


def test_an_event_may_be_destroyed_while_it_is_awaited(sim, stream, job):
    model, inputs, outputs, _ = job
    event = ct.c_void_p()
    sim.ok("aclrtCreateEvent", ct.byref(event))
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, stream)
    sim.ok("aclrtRecordEvent", event, stream)
    sim.ok("aclrtStreamWaitEvent", None, event)
    sim.ok("aclrtDestroyEvent", event)
    sim.ok("aclrtSynchronizeStream", None)


def test_destroying_a_stream_finishes_its_work(sim, job):
    model, inputs, outputs, y = job
    handle = ct.c_void_p()
    sim.ok("aclrtCreateStream", ct.byref(handle))
    sim.isthmus_sim_set_execute_delay(DELAY_US)
    sim.ok("aclmdlExecuteAsync", model, inputs, outputs, handle)
    sim.ok("aclrtDestroyStream", handle)
    assert not np.isnan(sim.get(y, (4, 32))).any()
    assert sim.aclrtDestroyStream(handle) == 107017
    assert sim.aclrtSynchronizeStream(handle) == 107017


def test_a_stream_belongs_to_its_context(sim, stream):
    context, first = ct.c_void_p(), ct.c_void_p()
    sim.ok("aclrtGetCurrentContext", ct.byref(first))
    sim.ok("aclrtCreateContext", ct.byref(context), 0)
    assert sim.aclrtSynchronizeStream(stream) == 107003
    assert "(EE1010)" in sim.text()
    sim.ok("aclrtSetCurrentContext", first)
    sim.ok("aclrtDestroyContext", context)
