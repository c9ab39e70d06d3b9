"""Three programs that know the .om layout from the same facts: this writer, the product's reader, the library's reader."""

from __future__ import annotations

import ctypes as ct
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus_ascend_cann.om import read_om
from isthmus_ascend_cann.simulator.om_writer import (
    BATCH_GEARS,
    DIMS_GEARS,
    HEADER_SIZE,
    IMAGE_GEARS,
    IoBlock,
    IoTensor,
    OmModel,
    Weights,
    write_om,
)

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=140)
DIMS = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
TENSORS = st.builds(
    IoTensor, NAMES, st.integers(0, 2**50), st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 3, 4, 9]), DIMS
)


@st.composite
def models(draw):
    inputs = draw(st.lists(TENSORS, max_size=4, unique_by=lambda t: t.name))
    outputs = draw(st.lists(TENSORS, max_size=4, unique_by=lambda t: t.name))
    weights = draw(st.binary(max_size=64))
    zero_copy = draw(st.integers(0, 2**40))
    return OmModel(
        name="m",
        soc=draw(st.sampled_from(["Ascend910B4", "Ascend310P3"])),
        operators=3,
        work_size=zero_copy + draw(st.integers(0, 2**60)),
        zero_copy_size=zero_copy,
        io=IoBlock(inputs, outputs),
        weights=Weights(len(weights), [weights[:10], weights[10:]]),
        program=b"onnx",
        external=draw(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2**40)), max_size=2)),
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models())
def test_the_readers_see_what_was_written(sim, tmp_path, model):
    path = tmp_path / "m.om"
    write_om(model, path)
    seen = read_om(path)
    for tensors, want in ((seen.inputs, model.io.inputs), (seen.outputs, model.io.outputs)):
        assert [(t.name, t.size, t.format, t.dtype, t.shape) for t in tensors] == [
            (t.name, t.size, t.format, t.dtype, t.dims) for t in want
        ]
    assert (seen.work_size, seen.weight_size) == (model.work_size, model.weights.size)
    assert (seen.soc_version, seen.range_shape, seen.gears) == (model.soc, False, None)

    assert sim.query(path) == (model.work_size, model.weights.size)
    desc = sim.aclmdlCreateDesc()
    sim.ok("aclmdlGetDescFromFile", desc, str(path).encode())
    assert sim.aclmdlGetNumInputs(desc) == len(model.io.inputs)
    for index, tensor in enumerate(model.io.inputs):
        assert sim.aclmdlGetInputNameByIndex(desc, index).decode() == tensor.name
        assert sim.aclmdlGetInputSizeByIndex(desc, index) == tensor.size
    sim.ok("aclmdlDestroyDesc", desc)


@pytest.mark.parametrize(
    ("kind", "gears"),
    [(BATCH_GEARS, [(1,), (4,)]), (IMAGE_GEARS, [(8, 8), (4, 6)]), (DIMS_GEARS, [(1, 2, 3), (4, 5, 6)])],
)
def test_gears_are_read_back(tmp_path, kind, gears):
    tensor = IoTensor("ascend_mbatch_shape_data", 8 * len(gears[0]), 2, 9, (len(gears[0]),))
    x = IoTensor("x", 64, 2, 0, (-1,) * len(gears[0]))
    io = IoBlock([x, tensor], [IoTensor("y", 64, 2, 0, (16,))], kind, gears, ["0,0,8", "1,0,16"], ["x"])
    write_om(OmModel("m", "Ascend910B4", 1, 512, 0, io, Weights(0, []), b""), tmp_path / "m.om")
    seen = read_om(tmp_path / "m.om")
    assert [t.name for t in seen.inputs] == ["x"]
    assert seen.gears is not None
    assert list(seen.gears.values) == gears


def test_the_header_is_where_the_vendor_has_it(tmp_path):
    write_om(OmModel("net", "Ascend910B4", 7, 512, 0, IoBlock([], []), Weights(0, []), b""), tmp_path / "m.om")
    data = (tmp_path / "m.om").read_bytes()
    assert data[:4] == b"IMOD"
    assert struct.unpack_from("<I", data, 4) == (HEADER_SIZE,)
    assert struct.unpack_from("<Q", data, 184) == (len(data) - HEADER_SIZE,)
    assert data[84:88] == b"net\0"
    assert struct.unpack_from("<I", data, 116) == (7,)
    count = struct.unpack_from("<I", data, HEADER_SIZE)[0]
    table = [struct.unpack_from("<I4xQQ", data, HEADER_SIZE + 8 + 24 * i) for i in range(count)]
    assert [kind for kind, _, _ in table][:4] == [0, 1, 2, 8]
    assert HEADER_SIZE + 8 + 24 * count + sum(size for _, _, size in table) == len(data)


def test_a_partition_that_is_not_as_long_as_announced_is_an_error(tmp_path):
    model = OmModel("m", "Ascend910B4", 1, 512, 0, IoBlock([], []), Weights(9, [b"short"]), b"")
    with pytest.raises(ValueError, match="announced 9 bytes and has 5"):
        write_om(model, tmp_path / "m.om")


def test_the_library_agrees_on_the_least_workspace(sim, tmp_path, linear):
    """`zero_copy_memory_size` is an attribute of the model definition, found by name in a protobuf map."""
    work = sim.query(linear[0])[0]
    least = work - (4 * 64 + 4 * 32) * 4
    identity = ct.c_uint32()
    arguments = (str(linear[0]).encode(), ct.byref(identity), sim.malloc(work))
    assert sim.aclmdlLoadFromFileWithMem(*arguments, least - 1, None, 0) == 145000
    assert sim.aclmdlLoadFromFileWithMem(*arguments, least, None, 0) == 0
