import gc
import warnings

import attrs
import pytest
from isthmus.errors import (
    ClosedError,
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    InputError,
    InUseError,
    OutOfMemoryError,
    UnsupportedError,
)
from isthmus.types import Capability, MemoryRequirements, Pages


@pytest.mark.parametrize(("size", "alignment"), [(-1, 64), (8, 0), (8, 3), (8, -64)])
def test_bad_sizes_and_alignments_are_refused_before_the_driver(device, driver, size, alignment):
    with pytest.raises(InputError):
        device.allocate(size, alignment=alignment)
    assert driver.calls == []


@pytest.mark.parametrize(("size", "alignment"), [(1 << 63, 64), ((1 << 64) + 8, 64), (8, 1 << 64)])
def test_sizes_that_would_wrap_in_64_bits_never_reach_the_driver(device, driver, size, alignment):
    with pytest.raises(OutOfMemoryError):
        device.allocate(size, alignment=alignment)
    assert driver.calls == []


def test_a_size_must_be_an_integer(device, driver):
    with pytest.raises(TypeError):
        device.allocate(3.5)
    assert driver.calls == []


def test_the_driver_never_sees_an_empty_allocation(device, driver):
    with device.allocate(0) as buffer:
        assert buffer.size == 0
        buffer.write(b"")
        assert buffer.read() == b""
    assert driver.calls == [("allocate", 1, Pages.NORMAL, 64), ("free", 1)]


def test_huge_pages_cannot_be_required_of_a_device_without_them(device, driver):
    with pytest.raises(UnsupportedError, match="huge_pages"):
        device.allocate(1, Pages.REQUIRE_HUGE)
    assert driver.calls == []


def test_a_failed_allocation_leaves_nothing_in_the_ledger(device, driver):
    driver.fail["allocate"] = OutOfMemoryError("none left")
    with pytest.raises(OutOfMemoryError):
        device.allocate(8)
    device.close()
    assert driver.names() == ["allocate", "close"]


def test_a_failed_load_pins_nothing(device, driver, artifact):
    driver.fail["load"] = ExecutionError("no")
    weights = device.allocate(128)
    with pytest.raises(ExecutionError):
        device.load(artifact, weights=weights)
    weights.close()


def test_closing_a_device_releases_everything_newest_first(device, driver, artifact, buffers):
    program = device.load(artifact)
    binding = program.bind("add", *buffers)
    device.close()
    assert driver.names()[-7:] == ["unbind", "unload", *["free"] * 4, "close"]
    assert binding.closed
    assert program.closed
    assert buffers[0]["a"].closed
    device.close()
    binding.close()
    program.close()
    assert driver.names().count("close") == 1
    assert driver.names().count("unload") == 1


def test_what_fails_while_closing_does_not_stop_the_rest(device, driver, artifact, buffers):
    binding = device.load(artifact).bind("add", *buffers)
    driver.fail = {
        "unload": ExecutionError("unload"),
        "free": KeyError("a bug of the driver"),
        "close": ExecutionError("c"),
    }
    with pytest.raises(ExceptionGroup) as caught:
        device.close()
    assert driver.names()[-7:] == ["unbind", "unload", *["free"] * 4, "close"]
    assert [type(e) for e in caught.value.exceptions] == [ExecutionError, *[KeyError] * 4, ExecutionError]
    assert binding.closed
    device.close()
    assert driver.names().count("close") == 1


def test_a_failing_close_of_a_child_still_closes_it_once(device, driver):
    buffer = device.allocate(8)
    driver.fail["free"] = ExecutionError("free")
    with pytest.raises(ExecutionError):
        buffer.close()
    buffer.close()
    device.close()
    assert driver.names().count("free") == 1


def test_a_program_whose_unload_fails_lets_go_of_its_buffers(device, driver, artifact):
    weights = device.allocate(128)
    program = device.load(artifact, weights=weights)
    driver.fail["unload"] = ExecutionError("unload")
    with pytest.raises(ExecutionError):
        program.close()
    weights.close()


def test_a_lost_device_allows_only_close(device, driver, artifact, buffers):
    binding = device.load(artifact).bind("add", *buffers)
    driver.fail["execute"] = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        binding.execute()
    driver.fail.clear()
    for use in (binding.execute, lambda: device.allocate(1), device.memory_info, lambda: buffers[0]["a"].read()):
        with pytest.raises(ClosedError, match="lost"):
            use()
    before = len(driver.calls)
    buffers_and_binding = [binding, *buffers[0].values()]
    for child in buffers_and_binding:
        child.close()
    assert len(driver.calls) == before, "the handles went with the device"
    device.close()
    assert driver.names()[before:] == ["close"]


