"""The library lives in a process of its own, and what happens to that process happens to the device alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from isthmus import open_device
from isthmus.errors import ClosedError, DeviceLostError


def pid_of(device):
    return device._ledger.driver.pid


def gone(pid):
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or ") Z " in state.read_text():
            return True
        time.sleep(0.1)
    return False


def again_and_again(step):
    while True:
        step()


@pytest.fixture
def fp32(contexts, case):
    return case(contexts, "fp32")


@pytest.fixture
def opened():
    """Make devices that are closed at the end."""
    made = []

    def make(**options):
        made.append(open_device("qnn_htp", options=options))
        return made[-1]

    yield make
    for device in made:
        device.close()


def test_the_library_is_not_in_this_process_and_its_process_is_spawned_into_a_session_of_its_own(opened):
    device = opened()
    pid = pid_of(device)
    assert "libQnnHtp" in Path(f"/proc/{pid}/maps").read_text()
    assert os.getsid(pid) == pid
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert b"isthmus_qnn_htp.worker" in command
    device.close()
    assert gone(pid)


def test_kill_9_in_the_middle_of_an_execute_is_a_lost_device_and_nothing_else(opened, artifact, contexts, case, fp32):
    device, other = opened(), opened()
    long = case(contexts, "long")
    program, still_good = device.load(artifact(long.binary)), other.load(artifact(fp32.binary))
    outputs = {k: device.allocate(v.nbytes) for k, v in long.outputs.items()}
    inputs = {k: device.allocate(v.nbytes) for k, v in long.inputs.items()}
    binding = program.bind("main", inputs, outputs)
    killer = threading.Timer(0.3, os.kill, (pid_of(device), signal.SIGKILL))
    killer.start()
    with pytest.raises(DeviceLostError, match=r"killed by SIGKILL \(signal 9\) during execute of 'main'") as caught:
        again_and_again(binding.execute)
    assert "open the device again" in caught.value.fix
    with pytest.raises(ClosedError, match="lost"):
        binding.execute()
    device.close()
    got = still_good.run("main", fp32.inputs)
    np.testing.assert_array_equal(got["y"], fp32.outputs["y"])
    again = opened()
    with again.load(artifact(fp32.binary)) as program:
        np.testing.assert_array_equal(program.run("main", fp32.inputs)["y"], fp32.outputs["y"])


def test_a_hang_ends_with_the_watchdog(opened):
    device = opened(watchdog_seconds=1)
    os.kill(pid_of(device), signal.SIGSTOP)
    with pytest.raises(DeviceLostError, match="gave no answer and computed nothing for 1 s during allocate"):
        device.allocate(64)
    assert gone(pid_of(device))


def test_work_that_takes_longer_than_the_watchdog_is_not_a_hang(opened, artifact, fp32, hook):
    hook("compute_before_execute")
    device = opened(watchdog_seconds=0.5)
    with device.load(artifact(fp32.binary)) as program:
        start = time.monotonic()
        got = program.run("main", fp32.inputs)
        assert time.monotonic() - start > 1
    np.testing.assert_array_equal(got["y"], fp32.outputs["y"])


def test_an_interrupt_while_waiting_costs_the_device_not_the_next_answer(opened):
    device = opened()
    buffer = device.allocate(64)
    os.kill(pid_of(device), signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        device.allocate(64)
    timer.join()
    buffer.close()  # it went with the process
    with pytest.raises(DeviceLostError):
        device.allocate(64)


def test_the_last_words_of_a_crash_are_in_the_error(opened):
    device = opened()
    os.kill(pid_of(device), signal.SIGABRT)  # what assert() and std::terminate do
    with pytest.raises(DeviceLostError, match=r"SIGABRT \(signal 6\)"):
        again_and_again(lambda: device.allocate(64).close())


def test_a_binary_that_kills_the_library_costs_the_device_alone(
    opened, artifact, contexts, case, fp32, hook, monkeypatch
):
    """Shared weights are refused before; this lets them through to see the crash that this is about."""
    hook("let_shared_weights_through")
    device = opened()
    shared = artifact(case(contexts, "shared").binary, ("prefill", "decode"))
    with pytest.raises(DeviceLostError, match=r"SIGSEGV \(signal 11\) during load"):
        device.load(shared)
    device.close()
    monkeypatch.undo()
    with opened().load(artifact(fp32.binary)) as program:
        np.testing.assert_array_equal(program.run("main", fp32.inputs)["y"], fp32.outputs["y"])


def run_python(code, **kinds):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **kinds)


def test_the_process_ends_with_the_program_however_that_ends():
    code = (
        "import os, sys, time; from isthmus import open_device; d = open_device('qnn_htp');"
        "print(d._ledger.driver.pid, flush=True); "
    )
    programs = []
    for end in (
        "os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "sys.exit()",
        "os.fork() or (sys.stdout.close(), os.close(1), time.sleep(20)); os._exit(0)",
    ):
        programs.append(run_python(code + end, stderr=subprocess.DEVNULL))
    for program in programs:
        with program:
            pid = int(program.stdout.readline())
        assert gone(pid), program.args


def test_nothing_of_the_library_reaches_standard_output(artifact, fp32, isolation):
    made = artifact(fp32.binary)
    code = f"""
import numpy as np
from isthmus import open_device
from isthmus.artifact import Artifact
from isthmus.errors import IsthmusError
with open_device("qnn_htp", options={isolation!r}) as device:
    artifact = Artifact.open({str(made.path)!r})
    with device.load(artifact) as program:
        program.run("main", {{"x": np.zeros((2, 64), np.float32)}})
    (artifact.path / "context.bin").write_bytes(bytes(5000))
    try:
        device.load(artifact)
    except IsthmusError:
        print("only this")
"""
    with run_python(code) as program:
        assert program.communicate()[0] == "only this\n"
    assert program.returncode == 0


def test_a_forked_child_leaves_the_device_to_its_parent(opened, artifact, fp32):
    device = opened()
    child = os.fork()
    if not child:
        try:
            device.allocate(64)
        except ClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with device.load(artifact(fp32.binary)) as program:
        np.testing.assert_array_equal(program.run("main", fp32.inputs)["y"], fp32.outputs["y"])


def test_no_descriptor_and_no_thread_is_left_behind(opened):
    def count():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    opened().close()
    before = count()
    device = opened()
    buffers = [device.allocate(1 << 16) for _ in range(20)]
    assert count()[0] <= before[0] + 2, "a buffer holds no descriptor; the device holds its socket and its log"
    for buffer in buffers:
        buffer.close()
    device.close()
    assert count() == before
