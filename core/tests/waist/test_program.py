import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import ClosedError, ExecutionError, InputError, InUseError, UnsupportedError
from isthmus.types import Capability, DType, EntrySpec, ProfileEvent, TensorSpec

WRONG_TYPE = TensorSpec("a", DType.INT32, (4,))


def test_binding_fixes_exact_regions_in_the_order_of_the_spec(program, driver, allocate):
    memory = allocate(256)
    with program.bind(
        "add", {"b": memory[32:100], "a": memory[:32]}, {"copy": memory[200:], "sum": memory[128:144]}
    ) as binding:
        binding.execute()
    inputs, outputs = driver.calls[-2][1]
    assert [(r.offset, r.size) for r in inputs + outputs] == [(0, 16), (32, 16), (128, 16), (200, 16)]
    assert driver.names()[-3:] == ["bind", "execute", "unbind"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda i, o, m: i.pop("a"), r"missing \['a'\]"),
        (lambda i, o, m: i.update(z=m), r"unknown \['z'\]"),
        (lambda i, o, m: o.pop("sum"), r"missing \['sum'\]"),
        (lambda i, o, m: i.update(a=m[:15]), "'a' of entry 'add' needs 16 bytes"),
        (lambda i, o, m: i.update(a=m.view(WRONG_TYPE)), r"is float32\[4\], got a: int32"),
        (lambda i, o, m: i.update(a=m.view(TensorSpec("a", DType.FLOAT32, (2, 2)))), r"got a: float32\[2, 2\]"),
        (lambda i, o, m: o.update(sum=m, copy=m), "overlaps"),
        (lambda i, o, m: o.update(sum=m[:16], copy=m[15:]), "overlaps"),
        (lambda i, o, m: (i.update(a=m[:16]), o.update(sum=m[8:])), "'sum' overlaps"),
    ],
)
def test_bad_bindings_are_refused_before_the_driver(program, driver, buffers, allocate, change, match):
    inputs, outputs = buffers
    change(inputs, outputs, allocate(64))
    with pytest.raises(InputError, match=match):
        program.bind("add", inputs, outputs)
    assert "bind" not in driver.names()


def test_memory_of_another_device_is_refused(program, buffers, open_fake, allocate):
    other, _ = open_fake()
    buffers[0]["a"] = allocate(16, on=other)
    with pytest.raises(InputError, match="is on"):
        program.bind("add", *buffers)


def test_closed_memory_is_refused(program, buffers):
    buffers[0]["a"].close()
    with pytest.raises(ClosedError):
        program.bind("add", *buffers)


def test_an_unknown_entry_is_refused_with_the_ones_there_are(program, buffers):
    with pytest.raises(InputError, match="it has: add"):
        program.bind("nope", *buffers)


def test_alignment_of_tensors_is_the_device_s(open_fake, artifact):
    device, driver = open_fake()
    device.io_alignment = 16
    with device.load(artifact) as program, device.allocate(256) as memory:
        with pytest.raises(InputError, match="multiples of 16"):
            program.bind("add", {"a": memory[8:], "b": memory[32:]}, {"sum": memory[64:], "copy": memory[96:]})
        program.execute("add", {"a": memory, "b": memory[32:]}, {"sum": memory[64:], "copy": memory[96:]})
    assert driver.names().count("bind") == 1


def test_inputs_may_share_memory_and_neighbours_may_touch(program, allocate):
    memory = allocate(64)
    program.execute("add", {"a": memory[:16], "b": memory[:16]}, {"sum": memory[16:32], "copy": memory[32:48]})


def test_in_place_slots_need_the_ability(open_fake, artifact):
    device, _ = open_fake(extra={Capability.ALIASED_IO})
    with device.load(artifact) as program, device.allocate(64) as memory:
        program.execute("add", {"a": memory[:16], "b": memory[32:]}, {"sum": memory[8:], "copy": memory[24:]})
        with pytest.raises(InputError, match="overlaps"):
            program.bind("add", {"a": memory, "b": memory}, {"sum": memory[8:], "copy": memory[23:]})


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 4), st.booleans()), min_size=2, max_size=6)
)
def test_overlaps_are_found_exactly(tensors):
    """Against the definition: some byte belongs to an output and to another tensor."""
    from types import SimpleNamespace

    from isthmus.program import Binding, _slots
    from isthmus.spi import Region

    bases = [object(), object()]
    memory, regions, names = ([], []), ([], []), []
    for i, (base, offset, size, is_output) in enumerate(tensors):
        memory[is_output].append(SimpleNamespace(_base=bases[base]))
        regions[is_output].append(Region(None, offset, size))
        if is_output:
            names.append(TensorSpec(f"t{i}", DType.UINT8, (size,)))
    cells = [{(base, at) for at in range(offset, offset + size)} for base, offset, size, _ in tensors]
    expected = any(
        cells[i] & cells[j] and (tensors[i][3] or tensors[j][3]) for i in range(len(cells)) for j in range(i)
    )
    ledger = SimpleNamespace(check_no_weights=lambda base, region: None)
    binding = SimpleNamespace(_entry="e", _slots=({}, _slots("output", names)))
    try:
        Binding._check_overlaps(binding, SimpleNamespace(_ledger=ledger, capabilities=()), memory, regions)
    except InputError:
        found = True
    else:
        found = False
    assert found == expected


