"""Dynamic batch, image and dims gears, and range shapes."""

from __future__ import annotations

import ctypes as ct

import numpy as np
import pytest
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
PARAM, GE_PARAM, NO_ADDRESS, TOO_SHORT, NO_GEAR, NOT_SUPPORTED = 100000, 145000, 145011, 145012, 145013, 200001
GEAR_INPUT = b"ascend_mbatch_shape_data"


class IODims(ct.Structure):
    _fields_ = [("name", ct.c_char * 128), ("count", ct.c_size_t), ("dims", ct.c_int64 * 128)]

    @property
    def shape(self):
        return tuple(self.dims[: self.count])


class Gears:
    """A loaded model with gears and its datasets, sized for the largest gear."""

    def __init__(self, sim, path):
        self.sim, self.model = sim, sim.load(path)
        self.desc, self.dims = sim.aclmdlCreateDesc(), IODims()
        sim.ok("aclmdlGetDesc", self.desc, self.model)
        self.sizes = [sim.aclmdlGetInputSizeByIndex(self.desc, i) for i in range(sim.aclmdlGetNumInputs(self.desc))]
        self.out_size = sim.aclmdlGetOutputSizeByIndex(self.desc, 0)
        self.ins = [sim.malloc(n) for n in self.sizes]
        self.out = sim.malloc(self.out_size)
        self.inputs = sim.dataset(list(zip(self.ins, self.sizes)))
        self.outputs = sim.dataset([(self.out, self.out_size)])
        index = ct.c_size_t()
        sim.ok("aclmdlGetInputIndexByName", self.desc, GEAR_INPUT, ct.byref(index))
        self.index = index.value

    def write(self, position, array):
        self.sim.ok("aclrtMemcpy", self.ins[position], array.nbytes, array.ctypes.data, array.nbytes, 1)

    def run(self):
        self.sim.ok("aclmdlExecute", self.model, self.inputs, self.outputs)

    def current(self):
        self.sim.ok("aclmdlGetCurOutputDims", self.desc, 0, ct.byref(self.dims))
        return self.dims.shape

    def stated(self):
        self.sim.ok("aclmdlGetInputDims", self.desc, 0, ct.byref(self.dims))
        return self.dims.shape

    def close(self):
        self.sim.drop(self.inputs)
        self.sim.drop(self.outputs)
        self.sim.ok("aclmdlDestroyDesc", self.desc)


@pytest.fixture
def batch(sim, batches):
    gears = Gears(sim, batches[0])
    yield gears
    gears.close()


def test_sizes_are_the_largest_gears_and_the_gear_has_an_input(sim, batch):
    assert batch.sizes == [4 * 64 * 4, 8]
    assert batch.out_size == 4 * 32 * 4
    assert batch.index == 1
    assert batch.stated() == (-1, 64)


def test_the_compiled_gears_can_be_asked_for(sim, batch):
    class Batch(ct.Structure):
        _fields_ = [("count", ct.c_size_t), ("batch", ct.c_uint64 * 128)]

    found = Batch()
    sim.ok("aclmdlGetDynamicBatch", batch.desc, ct.byref(found))
    assert list(found.batch[: found.count]) == [1, 2, 4]
    count = ct.c_size_t(9)
    sim.ok("aclmdlGetInputDynamicGearCount", batch.desc, -1, ct.byref(count))
    assert count.value == 0


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_gear_runs_on_its_part_of_the_buffers(sim, batch, batches, rows):
    _, w, b = batches
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    batch.write(0, x)
    sim.ok("aclmdlSetDynamicBatchSize", batch.model, batch.inputs, batch.index, rows)
    batch.run()
    assert batch.current() == (rows, 32)
    y = sim.get(batch.out, (4, 32))
    np.testing.assert_allclose(y[:rows], x @ w + b, rtol=1e-4, atol=1e-4)
    assert np.isnan(y[rows:]).all()


