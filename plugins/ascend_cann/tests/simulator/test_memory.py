"""Device memory: rounding, pages, capacity, copies, and what the host must not touch."""

from __future__ import annotations

import ctypes as ct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MIB, GIB = 1 << 20, 1 << 30
H2H, H2D, D2H, D2D, DEFAULT = range(5)
HUGE_FIRST, HUGE_ONLY, NORMAL_ONLY, HUGE_FIRST_P2P, HUGE_ONLY_P2P, NORMAL_ONLY_P2P, HUGE1G_ONLY = range(7)
OOM, PARAM, RT_PARAM, NO_CONTEXT, UNSUPPORTED = 207001, 100000, 107000, 107002, 207000


def charged(sim, size, policy):
    before = sim.isthmus_sim_used(0)
    pointer = sim.malloc(size, policy)
    grown = sim.isthmus_sim_used(0) - before
    page = sim.isthmus_sim_page_size(pointer)
    sim.ok("aclrtFree", pointer)
    return grown, page


@pytest.mark.parametrize(
    ("size", "policy", "grown", "page"),
    [
        (1, NORMAL_ONLY, 4096, 4096),
        (4096 - 64, NORMAL_ONLY, 4096, 4096),
        (4096, NORMAL_ONLY, 8192, 4096),  # 32 bytes of tail do not fit in the page
        (MIB - 32, HUGE_FIRST, MIB, 4096),  # rounded to 1 MiB, which is not more than 1 MiB
        (MIB, HUGE_FIRST, 2 * MIB, 2 * MIB),
        (1024, HUGE_ONLY, 2 * MIB, 2 * MIB),
        (2 * MIB, HUGE_ONLY, 4 * MIB, 2 * MIB),
        (5 * MIB, NORMAL_ONLY, 5 * MIB + 4096, 4096),
        (3 * MIB, HUGE_FIRST_P2P, 4 * MIB, 2 * MIB),
        (1, HUGE1G_ONLY, GIB, GIB),
    ],
)
def test_sizes_are_rounded_to_32_bytes_plus_tail_and_then_to_pages(sim, size, policy, grown, page):
    assert charged(sim, size, policy) == (grown, page)


def test_align32_adds_no_tail(sim):
    pointer = ct.c_void_p()
    sim.ok("aclrtMallocAlign32", ct.byref(pointer), 4096, NORMAL_ONLY)
    assert sim.isthmus_sim_used(0) == 4096


def test_addresses_are_aligned_to_64_bytes_and_small_ones_to_no_more(sim):
    pointers = [sim.malloc(n) for n in (1, 100, 5000, 3 * MIB)]
    assert all(p % 64 == 0 for p in pointers)
    assert {p % 128 for p in pointers[:3]} == {64}
    assert pointers[3] % (2 * MIB) == 0


def test_huge_first_falls_back_to_normal_pages_and_huge_only_does_not(sim):
    sim.isthmus_sim_set_memory(GIB, 4 * MIB, 0)
    first = sim.malloc(3 * MIB, HUGE_FIRST)
    second = sim.malloc(3 * MIB, HUGE_FIRST)
    assert (sim.isthmus_sim_page_size(first), sim.isthmus_sim_page_size(second)) == (2 * MIB, 4096)
    code, _ = sim.try_malloc(3 * MIB, HUGE_ONLY)
    assert code == OOM
    assert "(EL0004)" in sim.text()
    sim.ok("aclrtFree", first)
    assert sim.try_malloc(3 * MIB, HUGE_ONLY)[0] == 0


def test_an_empty_pool_refuses_huge_only_while_normal_memory_is_free(sim):
    sim.isthmus_sim_set_memory(GIB, 0, 0)
    assert sim.try_malloc(1024, HUGE_ONLY)[0] == OOM
    assert sim.try_malloc(1, HUGE1G_ONLY)[0] == OOM
    assert sim.try_malloc(1024, NORMAL_ONLY)[0] == 0


def test_capacity_is_exact(sim):
    sim.isthmus_sim_set_memory(8 * MIB, 8 * MIB, 0)
    assert sim.try_malloc(8 * MIB, NORMAL_ONLY)[0] == OOM  # the tail needs one page more
    pointer = sim.malloc(8 * MIB - 64, NORMAL_ONLY)
    assert sim.isthmus_sim_used(0) == 8 * MIB
    assert sim.try_malloc(1, NORMAL_ONLY)[0] == OOM
    sim.ok("aclrtFree", pointer)
    assert sim.isthmus_sim_used(0) == 0


