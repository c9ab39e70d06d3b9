"""What allocation, page policies, capacity and load-with-memory do, and that nothing is left behind."""

from __future__ import annotations

from typing import Any

import isthmus
import numpy as np
import pytest
from isthmus import Granted, Pages
from isthmus.artifact import Artifact
from isthmus.errors import OutOfMemoryError
from isthmus_ascend_cann import sizes

MIB = 1 << 20


def test_a_large_block_that_prefers_huge_pages_gets_them(device: isthmus.Device) -> None:
    with device.allocate(3 * MIB, Pages.PREFER_HUGE) as block:
        assert (block.granted, block.allocated_size) == (Granted.HUGE, 4 * MIB)


def test_a_small_block_that_prefers_huge_pages_gets_base_pages(device: isthmus.Device) -> None:
    with device.allocate(1000, Pages.PREFER_HUGE) as block:
        assert (block.granted, block.allocated_size) == (Granted.NORMAL, 4096)


def test_normal_pages_are_charged_in_base_pages(device: isthmus.Device, simulator: Any) -> None:
    with device.allocate(3 * MIB, Pages.NORMAL) as block:
        assert (block.granted, block.allocated_size) == (Granted.NORMAL, 3 * MIB + 4096)
        assert simulator.used() == block.allocated_size


def test_required_huge_pages_cost_two_mebibytes_for_one_kibibyte(device: isthmus.Device, simulator: Any) -> None:
    with device.allocate(1024, Pages.REQUIRE_HUGE) as block:
        assert (block.granted, block.allocated_size) == (Granted.HUGE, 2 * MIB)
        assert simulator.used() == 2 * MIB


def test_required_huge_pages_fail_with_the_explanation_when_the_pool_is_empty(
    device: isthmus.Device, simulator: Any
) -> None:
    simulator.memory(huge=0)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(4 * MIB, Pages.REQUIRE_HUGE)
    text = str(caught.value)
    assert "no 4194304 bytes in huge pages" in text
    assert "PREFER_HUGE" in text
    assert "207001 ACL_ERROR_RT_MEMORY_ALLOCATION" in text
    assert "EL0004" in text


def test_preferred_huge_pages_fall_back_to_base_pages_and_say_so(device: isthmus.Device, simulator: Any) -> None:
    simulator.memory(huge=0)
    with device.allocate(4 * MIB, Pages.PREFER_HUGE) as block:
        assert block.granted is Granted.NORMAL


def test_pages_of_a_gibibyte_are_an_option_of_the_device(simulator: Any) -> None:
    simulator.memory(capacity=4 << 30, giant=2 << 30)
    with (
        isthmus.open_device("ascend", options={"giant_pages": True}) as opened,
        opened.allocate(5, Pages.REQUIRE_HUGE) as block,
    ):
        assert (block.granted, block.allocated_size) == (Granted.HUGE, 1 << 30)


def test_peer_memory_is_an_option_of_the_device(simulator: Any) -> None:
    simulator.soc("Ascend310B1")
    with isthmus.open_device("ascend", options={"p2p": True}) as opened, pytest.raises(isthmus.IsthmusError) as caught:
        opened.allocate(64)
    assert "207000" in str(caught.value)


def test_a_larger_alignment_is_kept(device: isthmus.Device) -> None:
    with device.allocate(100, alignment=1 << 16) as block:
        assert block._region.handle.address % (1 << 16) == 0
        block.write(bytes(range(100)))
        assert block.read(100) == bytes(range(100))


def test_memory_info_counts_free_huge_pages(device: isthmus.Device, simulator: Any) -> None:
    info = device.memory_info()
    assert (info.total, info.huge_page_size, info.huge_pages_free) == (1 << 30, 2 * MIB, 256)


def test_a_device_that_does_not_know_its_memory_says_unknown(device: isthmus.Device, simulator: Any) -> None:
    simulator.memory(capacity=0, huge=0)
    info = device.memory_info()
    assert (info.total, info.free, info.huge_pages_free) == (None, None, None)


def test_out_of_memory_shows_the_books(device: isthmus.Device, plain_artifact: Artifact) -> None:
    with device.load(plain_artifact), device.allocate(MIB), pytest.raises(OutOfMemoryError) as caught:
        device.allocate(1 << 40)
    text = str(caught.value)
    for row in ("held: weights", "held: workspace", "held: buffers", "free in 2 MiB pages", "total"):
        assert row in text
    assert "1. a process left over" in text


def test_large_and_small_transfers_arrive_in_order(device: isthmus.Device) -> None:
    rng = np.random.default_rng(0)
    large, small = rng.bytes(9 * MIB), rng.bytes(1000)
    with device.allocate(9 * MIB) as one, device.allocate(9 * MIB) as two:
        one.write(large)
        one.write(small, 5)
        two.view().copy_from(one)
        two.write(small)
        expected = bytearray(large)
        expected[5:1005] = small
        assert one.read() == expected
        expected[:1000] = small
        assert two.read() == expected


