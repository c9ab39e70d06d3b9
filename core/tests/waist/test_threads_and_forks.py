import os
import signal
import threading

import pytest
from isthmus.errors import ClosedError, InUseError

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_a_fork(check) -> int:
    """Exit code of a forked child that runs ``check``; killed if it hangs on a lock of the parent."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            check()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child must never return into pytest
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_calls_never_overlap_in_the_driver(device, driver, artifact):
    inside, worst = [], []

    def watched(original):
        def call(*args):
            inside.append(1)
            worst.append(len(inside))
            result = original(*args)
            inside.pop()
            return result

        return call

    for name in ("allocate", "free", "read", "write", "bind", "unbind", "execute", "load", "unload"):
        setattr(driver, name, watched(getattr(driver, name)))

    def work():
        for _ in range(30):
            with device.load(artifact) as program, device.allocate(64) as m:
                m.write(bytes(64))
                program.execute("add", {"a": m[:16], "b": m[:16]}, {"sum": m[16:], "copy": m[32:]})
                m.read()

    run_in_threads([work] * 4)
    assert set(worst) == {1}
    assert driver.live == []


def run_in_threads(works):
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_two_threads_closing_a_device_close_it_once(open_fake):
    device, driver = open_fake()
    driver.close = lambda: (driver.calls.append(("close",)), threading.Event().wait(0.02))
    run_in_threads([device.close] * 4)
    assert driver.names() == ["close"]


def test_a_buffer_cannot_go_while_another_thread_writes_it(device, driver):
    buffer = device.allocate(16)
    entered, order = threading.Event(), []

    def slow_write(region, data):
        entered.set()
        threading.Event().wait(0.05)
        order.append("written")

    free = driver.free
    driver.write, driver.free = slow_write, lambda handle: (order.append("freed"), free(handle))
    writer = threading.Thread(target=lambda: buffer.write(b"x"))
    writer.start()
    entered.wait()
    buffer.close()
    writer.join()
    assert order == ["written", "freed"]


def test_binding_against_closing_has_one_winner(device, program, driver):
    for _ in range(50):
        memory = device.allocate(64)
        views = {"a": memory[:16], "b": memory[:16]}, {"sum": memory[16:], "copy": memory[32:]}
        bound, closed = [], []

        def bind(views=views, bound=bound):
            try:
                bound.append(program.bind("add", *views))
            except ClosedError:
                bound.append(None)

        def close(memory=memory, closed=closed):
            try:
                memory.close()
                closed.append(True)
            except InUseError:
                closed.append(False)

        run_in_threads([bind, close])
        assert (bound[0] is None) == closed[0]
        if bound[0]:
            bound[0].close()
            memory.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="unavailable: this system has no fork")
def test_a_forked_child_owns_nothing(device, driver, program, buffers):
    binding = program.bind("add", *buffers)
    before = list(driver.calls)

    def check():
        uses = [
            binding.execute,
            buffers[0]["a"].read,
            lambda: device.allocate(1),
            device.memory_info,
            lambda: program.bind("add", *buffers),
        ]
        for use in uses:
            with pytest.raises(ClosedError, match="owned by the parent"):
                use()
        for closable in (binding, program, buffers[0]["a"], device):
            assert closable.closed
            closable.close()
        assert driver.calls == before

    assert in_a_fork(check) == 0
    binding.execute()
    binding.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="unavailable: this system has no fork")
def test_a_child_forked_during_a_call_does_not_wait_for_it(device, driver, program, buffers):
    entered, leave = threading.Event(), threading.Event()
    driver.execute = lambda binding: (entered.set(), leave.wait())
    binding = program.bind("add", *buffers)
    runner = threading.Thread(target=binding.execute)
    runner.start()
    entered.wait()

    def check():
        with pytest.raises(ClosedError):
            buffers[0]["a"].read()
        with pytest.raises(ClosedError):
            binding.execute()
        buffers[0]["b"].close()
        device.close()

    try:
        assert in_a_fork(check) == 0
    finally:
        leave.set()
        runner.join()
    binding.close()