def test_more_than_the_address_space_is_out_of_memory(sim):
    assert sim.try_malloc((1 << 64) - 16)[0] == OOM
    assert sim.try_malloc(1 << 40)[0] == OOM


def test_chips_without_a_page_size_say_so(sim):
    sim.isthmus_sim_set_soc(b"Ascend310P3")
    assert sim.try_malloc(1, HUGE1G_ONLY)[0] == UNSUPPORTED
    sim.isthmus_sim_set_soc(b"Ascend310B4")
    assert sim.try_malloc(3 * MIB, HUGE_FIRST_P2P)[0] == UNSUPPORTED


@pytest.mark.parametrize("policy", [8, 99, 255])
def test_unknown_policies_are_bad_arguments(sim, policy):
    assert sim.try_malloc(64, policy)[0] == PARAM


def test_bandwidth_bits_are_accepted(sim):
    assert sim.try_malloc(64, 0x1000 | NORMAL_ONLY)[0] == 0


def test_null_and_zero_are_bad_arguments(sim):
    pointer = ct.c_void_p()
    assert sim.aclrtMalloc(ct.byref(pointer), 0, HUGE_FIRST) == PARAM
    assert sim.aclrtMalloc(None, 64, HUGE_FIRST) == PARAM
    assert sim.aclrtFree(None) == PARAM
    assert sim.aclrtMallocHost(ct.byref(pointer), 0) == PARAM


def test_new_memory_is_not_zero_but_nan(sim):
    pointer = sim.malloc(4096)
    assert np.isnan(sim.get(pointer, (1024,))).all()
    assert np.isnan(sim.get(pointer, (2048,), np.float16)).all()


def test_memory_is_fresh_when_its_pages_are_used_again(sim):
    sim.isthmus_sim_set_memory(GIB, 0, 0)
    for _ in range(50):
        pointer = sim.malloc(4096)
        assert np.isnan(sim.get(pointer, (1024,))).all()
        sim.ok("aclrtMemset", pointer, 4096, 0, 4096)
        assert not sim.get(pointer, (1024,)).any()
        sim.ok("aclrtFree", pointer)


def test_a_second_free_is_refused(sim):
    pointer = sim.malloc(64)
    assert sim.aclrtFree(pointer + 64) == RT_PARAM
    sim.ok("aclrtFree", pointer)
    assert sim.aclrtFree(pointer) == RT_PARAM
    assert "freed already" in sim.text()


def test_freed_memory_cannot_be_read(sim):
    pointer = sim.malloc(64)
    sim.ok("aclrtFree", pointer)
    out = (ct.c_char * 64)()
    assert sim.aclrtMemcpy(out, 64, pointer, 64, D2H) == RT_PARAM


def test_a_stale_address_is_not_handed_out_again_at_once(sim):
    first = sim.malloc(64)
    sim.ok("aclrtFree", first)
    assert sim.malloc(64) != first


def test_copies_stay_inside_the_allocation(sim):
    pointer = sim.malloc(64)
    data = (ct.c_char * 4096)()
    assert sim.aclrtMemcpy(pointer, 4096, data, 96, H2D) == 0  # with the 32 bytes of tail
    assert sim.aclrtMemcpy(pointer, 4096, data, 97, H2D) == RT_PARAM
    assert sim.aclrtMemcpy(pointer + 64, 4096, data, 32, H2D) == 0
    assert sim.aclrtMemcpy(pointer + 64, 4096, data, 33, H2D) == RT_PARAM
    assert sim.aclrtMemcpy(data, 4096, pointer - 64, 64, D2H) == RT_PARAM


def test_copy_arguments_have_the_documented_codes(sim):
    pointer, data = sim.malloc(64), (ct.c_char * 64)()
    assert sim.aclrtMemcpy(pointer, 64, data, 0, H2D) == 0
    assert sim.aclrtMemcpy(None, 0, None, 0, H2D) == 0
    assert sim.aclrtMemcpy(pointer, 32, data, 64, H2D) == RT_PARAM
    assert sim.aclrtMemcpy(None, 64, data, 64, H2D) == PARAM
    assert sim.aclrtMemcpy(pointer, 64, None, 64, H2D) == PARAM
    assert sim.aclrtMemcpy(pointer, 64, data, 64, 6) == PARAM
    assert sim.aclrtMemset(pointer, 32, 0, 64) == RT_PARAM


