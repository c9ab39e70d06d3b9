"""Initialisation, devices, contexts, threads and error text."""

from __future__ import annotations

import ctypes as ct
import os
import subprocess
import sys
import threading

import pytest

PRELUDE = """
import ctypes as ct, sys
lib = ct.CDLL(sys.argv[1])
lib.aclGetRecentErrMsg.restype = ct.c_char_p
lib.aclrtGetSocName.restype = ct.c_char_p
n, p = ct.c_uint32(), ct.c_void_p()
size = ct.c_size_t
def malloc(n=64): return lib.aclrtMalloc(ct.byref(p), size(n), 0)
"""


def in_child(sim_path, script, **environment):
    """What a script prints as a list, and its stderr: the library starts fresh in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(sim_path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_init_counts_and_finalise_drops_all(sim_path):
    words, _ = in_child(
        sim_path,
        """
print(lib.aclInit(None), lib.aclInit(None), lib.aclInit(b"/no/such/file"))
print(lib.aclFinalize(), lib.aclFinalize())
print(lib.aclInit(None), lib.aclInit(None))
count = ct.c_uint64(9)
print(lib.aclFinalizeReference(ct.byref(count)), count.value, lib.aclrtSetDevice(0))
print(lib.aclFinalizeReference(ct.byref(count)), count.value, lib.aclrtSetDevice(0))
""",
    )
    assert words == ["0", "100002", "100003", "0", "100037", "0", "100002", "0", "1", "0", "0", "0", "100001"]


def test_a_second_configuration_must_be_the_first(sim_path, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("{}")
    words, _ = in_child(
        sim_path,
        f"""
a, b = {str(tmp_path / "a").encode()!r}, {str(tmp_path / "b").encode()!r}
print(lib.aclInit(a), lib.aclInit(a), lib.aclInit(b))
""",
    )
    assert words == ["0", "100002", "100000"]


def test_nothing_works_before_init(sim_path):
    words, _ = in_child(
        sim_path,
        """
print(lib.aclrtSetDevice(0), malloc(), lib.aclmdlLoadFromFile(b"x", ct.byref(n)))
""",
    )
    assert words == ["100001", "107002", "100001"]


def test_it_says_that_it_is_simulated_on_stderr_once(sim_path):
    _, stderr = in_child(sim_path, "lib.aclInit(None); lib.aclFinalize(); lib.aclInit(None)")
    assert stderr.count("simulated") >= 1
    assert len(stderr.splitlines()) == 1


def test_what_is_left_is_listed_at_finalise(sim_path):
    _, stderr = in_child(sim_path, "lib.aclInit(None); lib.aclrtSetDevice(0); malloc(100); lib.aclFinalize()")
    assert "still live at aclFinalize" not in stderr  # the device took its memory along
    assert "still live at aclrtResetDevice: device memory" not in stderr
    _, stderr = in_child(sim_path, "lib.aclInit(None); lib.aclrtSetDevice(0); malloc(100); lib.aclrtResetDevice(0)")
    assert "still live at aclrtResetDevice: device memory" in stderr
    _, stderr = in_child(sim_path, "lib.aclInit(None); lib.aclmdlCreateDataset(); lib.aclFinalize()")
    assert "still live at aclFinalize: dataset" in stderr


def test_the_environment_sets_the_device(sim_path):
    words, _ = in_child(
        sim_path,
        """
