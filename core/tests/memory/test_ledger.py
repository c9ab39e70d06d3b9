"""The books of a device: what is noted, what a budget refuses, what is named when it closes."""

from __future__ import annotations

import logging
import mmap
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isthmus.api import Device
from isthmus.artifact import Artifact, FileRecord, Manifest
from isthmus.errors import DeviceLostError, ExecutionError, InputError, OutOfMemoryError
from isthmus.memory import BOOKS, MemoryBudget
from isthmus.memory.limits_load import load_books
from isthmus.memory.soak import soak, trend
from isthmus.spi import Allocation, DeviceDriver
from isthmus.types import (
    Capability,
    DeviceInfo,
    EntrySpec,
    Granted,
    MemoryInfo,
    MemoryRequirements,
    Reality,
    Tolerance,
)

PAGE = 4096
NEED = MemoryRequirements(
    weights=10_000, workspace={"a": 300, "b": 500}, io={}, exact=True, own_load=12_000, caller_load=700
)


class PageDriver(DeviceDriver):
    """Charges whole pages; programs are only counted."""

    capabilities = frozenset({Capability.CALLER_WEIGHTS, Capability.CALLER_WORKSPACE})

    def __init__(self):
        self.held = self.loads = 0
        self.free_bytes = None
        self.fail = None
        self.need = NEED

    def memory_info(self):
        return MemoryInfo(self.free_bytes, self.free_bytes)

    def allocate(self, size, pages, alignment):
        if self.fail:
            raise self.fail
        size = -(-size // PAGE) * PAGE
        self.held += size
        return Allocation(size, size, Granted.NORMAL)

    def free(self, handle):
        self.held -= handle
        if self.fail:
            raise self.fail

    def write(self, region, data):
        pass

    read = copy = write

    def memory_requirements(self, artifact):
        return self.need

    def load(self, artifact, memory):
        if self.fail:
            raise self.fail
        self.loads += 1
        return object()

    def unload(self, program):
        self.loads -= 1

    def bind(self, program, entry, inputs, outputs):
        return object()

    rebind = unbind = execute = lambda *_: None

    def close(self):
        pass


@pytest.fixture
def driver():
    return PageDriver()


@pytest.fixture
def device(driver):
    with Device(DeviceInfo("fake", "0", ("any",), Reality.SIMULATED, "pages only"), driver) as device:
        yield device


@pytest.fixture
def artifact(tmp_path):
    manifest = Manifest(
        isthmus="0",
        backend="fake",
        plugin="0",
        target="any",
        reality=Reality.SIMULATED,
        toolchain={},
        options={},
        source_sha256="",
        graphs_sha256="",
        dialect="canonical",
        entries={"a": EntrySpec((), ())},
        memory=NEED,
        tolerance=Tolerance(0, 0),
        placement={},
        notes=(),
        model={},
        files={"x": FileRecord(0, "")},
    )
    return Artifact(tmp_path / "model", manifest)


def test_a_buffer_is_noted_with_what_it_is_charged_and_forgotten_when_closed(device):
    buffer = device.allocate(5000, book="kv", owner="chat")
    (record,) = device.memory.records()
    assert attrs.astuple(record) == ("kv", "chat", 8192, Granted.NORMAL, None)
    assert device.memory.books["kv"] == device.memory.live == 8192
    buffer.close()
    buffer.close()
    assert device.memory.live == 0
    assert device.memory.report().books["kv"] == attrs.evolve(device.memory.report().books["kv"], live=0, peak=8192)


def test_a_book_that_is_none_is_refused_before_anything_is_allocated(device, driver):
    with pytest.raises(InputError, match="no book 'toys'"):
        device.allocate(1, book="toys")
    assert driver.held == 0


def test_a_program_is_noted_as_the_driver_states_it(device, artifact):
    with device.load(artifact):
        assert device.memory.books["weights"] == NEED.own_load - NEED.peak_workspace
        assert device.memory.books["workspace"] == NEED.peak_workspace
    assert device.memory.live == 0


@pytest.mark.parametrize(("weights", "workspace"), [(False, False), (True, False), (False, True), (True, True)])
def test_lent_memory_is_not_counted_twice(weights: bool, workspace: bool) -> None:
    books = load_books(NEED, weights_lent=weights, workspace_lent=workspace)
    expected = {
        (False, False): 12_000,
        (True, False): 700 + 500,
        (False, True): 12_000 - 500,
        (True, True): 700,
    }
    assert sum(books.values()) == expected[weights, workspace]
    assert books["workspace"] == (0 if workspace else 500)


def test_phases_note_what_they_leave_and_their_peak(device):
    with device.memory.phase("first"):
        kept = device.allocate(PAGE)
        device.allocate(3 * PAGE).close()
        with device.memory.phase("inner"):
            device.allocate(PAGE).close()
    with device.memory.phase("second"):
        kept.close()
    found = {p.name: (p.delta, p.peak) for p in device.memory.report().phases}
    assert found == {"inner": (0, 2 * PAGE), "first": (PAGE, 4 * PAGE), "second": (-PAGE, PAGE)}


def test_call_sites_are_named_on_demand(device):
    before = device.allocate(1)
    device.memory.sites = True
    after = device.allocate(1)  # here
    without, named = device.memory.records()
    before.close()
    after.close()
    assert without.site is None
    file, line = named.site.rsplit(":", 1)
    assert file == __file__
    assert Path(__file__).read_text("utf-8").splitlines()[int(line) - 1].endswith("# here")


def test_closing_a_device_names_what_is_still_held(driver, artifact, caplog):
    device = Device(DeviceInfo("fake", "0", ("any",), Reality.SIMULATED, ""), driver)
    buffer = device.allocate(10, book="kv", owner="a forgotten chat")
    program = device.load(artifact)
    with caplog.at_level(logging.WARNING, "isthmus.memory"):
        device.close()
    assert "3 live allocation(s)" in caplog.text
    assert "4096 bytes of kv for a forgotten chat" in caplog.text
    assert (driver.held, driver.loads) == (0, 0)
    assert device.memory.live == 0
    assert buffer.closed
    assert program.closed


def test_closing_a_device_on_which_nothing_is_left_says_nothing(driver, artifact, caplog):
    info = DeviceInfo("fake", "0", ("any",), Reality.SIMULATED, "")
    with caplog.at_level(logging.WARNING, "isthmus.memory"), Device(info, driver) as device:
        device.load(artifact).close()
        device.allocate(1).close()
    assert not caplog.records


@pytest.mark.parametrize("error", [ExecutionError("no"), DeviceLostError("gone")])
def test_what_fails_leaves_no_trace_in_the_books(device, driver, artifact, error):
    device.memory.budget = MemoryBudget(1 << 20)
    buffer = device.allocate(100)
    driver.fail = error
    for step in (buffer.close, lambda: device.allocate(1), lambda: device.load(artifact)):
        with pytest.raises(Exception, match=r"no|gone|lost"):
            step()
    assert device.memory.live == 0
    assert device.memory.budget.used == 0
    driver.fail = None


def test_a_budget_bounds_buffers_to_the_charged_byte(device, driver):
    device.memory.budget = MemoryBudget(2 * PAGE)
    first = device.allocate(PAGE)
    with pytest.raises(OutOfMemoryError, match="budget of 8192"):
        device.allocate(PAGE + 1)  # two pages, of which one is left
    assert driver.held == PAGE
    device.allocate(PAGE - 1).close()
    assert device.memory.budget.used == PAGE
    first.close()
    assert device.memory.budget.used == 0


@settings(max_examples=60)
@given(
    limit=st.integers(0, 20 * PAGE),
    steps=st.lists(st.tuples(st.sampled_from(BOOKS), st.integers(0, 6 * PAGE), st.booleans()), max_size=30),
)
def test_a_budget_is_never_exceeded_and_always_comes_back(limit, steps):
    driver = PageDriver()
    with Device(DeviceInfo("fake", "0", ("any",), Reality.SIMULATED, ""), driver) as device:
        budget = device.memory.budget = MemoryBudget(limit)
        held = []
        for book, size, close_one in steps:
            if close_one and held:
                held.pop(0).close()
            try:
                held.append(device.allocate(size, book=book))
            except OutOfMemoryError:
                assert -(-max(size, 1) // PAGE) * PAGE > limit - driver.held
            assert driver.held == device.memory.live == budget.used <= limit
        for buffer in held:
            buffer.close()
        assert budget.used == 0


@pytest.mark.parametrize("spare", [0, -1])
def test_load_is_refused_when_a_byte_is_missing_before_anything_is_allocated(device, driver, artifact, spare):
    driver.free_bytes = NEED.own_load + spare
    if spare == 0:
        device.load(artifact).close()
        return
    with pytest.raises(OutOfMemoryError) as caught:
        device.load(artifact)
    assert f"needs {NEED.own_load} bytes, {NEED.own_load - 1} are free (1 short); nothing was allocated" in str(
        caught.value
    )
    for row in ("needed: weights", "needed: workspace", "free"):
        assert row in str(caught.value)
    assert (driver.loads, device.memory.live) == (0, 0)


def test_load_is_refused_beyond_the_budget_and_shows_what_is_held(device, driver, artifact):
    device.memory.budget = MemoryBudget(NEED.own_load + PAGE - 1)
    with (
        device.allocate(1, book="kv"),
        pytest.raises(OutOfMemoryError, match=r"left of the budget \(1 short\)") as caught,
    ):
        device.load(artifact)
    assert "held: kv" in str(caught.value)
    assert driver.loads == 0
    device.load(artifact).close()


def test_force_loads_all_the_same_and_says_so(device, driver, artifact, caplog):
    driver.free_bytes = 1
    device.memory.budget = MemoryBudget(1)
    with caplog.at_level(logging.WARNING, "isthmus.memory"), device.load(artifact, force=True):
        assert driver.loads == 1
        assert device.memory.budget.used == 0
    assert caplog.text.count("forced: loading") == 2


def test_lent_memory_lets_a_program_load_where_it_would_not_fit_alone(device, driver, artifact):
    with device.allocate(NEED.weights, book="weights") as lent:
        driver.free_bytes = NEED.caller_load + NEED.peak_workspace
        with pytest.raises(OutOfMemoryError):
            device.load(artifact)
        device.load(artifact, weights=lent).close()


# ---- soak


def series(count, level, per_sample=0, noise=0, step_at=None, step=0):
    values = [level + per_sample * i + (noise if i % 2 else 0) for i in range(count)]
    return [v + (step if step_at is not None and i >= step_at else 0) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "leaking"),
    [
        (series(200, 1 << 27), False),
        (series(200, 1 << 27, noise=1 << 20), False),
        (series(200, 1 << 27, per_sample=20_000), True),
        (series(200, 1 << 27, per_sample=20_000, noise=1 << 20), True),
        (series(200, 1 << 27, step_at=30, step=8 << 20), False),  # a pool that fills once, early
        (series(200, 1 << 27, step_at=100, step=8 << 20), False),  # or in the middle
        (series(4, 1 << 27, per_sample=1 << 20), False),  # too few to say
    ],
)
def test_growth_is_told_from_noise_and_from_pools_that_fill_once(values: list[int], leaking: bool) -> None:
    assert trend("x", range(1, len(values) + 1), values).leaking is leaking


def test_the_slope_is_bytes_per_request() -> None:
    found = trend("x", range(50, 10_050, 50), [1 << 27 | i * 5000 for i in range(200)])
    assert found.per_request == pytest.approx(100, rel=0.2)


def test_a_request_that_keeps_a_buffer_is_found_leaking(device: Device) -> None:
    kept = []
    leaky = soak(device, lambda: kept.append(device.allocate(PAGE * 64)), 24, lambda *_: None)
    assert {t.name: t.leaking for t in leaky.trends}["device, in the books"]
    assert leaky.leaking
    for buffer in kept:
        buffer.close()


def test_a_request_that_keeps_host_memory_is_found_leaking(device: Device) -> None:
    kept = []

    def leak() -> None:
        kept.append(mmap.mmap(-1, 1 << 20))
        kept[-1].write(b"x" * (1 << 20))

    found = {t.name: t for t in soak(device, leak, 24, lambda *_: None).trends}
    assert found["host"].leaking
    assert found["host"].per_request == pytest.approx(1 << 20, rel=0.2)
    assert not found["device, in the books"].leaking


def test_a_request_that_gives_everything_back_is_not(device: Device) -> None:
    done = []
    found = soak(device, lambda: device.allocate(PAGE).close(), 24, lambda n, _: done.append(n))
    assert not found.leaking
    assert done[-1] == 24
    assert attrs.evolve(found, left=1).leaking
