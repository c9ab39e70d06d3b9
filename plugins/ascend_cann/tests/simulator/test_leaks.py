"""Every function made to fail once: the library itself must leave nothing behind."""

from __future__ import annotations

import ctypes as ct
from contextlib import ExitStack

import numpy as np
import pytest

CREATED = 507899  # a code that nothing here returns by itself


class CallFailedError(Exception):
    """A call said no; what was made before is cleaned up by the story's exit stack."""


class Story:
    """A caller that checks every result and releases what it made, in reverse."""

    def __init__(self, sim):
        self.sim, self.stack = sim, ExitStack()

    def call(self, name, *arguments):
        code = getattr(self.sim, name)(*arguments)
        if code != 0:
            raise CallFailedError(name, code)

    def make(self, name, undo, *arguments):
        """A constructor that returns a pointer."""
        handle = getattr(self.sim, name)(*arguments)
        if not handle:
            raise CallFailedError(name)
        self.stack.callback(lambda: getattr(self.sim, undo)(handle))
        return handle

    def out(self, name, undo, *arguments):
        """A constructor with an output argument in front."""
        handle = ct.c_void_p()
        self.call(name, ct.byref(handle), *arguments)
        self.stack.callback(lambda: getattr(self.sim, undo)(handle))
        return handle.value

    def run(self, path):
        work, weight, model = ct.c_size_t(), ct.c_size_t(), ct.c_uint32()
        stream = self.out("aclrtCreateStream", "aclrtDestroyStream")
        event = self.out("aclrtCreateEvent", "aclrtDestroyEvent")
        host = self.out("aclrtMallocHost", "aclrtFreeHost", 1024)
        self.call("aclmdlQuerySize", path, ct.byref(work), ct.byref(weight))
        space = self.out("aclrtMalloc", "aclrtFree", work.value, 0)
        config = self.make("aclmdlCreateConfigHandle", "aclmdlDestroyConfigHandle")
        for attribute, value in ((1, ct.c_size_t(2)), (2, ct.c_char_p(path)), (7, ct.c_void_p(space)), (8, work)):
            self.call("aclmdlSetConfigOpt", config, attribute, ct.byref(value), 8)
        self.call("aclmdlLoadWithConfig", config, ct.byref(model))
        self.stack.callback(lambda: self.sim.aclmdlUnload(model.value))
        desc = self.make("aclmdlCreateDesc", "aclmdlDestroyDesc")
        self.call("aclmdlGetDesc", desc, model.value)
        inputs = self.make("aclmdlCreateDataset", "aclmdlDestroyDataset")
        outputs = self.make("aclmdlCreateDataset", "aclmdlDestroyDataset")
        device = {}
        for dataset, size in ((inputs, 1024), (outputs, 512)):
            device[dataset] = self.out("aclrtMalloc", "aclrtFree", size, 0)
            buffer = self.make("aclCreateDataBuffer", "aclDestroyDataBuffer", device[dataset], size)
            self.call("aclmdlAddDatasetBuffer", dataset, buffer)
        self.call("aclrtMemset", device[inputs], 1024, 0, 1024)
        self.call("aclrtMemcpyAsync", device[inputs], 1024, host, 1024, 1, stream)
        self.call("aclrtMemcpy", device[inputs], 1024, host, 1024, 1)
        self.call("aclmdlExecute", model.value, inputs, outputs)
        self.stack.callback(lambda: self.sim.aclrtSynchronizeStream(stream))  # nothing is freed under queued work
        self.call("aclmdlExecuteAsync", model.value, inputs, outputs, stream)
        self.call("aclrtRecordEvent", event, stream)
        self.call("aclrtStreamWaitEvent", stream, event)
        self.call("aclrtSynchronizeEvent", event)
        self.call("aclrtSynchronizeStream", stream)


CALLS = {
    "aclrtCreateStream": 1,
    "aclrtCreateEvent": 1,
    "aclrtMallocHost": 1,
    "aclmdlQuerySize": 1,
    "aclrtMalloc": 3,
    "aclmdlCreateConfigHandle": 1,
    "aclmdlSetConfigOpt": 4,
    "aclmdlLoadWithConfig": 1,
    "aclmdlCreateDesc": 1,
    "aclmdlGetDesc": 1,
    "aclmdlCreateDataset": 2,
    "aclCreateDataBuffer": 2,
    "aclmdlAddDatasetBuffer": 2,
    "aclrtMemset": 1,
    "aclrtMemcpyAsync": 1,
    "aclrtMemcpy": 1,
    "aclmdlExecute": 1,
    "aclmdlExecuteAsync": 1,
    "aclrtRecordEvent": 1,
    "aclrtStreamWaitEvent": 1,
    "aclrtSynchronizeEvent": 1,
    "aclrtSynchronizeStream": 1,
}


@pytest.mark.parametrize(("function", "call"), [(f, n) for f, count in CALLS.items() for n in range(1, count + 1)])
def test_a_failed_call_leaves_nothing(sim, linear, function, call):
    assert sim.isthmus_sim_fail(function.encode(), call, CREATED)
    story = Story(sim)
    with pytest.raises(CallFailedError, match=function), story.stack:
        story.run(str(linear[0]).encode())
    assert sim.isthmus_sim_used(0) == 0
    assert sim.live() == 0, sim.listing()


def test_the_story_without_a_failure_calls_what_the_table_says(sim, linear):
    story = Story(sim)
    with story.stack:
        story.run(str(linear[0]).encode())
    assert {f: sim.isthmus_sim_calls(f.encode()) for f in CALLS} == {**CALLS, "aclrtSynchronizeStream": 2}
    assert sim.live() == 0, sim.listing()


def test_a_thousand_loads_in_the_callers_memory_leave_nothing(sim, linear):
    path, w, b = linear
    work, weight = sim.query(path)
    memory = sim.malloc(work), work, sim.malloc(weight), weight
    used, made = sim.isthmus_sim_used(0), sim.isthmus_sim_allocations()
    identity = ct.c_uint32()
    for _ in range(1000):
        sim.ok("aclmdlLoadFromFileWithMem", str(path).encode(), ct.byref(identity), *memory)
        sim.ok("aclmdlUnload", identity.value)
    assert (sim.isthmus_sim_used(0), sim.isthmus_sim_allocations()) == (used, made)
    sim.ok("aclmdlLoadFromFileWithMem", str(path).encode(), ct.byref(identity), *memory)
    (y,) = sim.run(identity.value, [np.ones((4, 64), np.float32)], [(4, 32)])
    np.testing.assert_allclose(y, np.ones((4, 64)) @ w + b, rtol=1e-4, atol=1e-4)


def test_the_worker_may_die(sim, linear):
    """ONNX Runtime crashing is a failed execution; models loaded afterwards work."""
    import os
    import signal

    import psutil

    model = sim.load(linear[0])
    (worker,) = [c for c in psutil.Process().children() if any("executor.py" in word for word in c.cmdline())]
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(AssertionError, match="507011"):
        sim.run(model, [np.ones((4, 64), np.float32)], [(4, 32)])
    again = sim.load(linear[0])
    with pytest.raises(AssertionError, match="507011"):
        sim.run(model, [np.ones((4, 64), np.float32)], [(4, 32)])
    sim.run(again, [np.ones((4, 64), np.float32)], [(4, 32)])
    sim.ok("aclmdlUnload", model)