def test_a_forgotten_gear_runs_the_largest_without_an_error(sim, batch):
    batch.write(0, np.ones((4, 64), np.float32))
    batch.run()
    assert not np.isnan(sim.get(batch.out, (4, 32))).any()


def test_a_gear_stays_set_with_its_buffer(sim, batch):
    batch.write(0, np.ones((4, 64), np.float32))
    sim.ok("aclmdlSetDynamicBatchSize", batch.model, batch.inputs, batch.index, 1)
    batch.run()
    batch.run()
    assert np.isnan(sim.get(batch.out, (4, 32))[1:]).all()


def test_gear_errors_have_their_codes(sim, batch, linear):
    set_batch = sim.aclmdlSetDynamicBatchSize
    assert set_batch(batch.model, batch.inputs, batch.index, 0) == PARAM
    assert set_batch(batch.model, batch.inputs, batch.index, 3) == NO_GEAR
    assert set_batch(batch.model, batch.inputs, 0, 2) == NO_ADDRESS
    assert set_batch(batch.model, batch.inputs, 9, 2) == PARAM
    assert sim.aclmdlSetDynamicHWSize(batch.model, batch.inputs, batch.index, 2, 2) == NO_GEAR
    assert set_batch(sim.load(linear[0]), batch.inputs, batch.index, 2) == NO_GEAR
    buffer = sim.aclmdlGetDatasetBuffer(batch.inputs, batch.index)
    sim.ok("aclUpdateDataBuffer", buffer, batch.ins[1], 4)
    assert set_batch(batch.model, batch.inputs, batch.index, 2) == TOO_SHORT
    sim.ok("aclUpdateDataBuffer", buffer, None, 0)
    assert set_batch(batch.model, batch.inputs, batch.index, 2) == NO_ADDRESS


def test_image_gears(sim, compile_om, make):
    model = make(
        [helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Add", ["x", "p"], ["y"])],
        {"x": (FLOAT, [1, 3, "h", "w"])},
        {"y": (FLOAT, [1, 3, "h", "w"])},
    )
    given = {"input_shape": "x:1,3,-1,-1", "dynamic_image_size": "8,8;4,6", "input_format": "NCHW"}
    gears = Gears(sim, compile_om(model, precision_mode_v2="origin", **given))
    assert gears.sizes == [3 * 64 * 4, 16]

    class Image(ct.Structure):
        _fields_ = [("count", ct.c_size_t), ("hw", ct.c_uint64 * 2 * 128)]

    found = Image()
    sim.ok("aclmdlGetDynamicHW", gears.desc, -1, ct.byref(found))
    assert [list(hw) for hw in found.hw[: found.count]] == [[8, 8], [4, 6]]
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 6)).astype(np.float32)
    gears.write(0, x)
    sim.ok("aclmdlSetDynamicHWSize", gears.model, gears.inputs, gears.index, 4, 6)
    gears.run()
    want = x + x.mean((2, 3), keepdims=True)
    np.testing.assert_allclose(sim.get(gears.out, (1, 3, 4, 6)), want, rtol=1e-4, atol=1e-4)
    assert gears.current() == (1, 3, 4, 6)
    assert sim.aclmdlSetDynamicHWSize(gears.model, gears.inputs, gears.index, 6, 4) == NO_GEAR
    gears.close()