def test_a_device_lost_while_closing_frees_nothing_more(device, driver):
    buffers = [device.allocate(8) for _ in range(3)]
    driver.fail["free"] = DeviceLostError("gone")
    with pytest.raises(ExceptionGroup) as caught:
        device.close()
    assert len(caught.value.exceptions) == 1
    assert all(buffer.closed for buffer in buffers)
    assert driver.names()[3:] == ["free", "close"]


def test_a_closed_device_refuses_everything(device, driver, artifact):
    device.close()
    before = list(driver.calls)
    for use in (lambda: device.allocate(1), device.memory_info, lambda: device.load(artifact)):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert driver.calls == before


def test_the_garbage_collector_warns_and_calls_no_driver(device, driver):
    with pytest.warns(ResourceWarning, match="unclosed <Buffer of 8 bytes"):
        device.allocate(8)  # dropped at once
    assert driver.names() == ["allocate"]
    device.close()
    assert driver.names() == ["allocate", "free", "close"]


def test_a_forgotten_device_warns(open_fake):
    from isthmus import Device

    device, driver = open_fake()
    twin = Device(device.info, driver)
    with pytest.warns(ResourceWarning, match="unclosed <Device fake:0"):
        del twin
    assert "close" not in driver.names()


def test_closed_things_do_not_warn(open_fake, artifact):
    device, _ = open_fake()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with device, device.allocate(8), device.load(artifact):
            pass
        gc.collect()


def test_an_artifact_of_another_target_is_refused_before_the_driver(device, driver, artifact):
    for changed in ({"target": "elsewhere"}, {"backend": "other"}):
        other = attrs.evolve(artifact, manifest=attrs.evolve(artifact.manifest, **changed))
        with pytest.raises(IncompatibleError, match=next(iter(changed.values()))):
            device.load(other)
        with pytest.raises(IncompatibleError):
            device.memory_requirements(other)
    assert driver.calls == []


def test_lent_memory_arrives_as_regions_of_the_exact_size(device, driver, artifact):
    with (
        device.allocate(1024) as memory,
        device.load(artifact, weights=memory[128:512], workspace=memory[512:]),
    ):
        lent = driver.calls[-1][1]
        assert (lent.weights.offset, lent.weights.size) == (128, 128)
        assert (lent.workspace.offset, lent.workspace.size) == (512, 64)
        with pytest.raises(InUseError, match=r"used by 2 open program"):
            memory.close()


def test_lent_memory_is_checked(device, driver, artifact, open_fake, allocate):
    other, _ = open_fake()
    foreign, memory = allocate(1024, on=other), allocate(1024)
    for kwargs, match in (
        ({"weights": memory[:127]}, "has 127 bytes, the artifact needs 128"),
        ({"weights": memory[8:]}, "starts at byte 8"),
        ({"weights": foreign}, "belongs to"),
        ({"weights": memory[:128], "workspace": memory[64:]}, "overlap"),
        ({"weights": allocate(128, alignment=16)}, "aligned to 16"),
    ):
        with pytest.raises(InputError, match=match):
            device.load(artifact, **kwargs)
    memory.close()
    with pytest.raises(ClosedError):
        device.load(artifact, weights=memory)
    assert "load" not in driver.names()


def test_weights_of_a_loaded_program_cannot_be_overwritten_by_another(device, artifact, allocate):
    memory = allocate(1024)
    first = device.load(artifact, weights=memory[:128], workspace=memory[128:])
    with pytest.raises(InUseError, match="weights of a loaded program"):
        device.load(artifact, weights=memory[64:])
    with pytest.raises(InUseError, match="weights of a loaded program"):
        device.load(artifact, workspace=memory[64:])
    sums = {"sum": memory[64:], "copy": memory[512:]}
    with pytest.raises(InUseError, match="weights of a loaded program"):
        first.bind("add", {"a": memory[256:], "b": memory[256:]}, sums)
    with device.load(artifact, workspace=memory[128:]):
        pass  # a workspace is shared by those that never run at once
    first.close()
    device.load(artifact, weights=memory[64:]).close()


def test_a_device_without_the_ability_refuses_lent_memory(open_fake, artifact):
    device, _ = open_fake(without={Capability.CALLER_WEIGHTS, Capability.CALLER_WORKSPACE})
    with device.allocate(1024) as memory:
        for kwargs in ({"weights": memory}, {"workspace": memory}):
            with pytest.raises(UnsupportedError):
                device.load(artifact, **kwargs)


def test_needing_no_weights_takes_an_empty_buffer(device, driver, artifact):
    driver.need = MemoryRequirements(0, {"add": 0}, {"add": 64}, True, 0, 0)
    with device.allocate(0) as empty, device.load(artifact, weights=empty, workspace=empty):
        pass


@pytest.mark.parametrize("pages", ["require_huge", 3, None])
def test_pages_that_are_no_strategy_are_refused(device, pages):
    with pytest.raises(InputError, match="REQUIRE_HUGE"):
        device.allocate(64, pages)