def test_the_copy_kind_must_match_the_addresses(sim):
    pointer, data = sim.malloc(64), (ct.c_char * 64)()
    assert sim.aclrtMemcpy(data, 64, pointer, 64, H2D) == RT_PARAM
    assert sim.aclrtMemcpy(pointer, 64, data, 64, D2H) == RT_PARAM
    assert sim.aclrtMemcpy(pointer, 64, data, 64, D2D) == RT_PARAM
    assert sim.aclrtMemcpy(pointer, 64, data, 64, DEFAULT) == 0


def test_device_copies_carry_the_bytes(sim):
    source, target = sim.put(np.arange(16, dtype=np.float32)), sim.malloc(64)
    sim.ok("aclrtMemcpy", target + 8, 56, source, 40, D2D)
    assert sim.get(target + 8, (10,)).tolist() == list(range(10))


def info(sim, attribute):
    free, total = ct.c_size_t(1), ct.c_size_t(1)
    sim.ok("aclrtGetMemInfo", attribute, ct.byref(free), ct.byref(total))
    return free.value, total.value


def test_memory_information_by_kind(sim):
    sim.isthmus_sim_set_memory(64 * MIB, 16 * MIB, 0)
    sim.malloc(4 * MIB, HUGE_ONLY)  # 6 MiB with its tail
    sim.malloc(2 * MIB - 64, NORMAL_ONLY)
    assert info(sim, 1) == info(sim, 0) == info(sim, 5) == (56 * MIB, 64 * MIB)
    assert info(sim, 4) == info(sim, 2) == info(sim, 13) == (10 * MIB, 16 * MIB)
    assert info(sim, 10) == (0, 0)
    assert info(sim, 77) == (0, 0)  # unknown, and success


def test_memory_needs_a_context(sim):
    import threading

    codes = []

    def run():
        pointer, size = ct.c_void_p(), ct.c_size_t()
        codes.append(sim.aclrtMalloc(ct.byref(pointer), 64, HUGE_FIRST))
        codes.append(sim.aclrtMallocHost(ct.byref(pointer), 64))
        codes.append(sim.aclrtGetMemInfo(1, ct.byref(size), ct.byref(size)))
        codes.append(sim.aclrtMemcpy(ct.byref(size), 8, ct.byref(size), 8, H2H))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [NO_CONTEXT] * 4


def test_pinned_memory_is_readable_and_freed_once(sim):
    pointer = ct.c_void_p()
    sim.ok("aclrtMallocHost", ct.byref(pointer), 64)
    ct.memset(pointer, 1, 64)
    sim.ok("aclrtFreeHost", pointer)
    assert sim.aclrtFreeHost(pointer) == RT_PARAM


def test_in_rc_mode_the_host_reads_device_memory(sim):
    sim.isthmus_sim_set_run_mode(1)
    mode = ct.c_int(7)
    sim.ok("aclrtGetRunMode", ct.byref(mode))
    pointer = sim.malloc(64)
    ct.memset(pointer, 0x11, 64)
    assert mode.value == 0
    assert bytes(sim.get(pointer, (64,), np.uint8)) == b"\x11" * 64
    sim.ok("aclrtFree", pointer)


CRASH = """
import ctypes as ct, sys
lib = ct.CDLL(sys.argv[1])
assert lib.aclInit(None) == 0 and lib.aclrtSetDevice(0) == 0
p = ct.c_void_p()
assert lib.aclrtMalloc(ct.byref(p), ct.c_size_t(4096), 0) == 0
print("before", flush=True)
{access}
print("after", flush=True)
"""


@pytest.mark.parametrize("access", ["ct.memset(p, 0, 1)", "ct.string_at(p.value, 1)"])
def test_a_host_that_touches_device_memory_faults(sim_path: Path, access):
    done = subprocess.run(
        [sys.executable, "-c", CRASH.format(access=access), str(sim_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "before\n"
    assert done.returncode == -11, done.stderr