def test_dims_gears_take_all_dimensions_of_all_inputs(sim, compile_om, make):
    model = make(
        [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)],
        {"x": (FLOAT, [2, "a"]), "z": (FLOAT, [2, "b"])},
        {"y": (FLOAT, [2, "c"])},
    )
    given = {"input_shape": "x:2,-1;z:2,-1", "dynamic_dims": "1,2;3,4", "input_format": "ND"}
    gears = Gears(sim, compile_om(model, precision_mode_v2="origin", **given))
    count, shapes = ct.c_size_t(), (IODims * 2)()
    sim.ok("aclmdlGetInputDynamicGearCount", gears.desc, -1, ct.byref(count))
    sim.ok("aclmdlGetInputDynamicDims", gears.desc, -1, shapes, count.value)
    assert [s.shape for s in shapes] == [(2, 1, 2, 2), (2, 3, 2, 4)]
    assert sim.aclmdlGetInputDynamicDims(gears.desc, -1, shapes, 1) == PARAM
    x, z = np.full((2, 1), 5, np.float32), np.arange(4, dtype=np.float32).reshape(2, 2)
    gears.write(0, x)
    gears.write(1, z)
    sim.ok("aclmdlSetInputDynamicDims", gears.model, gears.inputs, gears.index, ct.byref(shapes[0]))
    gears.run()
    np.testing.assert_array_equal(sim.get(gears.out, (2, 3)), np.concatenate([x, z], 1))
    assert gears.current() == (2, 3)
    shapes[0].dims[1] = 2
    assert sim.aclmdlSetInputDynamicDims(gears.model, gears.inputs, gears.index, ct.byref(shapes[0])) == NO_GEAR
    shapes[0].count = 3
    assert sim.aclmdlSetInputDynamicDims(gears.model, gears.inputs, gears.index, ct.byref(shapes[0])) == NO_GEAR
    gears.close()


# ---- range shapes ----


@pytest.fixture
def ranged(sim, compile_om, symbolic_linear):
    path = compile_om(symbolic_linear, input_shape="x:1~8,64", precision_mode_v2="origin")
    return path, sim.load(path)


def test_range_shapes_are_described_with_ranges_and_no_sizes(sim, ranged):
    class Ranges(ct.Structure):
        _fields_ = [("count", ct.c_size_t), ("range", ct.c_int64 * 2 * 128)]

    desc, dims, ranges = sim.aclmdlCreateDesc(), IODims(), Ranges()
    sim.ok("aclmdlGetDesc", desc, ranged[1])
    assert sim.aclmdlGetInputSizeByIndex(desc, 0) == sim.aclmdlGetOutputSizeByIndex(desc, 0) == 0
    sim.ok("aclmdlGetInputDimsRange", desc, 0, ct.byref(ranges))
    assert [list(r) for r in ranges.range[: ranges.count]] == [[1, 8], [64, 64]]
    assert sim.aclmdlGetCurOutputDims(desc, 0, ct.byref(dims)) == NOT_SUPPORTED
    sim.ok("aclmdlDestroyDesc", desc)


@pytest.mark.parametrize("placed", [False, True])
def test_a_range_shape_runs_with_what_the_description_says(sim, ranged, symbolic_linear, placed):
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    given = sim.dataset([(sim.put(x), x.nbytes)])
    taken = sim.dataset([(sim.malloc(4096), 4096) if placed else (0, 0)])
    assert sim.aclmdlExecute(ranged[1], given, taken) == 145021  # nobody said which shape
    shape = (ct.c_int64 * 2)(3, 64)
    described = sim.aclCreateTensorDesc(0, 2, shape, 2)
    sim.ok("aclmdlSetDatasetTensorDesc", given, described, 0)
    sim.ok("aclmdlExecute", ranged[1], given, taken)
    result, size = sim.aclmdlGetDatasetTensorDesc(taken, 0), ct.c_int64()
    assert sim.aclGetTensorDescNumDims(result) == 2
    sim.ok("aclGetTensorDescDimV2", result, 0, ct.byref(size))
    assert size.value == 3
    address = sim.aclGetDataBufferAddr(sim.aclmdlGetDatasetBuffer(taken, 0))
    assert not np.isnan(sim.get(address, (3, 32))).any()
    sim.aclDestroyTensorDesc(described)
    sim.drop(given)
    sim.drop(taken)
    sim.ok("aclrtFree", address)


def test_range_shapes_ignore_the_callers_workspace(sim, ranged):
    identity = ct.c_uint32()
    sim.ok("aclmdlLoadFromFileWithMem", str(ranged[0]).encode(), ct.byref(identity), 64, 1, None, 0)
