from __future__ import annotations

import itertools
import mmap

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from isthmus.api import Device
from isthmus.errors import InputError, InUseError, OutOfMemoryError
from isthmus.memory import Block, MemoryBudget, Pool
from isthmus.spi import Allocation, DeviceDriver
from isthmus.types import Capability, DeviceInfo, Granted, MemoryInfo, Reality


class HostDriver(DeviceDriver):
    """Allocations only: what a pool needs of a device."""

    capabilities = frozenset({Capability.HOST_VISIBLE})

    def memory_info(self):
        return MemoryInfo(None, None)

    def allocate(self, size, pages, alignment):
        return Allocation(mmap.mmap(-1, size), size, Granted.NORMAL)

    def free(self, handle):
        handle.close()

    def write(self, region, data):
        region.handle[region.offset : region.offset + region.size] = data

    def read(self, region, out):
        out[:] = region.handle[region.offset : region.offset + region.size]

    def copy(self, dst, src):
        dst.handle[dst.offset : dst.offset + dst.size] = src.handle[src.offset : src.offset + src.size]

    def close(self):
        pass

    memory_requirements = load = unload = bind = rebind = unbind = execute = None


def open_host() -> Device:
    return Device(DeviceInfo("host", "0", ("host",), Reality.REAL, "memory"), HostDriver())


@pytest.fixture
def device():
    with open_host() as opened:
        yield opened


CAPACITY = 1 << 16


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool against a model that is a plain list of what is out."""

    def __init__(self) -> None:
        super().__init__()
        self.device = open_host()
        self.pool = Pool(self.device, CAPACITY, budget=MemoryBudget(CAPACITY // 2))
        self.out: list[Block] = []

    @rule(size=st.integers(1, CAPACITY), book=st.sampled_from(["weights", "kv"]), owner=st.sampled_from(["", "a", "b"]))
    def allocate(self, size: int, book: str, owner: str) -> None:
        before = self.pool.used
        try:
            self.out.append(self.pool.allocate(size, book=book, owner=owner))
        except OutOfMemoryError:
            need = -(-size // 64) * 64
            assert need > self.pool.largest_free or before + need > self.pool.budget.limit
            assert self.pool.used == before

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.out.pop(data.draw(st.integers(0, len(self.out) - 1))).close()

    @invariant()
    def books_and_blocks_agree(self) -> None:
        spans = sorted((b.offset, b.offset + b.size) for b in self.out)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert not spans or spans[-1][1] <= CAPACITY
        assert self.pool.used == self.pool.budget.used == sum(b.size for b in self.out) <= self.pool.budget.limit
        gaps = np.diff([0, *(edge for span in spans for edge in span), CAPACITY])[::2]
        assert self.pool.largest_free == max(gaps)

    def teardown(self) -> None:
        for block in self.out:
            block.close()
        assert self.pool.largest_free == CAPACITY
        self.pool.close()
        self.device.close()


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_a_pool_never_hands_out_what_it_does_not_have = PoolMachine.TestCase


def test_a_reload_takes_the_same_addresses(device) -> None:
    with Pool(device, CAPACITY) as pool:
        first = pool.allocate(1000, owner="model a")
        second = pool.allocate(2000, owner="model b")
        where = first.offset
        first.close()
        third = pool.allocate(64, owner="model c")
        third.close()
        again = pool.allocate(1000, owner="model a")
        assert again.offset == where
        for block in (second, again):
            block.close()


def test_exhaustion_shows_the_books_and_the_largest_block(device) -> None:
    books = r"2048 free, 2048 of it.*weights 1024.*kv 1024"
    with (
        Pool(device, 4096) as pool,
        pool.allocate(1024, book="weights"),
        pool.allocate(1024, book="kv"),
        pytest.raises(OutOfMemoryError, match=books),
    ):
        pool.allocate(4000)


def test_blocks_hold_what_was_written(device) -> None:
    with Pool(device, 4096) as pool, pool.allocate(100) as a, pool.allocate(100) as b:
        a.view.write(b"a" * 100)
        b.view.write(b"b" * 100)
        out = bytearray(100)
        a.view.read_into(out)
        assert out == b"a" * 100


def test_closing_a_pool_names_the_blocks_that_are_out(device) -> None:
    pool = Pool(device, 4096)
    block = pool.allocate(64, owner="vision weights")
    with pytest.raises(InUseError, match="vision weights"):
        pool.close()
    block.close()
    block.close()
    with pytest.raises(InputError):
        block.view  # noqa: B018
    pool.close()


def llm_trace(rng: np.random.Generator, operations: int):
    """A server's life: conversations come, keep a KV cache of one of four sizes for a while, and go."""
    sizes = np.array([1, 2, 4, 8]) << 16
    live: list[int] = []
    for step in range(operations):
        if live and (len(live) > 48 or rng.random() < 0.48):
            yield "free", live.pop(int(rng.integers(len(live)))), 0
        else:
            live.append(step)
            yield "allocate", step, int(rng.choice(sizes))
    yield from (("free", step, 0) for step in live)


@pytest.mark.parametrize("operations", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_an_llm_like_trace_fragments_less_than_five_percent(device, operations) -> None:
    blocks: dict[int, Block] = {}
    fragmentation = []
    with Pool(device, 64 << 20) as pool:
        for kind, step, size in llm_trace(np.random.default_rng(0), operations):
            if kind == "free":
                blocks.pop(step).close()
            else:
                blocks[step] = pool.allocate(size, book="kv")
            fragmentation.append(pool.fragmentation)
    assert np.mean(fragmentation) < 0.05  # over the trace; single moments reach 0.18
    assert pool.high_water < 17 << 20  # the peak in use is 14 MB
