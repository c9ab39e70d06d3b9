"""Page strategies: what was asked, what was granted, and what the kernel says."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from isthmus import Buffer, Capability, Device, Granted, Pages
from isthmus.conformance.trays import assert_bytes
from isthmus.errors import OutOfMemoryError, UnsupportedError

SIZE = 4 << 20


@attrs.frozen
class Mapping:
    """What ``/proc/self/smaps`` says of the memory behind a buffer."""

    page: int
    flags: frozenset[str]


def mapping_of(buffer: Buffer) -> Mapping | None:
    """``None``: the memory is not this process's to look at."""
    if Capability.HOST_VISIBLE not in buffer.device.capabilities or not Path("/proc/self/smaps").exists():
        return None
    address = buffer.view().array().__array_interface__["data"][0]
    inside, page = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if header := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(header[1], 16) <= address < int(header[2], 16)
        elif inside and line.startswith("KernelPageSize:"):
            page = int(line.split()[1]) * 1024
        elif inside and line.startswith("VmFlags:"):
            return Mapping(page, frozenset(line.split()[1:]))
    return None


def check_against_the_kernel(buffer: Buffer) -> None:
    found = mapping_of(buffer)
    if found is None or buffer.granted is Granted.UNKNOWN:
        return
    base = 4096 if found.page < 65536 else found.page
    huge = found.page > base or "ht" in found.flags
    advised = "hg" in found.flags
    told = {
        Granted.HUGE: huge,
        Granted.TRANSPARENT_HUGE: advised and not huge,
        Granted.NORMAL: not huge and not advised,
    }
    assert told[buffer.granted], f"granted {buffer.granted.value}, but the kernel has {found}"


def test_normal_pages_are_normal(device: Device) -> None:
    with device.allocate(SIZE, Pages.NORMAL) as buffer:
        buffer.write(bytes(SIZE))
        assert buffer.granted in (Granted.NORMAL, Granted.UNKNOWN)
        check_against_the_kernel(buffer)


def test_preferring_huge_pages_always_yields_memory(device: Device) -> None:
    with device.allocate(SIZE, Pages.PREFER_HUGE) as buffer:
        buffer.write(b"k" * SIZE)
        assert_bytes(buffer.read(), b"k" * SIZE)


def test_what_was_granted_is_what_there_is(device: Device) -> None:
    with device.allocate(SIZE, Pages.PREFER_HUGE) as buffer:
        buffer.write(bytes(SIZE))
        check_against_the_kernel(buffer)
        if Capability.HUGE_PAGES not in device.capabilities:
            assert buffer.granted is not Granted.HUGE


def test_required_huge_pages_are_huge_or_refused(device: Device) -> None:
    if Capability.HUGE_PAGES not in device.capabilities:
        with pytest.raises(UnsupportedError):
            device.allocate(SIZE, Pages.REQUIRE_HUGE).close()
        return
    try:
        buffer = device.allocate(SIZE, Pages.REQUIRE_HUGE)
    except OutOfMemoryError:
        return
    with buffer:
        assert buffer.granted is Granted.HUGE
        buffer.write(b"h" * SIZE)
        check_against_the_kernel(buffer)


def test_huge_pages_run_out_with_an_error_that_says_so(device: Device) -> None:
    if Capability.HUGE_PAGES not in device.capabilities:
        return
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(1 << 46, Pages.REQUIRE_HUGE).close()
    assert caught.value.fix, "a refusal names the next step"
