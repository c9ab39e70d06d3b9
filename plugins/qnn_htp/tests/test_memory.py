"""Buffers: aligned, shared with the process that runs QNN, charged when allocated, and never dangling."""

import os
from pathlib import Path

import numpy as np
import pytest
from isthmus.errors import OutOfMemoryError
from isthmus.types import Capability, DType, Granted, Pages, TensorSpec
from isthmus_qnn_htp import memory


@pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16, 1 << 21])
def test_a_buffer_is_aligned_where_the_runtime_sees_it(alignment):
    allocated = memory.HostMemory().allocate(100, Pages.NORMAL, alignment)
    assert allocated.address % max(alignment, 64) == 0
    assert len(allocated.bytes) == 100
    elsewhere = memory.map_shared(os.dup(allocated.fd), allocated.length, allocated.offset, 100, allocated.granted)
    elsewhere.bytes[:3] = b"abc"
    assert bytes(allocated.bytes[:3]) == b"abc"
    allocated.release()


@pytest.mark.parametrize("size", [1, 63, 4096, 4097, 1 << 20])
def test_bytes_go_in_and_come_out(device, size):
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with device.allocate(size, alignment=1 << 13) as buffer, device.allocate(size) as copy:
        buffer.write(data)
        copy[0:size].copy_from(buffer)
        assert bytes(copy.read()) == data.tobytes()
        part = size // 3
        buffer.write(data[:part], offset=size - part)
        assert bytes(buffer.read()) == data[: size - part].tobytes() + data[:part].tobytes()


def test_memory_is_charged_when_it_is_allocated():
    """A memfd that is only sized fails later, with a signal."""
    allocated = memory.HostMemory().allocate(1 << 20, Pages.NORMAL, 64)
    assert os.fstat(allocated.fd).st_blocks * 512 >= 1 << 20
    allocated.release()


def test_more_than_is_free_is_out_of_memory_with_both_figures(device):
    free = device.memory_info().free
    with pytest.raises(OutOfMemoryError, match=rf"{free * 4} bytes asked for, \d+ are free"):
        device.allocate(free * 4)
    device.allocate(64).close()


def test_an_array_outlives_its_buffer(device):
    buffer = device.allocate(4096)
    array = buffer.view(TensorSpec("x", DType.INT32, (1024,))).array()
    array[:] = 3
    buffer.close()
    assert array.sum() == 3 * 1024


def test_preferred_huge_pages_report_what_was_granted(device):
    assert Capability.HUGE_PAGES in device.capabilities
    with device.allocate(1 << 20, Pages.PREFER_HUGE) as buffer:
        assert buffer.granted in (Granted.HUGE, Granted.NORMAL)


@pytest.fixture
def two_huge_pages():
    """Reserve two huge pages, where this user may."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    before = int(setting.read_text())
    if before or not os.access(setting, os.W_OK):
        pytest.skip("unavailable here: huge pages cannot be reserved")
    setting.write_text("2")
    if int(setting.read_text()) < 2:
        setting.write_text("0")
        pytest.skip("unavailable here: no two huge pages left")
    yield memory.host_memory().huge_page_size
    setting.write_text("0")


@pytest.mark.slow  # changes a setting of the machine while it runs
def test_required_huge_pages_are_huge_in_both_processes_or_refused(device, two_huge_pages, artifact, contexts, case):
    fp32 = case(contexts, "fp32")
    with device.allocate(two_huge_pages + 1, Pages.REQUIRE_HUGE, alignment=two_huge_pages) as buffer:
        assert buffer.granted is Granted.HUGE
        assert buffer.allocated_size == 2 * two_huge_pages
        assert memory.host_memory().huge_pages_free == 0
        with pytest.raises(OutOfMemoryError, match="0 of 2 pages"):
            device.allocate(1, Pages.REQUIRE_HUGE)
        with device.load(artifact(fp32.binary)) as program:
            x, y = buffer[0:512], buffer[4096 : 4096 + 256]
            x.write(fp32.inputs["x"])
            program.execute("main", {"x": x}, {"y": y})
            got = bytearray(256)
            y.read_into(got)
        np.testing.assert_array_equal(np.frombuffer(got, np.float32).reshape(2, 32), fp32.outputs["y"])
    assert memory.host_memory().huge_pages_free == 2


def test_required_huge_pages_without_any_say_what_to_do(device):
    if memory.host_memory().huge_pages_free:
        pytest.skip("unavailable here: a machine without free huge pages")
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(1 << 21, Pages.REQUIRE_HUGE)
    assert "sysctl vm.nr_hugepages" in caught.value.fix


def test_memory_info_is_that_of_the_kernel(device):
    (total,) = [
        int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")
    ]
    assert device.memory_info().total == total * 1024


def test_requirements_come_from_the_binarys_own_metadata(device, artifact, contexts, case, metadata):
    two = case(contexts, "two")
    made = artifact(two.binary, ("first", "second"))
    found = device.memory_requirements(made)
    graphs = metadata(two.binary).graphs
    assert found.weights == sum(graph.const for graph in graphs) > 0
    assert found.io == {"first": 2 * 64 * 4 + 2 * 32 * 4, "second": 2 * 32 * 4 + 2 * 16 * 4}
    assert found.own_load == found.weights + sum(graph.op_data for graph in graphs)
    assert found.workspace == {"first": 0, "second": 0}
    assert not found.exact


def test_no_buffer_holds_a_file_descriptor(device):
    before = len(list(Path("/proc/self/fd").iterdir()))
    buffers = [device.allocate(4096) for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    for buffer in buffers:
        buffer.close()


def test_memory_is_given_back(device):
    def mapped():
        return Path("/proc/self/maps").read_text().count("isthmus-qnn")

    before = mapped()
    for _ in range(20):
        device.allocate(1 << 16).close()
    assert mapped() == before
