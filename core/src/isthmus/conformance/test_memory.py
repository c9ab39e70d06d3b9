"""Device memory: what is written is what is read, and nothing else changes."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from isthmus import Buffer, Capability, Device, Pages
from isthmus.conformance.trays import assert_bytes
from isthmus.errors import IsthmusError, OutOfMemoryError, UnsupportedError

SIZES = [1, 3, 63, 64, 4095, 4096, 4097, (2 << 20) + 1]


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_survive_a_round_trip(device: Device, size: int) -> None:
    data = noise(size)
    with device.allocate(size) as buffer:
        buffer.write(data)
        assert_bytes(buffer.read(), data)


@pytest.mark.parametrize("size", SIZES)
def test_an_allocation_is_charged_at_least_its_size(device: Device, size: int) -> None:
    with device.allocate(size) as buffer:
        assert buffer.allocated_size >= size


def test_an_empty_allocation_is_legal(device: Device) -> None:
    with device.allocate(0) as buffer:
        buffer.write(b"")
        assert_bytes(buffer.read(), b"")


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 1), (7, 13), (63, 2), (4095, 2), (4093, 5000), (9999, 1)])
def test_a_write_touches_its_range_only(device: Device, offset: int, size: int) -> None:
    with device.allocate(10_000) as buffer:
        buffer.write(b"\xa5" * 10_000)
        data = noise(size)
        buffer.write(data, offset)
        assert_bytes(buffer.read(), b"\xa5" * offset + data + b"\xa5" * (10_000 - offset - size))


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 1), (7, 13), (63, 2), (4095, 2), (4093, 5000), (9999, 1)])
def test_a_read_gives_its_range_only(device: Device, offset: int, size: int) -> None:
    data = noise(10_000)
    with device.allocate(10_000) as buffer:
        buffer.write(data)
        out = bytearray(size + 2)
        buffer.read_into(memoryview(out)[1:-1], offset)
        assert_bytes(out, b"\0" + data[offset : offset + size] + b"\0")


def test_the_source_may_be_reused_as_soon_as_write_returns(device: Device) -> None:
    source = bytearray(b"a" * 100_000)
    with device.allocate(100_000) as buffer:
        buffer.write(source)
        source[:] = b"b" * 100_000
        assert_bytes(buffer.read(), b"a" * 100_000)


def test_what_was_read_stays_when_the_buffer_changes(device: Device) -> None:
    with device.allocate(4096) as buffer:
        buffer.write(b"a" * 4096)
        out = bytearray(4096)
        buffer.read_into(out)
        buffer.write(b"b" * 4096)
        assert_bytes(out, b"a" * 4096)


def test_buffers_do_not_alias(device: Device) -> None:
    buffers = [device.allocate(1000 + i) for i in range(20)]
    for i, buffer in enumerate(buffers):
        buffer.write(noise(buffer.size, i))
    for i, buffer in enumerate(buffers):
        assert_bytes(buffer.read(), noise(buffer.size, i))
        buffer.close()


@pytest.mark.parametrize("size", [1, 5, 64, 4096, 70_001])
@pytest.mark.parametrize(("to", "start"), [(0, 0), (3, 0), (0, 7), (64, 128)])
def test_copies_move_the_bytes_and_nothing_else(device: Device, size: int, to: int, start: int) -> None:
    data, background = noise(size + 300, 1), noise(size + 300, 2)
    with device.allocate(size + 300) as source, device.allocate(size + 300) as target:
        source.write(data)
        target.write(background)
        target[to : to + size].copy_from(source[start : start + size])
        assert_bytes(target.read(), background[:to] + data[start : start + size] + background[to + size :])
        assert_bytes(source.read(), data)


def test_copies_within_a_buffer_work(device: Device) -> None:
    data = noise(8192)
    with device.allocate(8192) as buffer:
        buffer.write(data)
        buffer[:4096].copy_from(buffer[4096:])
        assert_bytes(buffer.read(), data[4096:] * 2)


@pytest.mark.parametrize("alignment", [1, 2, 64, 256, 4096])
@pytest.mark.parametrize("pages", [Pages.NORMAL, Pages.PREFER_HUGE])
def test_alignment_is_as_asked(device: Device, alignment: int, pages: Pages) -> None:
    for size in (1, 100, 5000):
        with device.allocate(size, pages, alignment=alignment) as buffer:
            buffer.write(noise(size))
            if Capability.HOST_VISIBLE in device.capabilities:
                address = buffer.view().array().__array_interface__["data"][0]
                assert address % alignment == 0
            assert_bytes(buffer.read(), noise(size))


@pytest.mark.parametrize("size", [1 << 50, 1 << 62, (1 << 63) - 1, (1 << 64) + 1])
@pytest.mark.parametrize("pages", [Pages.NORMAL, Pages.PREFER_HUGE])
def test_an_absurd_size_is_out_of_memory(device: Device, size: int, pages: Pages) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(size, pages).close()
    assert max(map(int, re.findall(r"\d+", caught.value.what)), default=0) >= size, "the message gives the figure"
    with device.allocate(8) as buffer:
        buffer.write(b"still on")
        assert_bytes(buffer.read(), b"still on")


@pytest.mark.parametrize("order", ["first", "last", "random"])
def test_buffers_may_be_freed_in_any_order(device: Device, order: str) -> None:
    buffers = [device.allocate(5000) for _ in range(12)]
    for i, buffer in enumerate(buffers):
        buffer.write(noise(5000, i))
    left = dict(enumerate(buffers))
    rng = random.Random(0)
    while left:
        keys = list(left)
        left.pop({"first": keys[0], "last": keys[-1], "random": rng.choice(keys)}[order]).close()
        for i, buffer in left.items():
            assert_bytes(buffer.read(), noise(5000, i))


def test_memory_is_given_back(device: Device) -> None:
    """Twice what the device has, a little at a time."""
    total = device.memory_info().total or 16 << 30
    size = min(total // 16, 256 << 20)
    for _ in range(2 * total // size):
        device.allocate(size).close()


def test_memory_figures_are_figures_or_unknown(device: Device) -> None:
    info = device.memory_info()
    for figure in (info.total, info.huge_page_size):
        assert figure is None or figure > 0, "unknown is None, never 0"
    for part, whole in ((info.free, info.total), (info.huge_pages_free, info.huge_pages_total)):
        assert part is None or part >= 0
        assert part is None or whole is None or part <= whole


def test_host_views_are_the_memory_itself(device: Device) -> None:
    with device.allocate(4096) as buffer:
        if Capability.HOST_VISIBLE not in device.capabilities:
            with pytest.raises(UnsupportedError):
                buffer.view().array()
            return
        array = buffer[100:200].array()
        buffer.write(noise(4096))
        assert_bytes(bytes(array), noise(4096)[100:200], "a write shows in the view")
        array[:] = 7
        assert_bytes(buffer.read(100, 100), b"\x07" * 100, "the view shows in a read")
        assert_bytes(buffer.read(100), noise(4096)[:100])


def test_a_buffer_can_be_freed_while_somebody_holds_a_view(device: Device) -> None:
    buffer = device.allocate(4096)
    held = buffer.view().array() if Capability.HOST_VISIBLE in device.capabilities else None
    buffer.close()
    assert buffer.closed
    del held


def in_threads(work: Callable[[int], None], count: int, together: threading.Barrier | None = None) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread
            failures.append(error)
            if together:
                together.abort()

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_any_thread_may_use_the_device(device: Device) -> None:
    made: list[Buffer] = []
    in_threads(lambda _: made.append(device.allocate(4096)), 1)
    in_threads(lambda _: made[0].write(noise(4096)), 1)
    assert_bytes(made[0].read(), noise(4096))
    in_threads(lambda _: made[0].close(), 1)


def test_threads_do_not_disturb_each_other(device: Device) -> None:
    together = threading.Barrier(4)

    def work(number: int) -> None:
        for turn in range(25):
            data = noise(3000 + number, number * 100 + turn)
            with device.allocate(len(data)) as buffer:
                together.wait()
                buffer.write(data)
                together.wait()
                assert_bytes(buffer.read(), data)

    in_threads(work, 4, together)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="unavailable: this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_leaves_the_parent_s_device_alone(device: Device) -> None:
    with device.allocate(64) as buffer:
        buffer.write(b"p" * 64)
        child = os.fork()
        if child == 0:
            try:
                buffer.write(b"c" * 64)
            except IsthmusError:
                buffer.close()
                device.close()
                os._exit(0)
            except BaseException:  # noqa: BLE001 - a forked child must not go on as pytest
                os._exit(2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child is refused"
        assert_bytes(buffer.read(), b"p" * 64)
