"""Pages on a real kernel: what is asked, what is granted, what is refused."""

from __future__ import annotations

import fcntl
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus import Granted, Pages
from isthmus.errors import OutOfMemoryError
from isthmus_cpu_ref import memory

POOL = Path("/proc/sys/vm/nr_hugepages")
HUGE = memory.host_memory().huge_page_size or 0
THP = memory.transparent_huge_mode()


@contextmanager
def configured(count):
    """The pool at ``count`` pages, alone on this machine, and as it was afterwards."""
    with (Path(tempfile.gettempdir()) / "isthmus-huge-pages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = POOL.read_text()
        try:
            POOL.write_text(str(count))
        except OSError:
            pytest.skip("unavailable here: the huge page pool cannot be changed (needs root and a kernel that allows)")
        try:
            if memory.host_memory().huge_pages_total != count:
                pytest.skip("unavailable here: the kernel found no room for huge pages")
            yield
        finally:
            POOL.write_text(before)


@pytest.fixture
def no_huge_pages():
    if memory.host_memory().huge_pages_free:
        with configured(0):
            yield
    else:
        yield


@pytest.fixture
def four_huge_pages():
    with configured(4):
        yield


def vm_flags(address):
    """The kernel's flags of the mapping at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= address < int(match[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError(f"no mapping at {address:#x}")


def kernel_page_kb(address):
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= address < int(match[2], 16)
        elif inside and line.startswith("KernelPageSize:"):
            return int(line.split()[1])
    raise AssertionError(f"no mapping at {address:#x}")


@given(
    size=st.integers(1, 3 << 20),
    pages=st.sampled_from([Pages.NORMAL, Pages.PREFER_HUGE]),
    alignment=st.integers(0, 23).map(lambda n: 1 << n),
)
def test_an_allocation_is_aligned_large_enough_and_writable_to_its_end(size, pages, alignment):
    found = memory.allocate(size, pages, alignment)
    buffer = found.handle
    assert buffer.address % alignment == 0
    assert found.size == len(buffer.bytes) >= size
    buffer.bytes[0] = buffer.bytes[-1] = 7
    buffer.release()


def test_normal_pages_are_normal_whatever_the_kernels_mode():
    buffer = memory.allocate(4 * HUGE, Pages.NORMAL, 64).handle
    assert "nh" in vm_flags(buffer.address) or THP == "never"


def test_without_a_pool_preferring_huge_pages_gets_advised_ones(no_huge_pages):
    found = memory.allocate(3 * HUGE + 1, Pages.PREFER_HUGE, 64)
    if THP == "never":
        assert found.granted is Granted.NORMAL
        return
    assert found.granted is Granted.TRANSPARENT_HUGE
    assert found.handle.address % HUGE == 0
    assert found.size == 4 * HUGE
    assert "hg" in vm_flags(found.handle.address)


def test_without_transparent_huge_pages_preferring_them_gets_normal_ones(no_huge_pages, monkeypatch):
    monkeypatch.setattr(memory, "transparent_huge_mode", lambda: "never")
    assert memory.allocate(HUGE, Pages.PREFER_HUGE, 64).granted is Granted.NORMAL


def test_requiring_huge_pages_without_a_pool_fails_with_figures_and_the_command(no_huge_pages):
    with pytest.raises(OutOfMemoryError, match=r"need 3 huge pages .*; 0 of \d+ are free") as caught:
        memory.allocate(2 * HUGE + 1, Pages.REQUIRE_HUGE, 64)
    assert re.search(r"sysctl vm\.nr_hugepages=\d+", caught.value.fix)


def test_huge_pages_are_granted_where_the_pool_has_them(four_huge_pages):
    for pages in (Pages.REQUIRE_HUGE, Pages.PREFER_HUGE):
        found = memory.allocate(HUGE + 1, pages, 64)
        assert found.granted is Granted.HUGE
        assert found.size == 2 * HUGE
        assert kernel_page_kb(found.handle.address) == HUGE // 1024
        found.handle.bytes[:] = bytes(found.size)  # every page is really there
        assert memory.host_memory().huge_pages_free == 2
        found.handle.release()
        assert memory.host_memory().huge_pages_free == 4


def test_a_pool_that_is_too_small_is_said_before_anything_is_touched(four_huge_pages):
    held = memory.allocate(3 * HUGE, Pages.REQUIRE_HUGE, 64)
    with pytest.raises(OutOfMemoryError, match=r"need 2 huge pages .*; 1 of 4 are free") as caught:
        memory.allocate(2 * HUGE, Pages.REQUIRE_HUGE, 64)
    assert caught.value.fix == "sysctl vm.nr_hugepages=5"
    assert memory.allocate(2 * HUGE, Pages.PREFER_HUGE, 64).granted is not Granted.HUGE
    held.handle.release()


def test_reserved_but_untouched_huge_pages_do_not_count_as_free(four_huge_pages):
    held = memory.allocate(3 * HUGE, Pages.REQUIRE_HUGE, 64)  # not touched
    assert memory.host_memory().huge_pages_free == 1
    held.handle.release()


@pytest.mark.parametrize("pages", list(Pages))
@pytest.mark.parametrize("size", [1 << 45, 1 << 50, 1 << 62])
def test_absurd_sizes_are_out_of_memory_with_both_figures(cpu, pages, size):
    with pytest.raises(OutOfMemoryError, match=r"\d+.*free") as caught:
        cpu.allocate(size, pages)
    assert caught.value.exit_code == 1


def test_a_view_that_outlives_its_buffer_keeps_its_pages(cpu):
    buffer = cpu.allocate(1 << 20)
    array = buffer.view().array()
    array[:] = 3
    buffer.close()
    assert (array == 3).all()


RELEASED = """
import json
from pathlib import Path
from isthmus import open_device
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
with open_device("cpu") as device:
    before = resident()
    buffer = device.allocate(64 << 20)
    buffer.write(b"x" * (64 << 20))
    touched = resident() - before
    buffer.close()
    print(json.dumps([touched, resident() - before]))
"""


def test_closing_a_buffer_gives_its_pages_back_at_once(in_child):
    touched, left = in_child(RELEASED)
    assert touched >= 64 << 20
    assert left < 8 << 20


def test_memory_info_knows_the_machine(cpu, reference):
    for device in (cpu, reference):
        info = device.memory_info()
        assert 0 < info.free <= info.total
        assert info.huge_page_size == HUGE
        assert info.huge_pages_total >= info.huge_pages_free >= 0


def test_a_kernel_without_huge_pages_says_so(monkeypatch):
    info = memory.host_memory()
    without = type(info)(info.total, info.free)
    monkeypatch.setattr(memory, "host_memory", lambda: without)
    with pytest.raises(OutOfMemoryError, match="no huge pages"):
        memory.allocate(4096, Pages.REQUIRE_HUGE, 64)