def test_a_binding_pins_its_program_and_buffers(program, buffers):
    with program.bind("add", *buffers):
        for pinned in (program, buffers[0]["a"], buffers[1]["sum"]):
            with pytest.raises(InUseError):
                pinned.close()
            assert not pinned.closed
    buffers[0]["a"].close()


def test_a_failed_bind_pins_nothing(program, driver, buffers):
    driver.fail["bind"] = ExecutionError("no")
    with pytest.raises(ExecutionError):
        program.bind("add", *buffers)
    buffers[0]["a"].close()
    program.close()


def test_an_unbind_that_fails_lets_go_of_everything(program, driver, buffers):
    binding = program.bind("add", *buffers)
    driver.fail["unbind"] = ExecutionError("no")
    with pytest.raises(ExecutionError):
        binding.close()
    for pinned in (*buffers[0].values(), *buffers[1].values(), program):
        pinned.close()


def test_rebinding_moves_the_pins(program, driver, buffers, allocate):
    other = allocate(32)
    with program.bind("add", *buffers) as binding:
        binding.rebind({"a": other[16:]}, {"copy": other[:16]})
        buffers[0]["a"].close()
        with pytest.raises(InUseError):
            other.close()
        binding.execute()
        inputs, outputs = driver.calls[-1][1]
        assert [r.handle is other._region.handle for r in inputs + outputs] == [True, False, False, True]
    other.close()


@pytest.mark.parametrize("change", [({"z": 0}, {}), ({}, {"a": 0}), ({"a": 1}, {}), ({}, {"sum": 2, "copy": 2})])
def test_a_refused_rebind_changes_nothing(program, driver, buffers, allocate, change):
    spares = [allocate(64), allocate(8), allocate(64)]
    with program.bind("add", *buffers) as binding:
        with pytest.raises(InputError):
            binding.rebind(*({name: spares[i] for name, i in side.items()} for side in change))
        assert "rebind" not in driver.names()
        for spare in spares:
            spare.close()


def test_a_rebind_the_driver_refuses_keeps_the_old_pins(program, driver, buffers, allocate):
    spare = allocate(16)
    with program.bind("add", *buffers) as binding:
        driver.fail["rebind"] = ExecutionError("no")
        with pytest.raises(ExecutionError):
            binding.rebind({"a": spare})
        spare.close()
        with pytest.raises(InUseError):
            buffers[0]["a"].close()


def test_a_closed_binding_does_not_run(program, driver, buffers):
    binding = program.bind("add", *buffers)
    binding.close()
    binding.close()
    for use in (binding.execute, lambda: binding.rebind({}, {})):
        with pytest.raises(ClosedError):
            use()
    assert driver.names().count("unbind") == 1
    assert "execute" not in driver.names()


def test_a_failed_execute_leaves_the_device_usable(program, driver, buffers):
    with program.bind("add", *buffers) as binding:
        driver.fail["execute"] = ExecutionError("once")
        with pytest.raises(ExecutionError):
            binding.execute()
        driver.fail.clear()
        binding.execute()


def test_run_takes_arrays_and_gives_arrays_and_leaves_nothing(program, driver):
    x = np.ones(4, np.float32)
    result = program.run("add", {"a": x, "b": x})
    assert {name: (a.shape, a.dtype) for name, a in result.items()} == {
        "sum": ((4,), np.float32),
        "copy": ((4,), np.float32),
    }
    assert driver.live == []


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({}, "input a: float32.* is missing"),
        ({"a": np.ones(4, np.float64), "b": np.ones(4, np.float32)}, "got float64"),
        ({"a": np.ones((1, 4), np.float32), "b": np.ones(4, np.float32)}, r"got float32\[1, 4\]"),
        ({"a": np.ones(4, np.float32), "b": np.ones(4, np.float32), "c": 1}, "no input c"),
    ],
)
def test_run_refuses_other_arrays(program, driver, inputs, match):
    with pytest.raises(InputError, match=match):
        program.run("add", inputs)
    assert "allocate" not in driver.names()


def test_run_frees_its_buffers_when_the_device_fails(program, driver):
    x = np.ones(4, np.float32)
    driver.fail["execute"] = ExecutionError("no")
    with pytest.raises(ExecutionError):
        program.run("add", {"a": x, "b": x})
    assert driver.live == []


def test_tensors_that_numpy_lacks_travel_as_bytes(device, make_artifact, make_report):
    nibbles = TensorSpec("x", DType.INT4, (3,))
    with device.load(make_artifact(entries={"add": EntrySpec((nibbles,), (nibbles,))})) as program:
        assert program.run("add", {"x": np.zeros(2, np.uint8)})["x"].shape == (2,)
        with pytest.raises(InputError, match="travels as 2 uint8 bytes"):
            program.run("add", {"x": np.zeros(3, np.int8)})


def test_profiles_need_the_ability(program, buffers, open_fake, artifact, driver):
    with program.bind("add", *buffers) as binding, pytest.raises(UnsupportedError, match="profile"):
        binding.profile()
    able, books = open_fake(extra={Capability.PROFILE})
    books.profile = lambda binding: [ProfileEvent("total", 1.0, "us")]
    with able.load(artifact) as loaded, able.allocate(64) as m:
        inputs, outputs = {"a": m[:16], "b": m[:16]}, {"sum": m[16:], "copy": m[32:]}
        with loaded.bind("add", inputs, outputs) as binding:
            assert binding.profile()[0].unit == "us"
    assert "profile" not in driver.names()