@pytest.mark.parametrize("what", ["buffer", "program", "binding"])
def test_what_is_released_after_a_queued_copy_failed_is_released_all_the_same(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact, what: str
) -> None:
    before = simulator.live()
    with device.allocate(4 * 4096) as x, device.allocate(4 * 4096) as y, device.allocate(64) as spare:
        program = device.load(plain_artifact)
        binding = program.bind("main", {"x": x}, {"y": y})
        buffer = device.allocate(64)
        order = {
            "buffer": (buffer, binding, program),
            "program": (binding, program, buffer),
            "binding": (binding, buffer, program),
        }
        for number, part in enumerate(order[what]):
            if number == (1 if what == "program" else 0):
                spare.write(b"queued")
                simulator.fail("aclrtSynchronizeStreamWithTimeout", 1)
                with pytest.raises(isthmus.IsthmusError, match="aclrtSynchronizeStreamWithTimeout"):
                    part.close()
            else:
                part.close()
    assert simulator.live() == before


def test_the_ring_of_pinned_memory_is_reused_without_mixing_transfers(simulator: Any) -> None:
    with isthmus.open_device("ascend", options={"staging_kib": 4}) as opened, opened.allocate(64 << 10) as block:
        parts = [bytes([i]) * 1500 for i in range(40)]
        for i, part in enumerate(parts):
            block.write(part, 1500 * i)
        assert block.read(60_000) == b"".join(parts)


def test_copies_work_without_pinned_memory(simulator: Any) -> None:
    with isthmus.open_device("ascend", options={"staging_kib": 0}) as opened, opened.allocate(100) as block:
        block.write(b"a" * 100)
        assert block.read() == b"a" * 100
        assert simulator.calls("aclrtMallocHost") == 0


def test_a_board_whose_host_is_the_card_uses_no_pinned_memory(simulator: Any) -> None:
    simulator.run_mode(True)
    with isthmus.open_device("ascend") as opened, opened.allocate(100) as block:
        block.write(b"b" * 100)
        assert block.read() == b"b" * 100
        assert simulator.calls("aclrtMallocHost") == 0


def test_loading_succeeds_when_exactly_what_size_says_is_free(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    need = device.memory_requirements(plain_artifact).own_load
    simulator.memory(capacity=need, huge=need)
    with device.load(plain_artifact):
        assert simulator.used() == need


def test_loading_is_refused_before_any_allocation_when_one_byte_is_missing(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    need = device.memory_requirements(plain_artifact).own_load
    simulator.memory(capacity=need - 1, huge=need)
    before = simulator.allocations()
    with pytest.raises(OutOfMemoryError) as caught:
        device.load(plain_artifact)
    assert simulator.allocations() == before
    text = str(caught.value)
    assert f"needs {need} bytes, {need - 1} are free (1 short); nothing was allocated" in text
    assert "needed: weights" in text
    assert "needed: workspace" in text


def test_caller_memory_of_the_stated_size_is_enough_and_nothing_else_is_allocated(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    need = device.memory_requirements(plain_artifact)
    with device.allocate(need.weights) as weights, device.allocate(need.peak_workspace) as workspace:
        before = simulator.allocations()
        with device.load(plain_artifact, weights=weights, workspace=workspace):
            assert simulator.allocations() == before
            assert need.caller_load == 0


def test_cycles_of_load_and_unload_with_caller_memory_allocate_nothing(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    cycle_loads(device, simulator, plain_artifact, 50)


@pytest.mark.slow
def test_a_thousand_cycles_of_load_and_unload_with_caller_memory_allocate_nothing(
    device: isthmus.Device, simulator: Any, plain_artifact: Artifact
) -> None:
    cycle_loads(device, simulator, plain_artifact, 1000)


def cycle_loads(device: isthmus.Device, simulator: Any, artifact: Artifact, count: int) -> None:
    need = device.memory_requirements(artifact)
    x = np.ones((4, 1024), np.float32)
    with device.allocate(need.weights) as weights, device.allocate(need.peak_workspace) as workspace:
        with device.load(artifact, weights=weights, workspace=workspace) as program:
            wanted = program.run("main", {"x": x})["y"]
        used, allocations, live = simulator.used(), simulator.allocations(), simulator.live()
        for _ in range(count):
            device.load(artifact, weights=weights, workspace=workspace).close()
        assert (simulator.used(), simulator.allocations(), simulator.live()) == (used, allocations, live)
        with device.load(artifact, weights=weights, workspace=workspace) as program:
            np.testing.assert_array_equal(program.run("main", {"x": x})["y"], wanted)


def test_an_allocation_is_charged_as_documented() -> None:
    assert [sizes.rounded(n) for n in (1, 32, 33, 64)] == [64, 64, 96, 96]
    assert sizes.charged(0) == 0
    assert sizes.charged(1) == 4096
    assert sizes.charged(MIB) == 2 * MIB  # rounded size is above 1 MiB
    assert sizes.charged(MIB - 64) == MIB
    assert sizes.charged(3 * MIB, sizes.PAGE) == 3 * MIB + 4096


def test_pieces_of_a_block_are_aligned_and_have_room_behind_them() -> None:
    starts, total = sizes.offsets([1, 100, 0, 64])
    assert starts == [0, 64, 256, 256]
    assert total == 384