lib.aclInit(None)
lib.aclrtGetDeviceCount(ct.byref(n)); print(n.value)
lib.aclrtSetDevice(2); print(malloc(2 << 20), malloc(1 << 20), malloc(64))
print(lib.aclrtGetSocName().decode())
mode = ct.c_int(9); lib.aclrtGetRunMode(ct.byref(mode)); print(mode.value)
print(lib.aclrtGetDevice(ct.byref(n)))
""",
        ISTHMUS_ASCEND_SIM_CAPACITY="3M",
        ISTHMUS_ASCEND_SIM_HUGE_BYTES="0",
        ISTHMUS_ASCEND_SIM_DEVICES="3",
        ISTHMUS_ASCEND_SIM_SOC="Ascend310P3",
        ISTHMUS_ASCEND_SIM_RC="1",
        ISTHMUS_ASCEND_SIM_FAIL="aclrtGetDevice:1:507899,aclrtMalloc:3:207005",
    )
    assert words == ["3", "0", "207001", "207005", "Ascend310P3", "0", "507899"]


def test_a_bad_knob_is_said_and_ignored(sim_path):
    words, stderr = in_child(
        sim_path, "print(lib.aclInit(None))", ISTHMUS_ASCEND_SIM_CAPACITY="lots", ISTHMUS_ASCEND_SIM_FAIL="x"
    )
    assert words == ["0"]
    assert "CAPACITY=lots" in stderr
    assert "FUNCTION:CALL:CODE" in stderr


@pytest.mark.parametrize(
    ("visible", "count"), [("0,2", 2), ("1", 1), ("2,1", 1), ("0,1, 2", 2), ("0,9", 1), ("", 0), ("x", 0)]
)
def test_visible_devices_are_an_ascending_list(sim_path, visible, count):
    words, _ = in_child(
        sim_path,
        "lib.aclInit(None); lib.aclrtGetDeviceCount(ct.byref(n)); print(n.value, lib.aclrtSetDevice(n.value))",
        ISTHMUS_ASCEND_SIM_DEVICES="3",
        ASCEND_RT_VISIBLE_DEVICES=visible,
    )
    assert words == [str(count), "107001"]


def test_older_releases_put_the_code_first(sim_path):
    words, _ = in_child(
        sim_path,
        "lib.aclInit(None); lib.aclrtSetDevice(7); print(lib.aclGetRecentErrMsg().decode())",
        ISTHMUS_ASCEND_SIM_MESSAGES="old",
    )
    assert words[0] == "EE1003:"


def test_devices_are_counted_up_and_down(sim):
    device = ct.c_int32(-1)
    sim.ok("aclrtSetDevice", 0)
    sim.ok("aclrtResetDevice", 0)
    sim.ok("aclrtGetDevice", ct.byref(device))  # one reference is left
    assert device.value == 0
    sim.ok("aclrtResetDevice", 0)
    assert sim.aclrtGetDevice(ct.byref(device)) == 107002
    sim.ok("aclrtSetDevice", 0)


@pytest.mark.parametrize("device", [1, -1, 99])
def test_unknown_devices_have_their_code(sim, device):
    assert sim.aclrtSetDevice(device) == 107001


def test_devices_have_memory_of_their_own(sim):
    sim.isthmus_sim_set_devices(2)
    sim.ok("aclrtSetDevice", 1)
    sim.malloc(4096)
    assert (sim.isthmus_sim_used(0) == 0) & (sim.isthmus_sim_used(1) > 0)
    sim.ok("aclrtResetDeviceForce", 1)
    assert sim.isthmus_sim_used(1) == 0
    sim.ok("aclrtSetDevice", 0)


def test_a_context_belongs_to_the_thread(sim):
    context, found = ct.c_void_p(), ct.c_void_p()
    assert in_thread(lambda: sim.aclrtGetCurrentContext(ct.byref(found))) == 107002
    sim.ok("aclrtCreateContext", ct.byref(context), 0)
    sim.ok("aclrtGetCurrentContext", ct.byref(found))
    assert found.value == context.value
    assert in_thread(lambda: [sim.aclrtSetCurrentContext(context), sim.aclrtGetCurrentContext(ct.byref(found))]) == [
        0,
        0,
    ]
    sim.ok("aclrtDestroyContext", context)
    assert sim.aclrtGetCurrentContext(ct.byref(found)) == 107002
    assert sim.aclrtSetCurrentContext(context) == 107002
    assert sim.aclrtDestroyContext(context) == 107000
    sim.ok("aclrtSetDevice", 0)


def test_the_default_context_is_not_the_callers_to_destroy(sim):
    found = ct.c_void_p()
    sim.ok("aclrtGetCurrentContext", ct.byref(found))
    assert sim.aclrtDestroyContext(found) == 107000


def test_error_text_lingers(sim_path):
    words, _ = in_child(
        sim_path,
        """
lib.aclInit(None)
print(lib.aclGetRecentErrMsg())
lib.aclrtSetDevice(7)
first = lib.aclGetRecentErrMsg()
lib.aclrtSetDevice(0)
print(lib.aclGetRecentErrMsg() == first)
lib.aclrtSetDevice(8)
second = lib.aclGetRecentErrMsg()
print(second.endswith(first), len(second) > len(first))
""",
    )
    assert words == ["None", "True", "True", "True"]


def test_error_text_belongs_to_the_thread(sim):
    sim.aclrtSetDevice(99)
    assert "107001" not in sim.text()
    assert "(EE1003)" in sim.text()
    assert in_thread(lambda: sim.lib.aclGetRecentErrMsg()) is None


def test_error_text_does_not_grow_without_end(sim):
    for _ in range(500):
        sim.aclrtSetDevice(99)
        sim.text()
    assert len(sim.text()) < 10000


def test_an_injected_failure_hits_its_call(sim):
    count = ct.c_uint32()
    assert sim.isthmus_sim_fail(b"aclrtGetDeviceCount", 2, 507899)
    assert [sim.aclrtGetDeviceCount(ct.byref(count)) for _ in range(3)] == [0, 507899, 0]
    assert sim.isthmus_sim_calls(b"aclrtGetDeviceCount") == 3
    sim.isthmus_sim_fail(b"aclrtGetDeviceCount", 0, 107003)
    assert [sim.aclrtGetDeviceCount(ct.byref(count)) for _ in range(2)] == [107003, 107003]
    sim.isthmus_sim_reset_rules()
    assert sim.aclrtGetDeviceCount(ct.byref(count)) == 0


def test_a_delay_is_slept(sim):
    import time

    count = ct.c_uint32()
    sim.isthmus_sim_delay(b"aclrtGetDeviceCount", 20000)
    start = time.monotonic()
    sim.ok("aclrtGetDeviceCount", ct.byref(count))
    assert time.monotonic() - start >= 0.02
