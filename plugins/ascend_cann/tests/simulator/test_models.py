"""Loading, describing, running and unloading models."""

from __future__ import annotations

import ctypes as ct

import numpy as np
import pytest
from isthmus_ascend_cann.simulator import om_writer
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
GE_PARAM, BAD_PATH, BAD_ID, BAD_SIZE, GE_OOM = 145000, 145002, 145003, 145006, 245000
PARAM, OOM = 100000, 207001
X, Y = (4, 64), (4, 32)
X_BYTES, Y_BYTES = 4 * 64 * 4, 4 * 32 * 4


class IODims(ct.Structure):
    _fields_ = [("name", ct.c_char * 128), ("count", ct.c_size_t), ("dims", ct.c_int64 * 128)]

    @property
    def shape(self):
        return tuple(self.dims[: self.count])


def load_with_mem(sim, path, work=(None, 0), weights=(None, 0)):
    identity = ct.c_uint32()
    code = sim.aclmdlLoadFromFileWithMem(str(path).encode(), ct.byref(identity), *work, *weights)
    return code, identity.value


def ones(sim, model):
    return sim.run(model, [np.ones(X, np.float32)], [Y])[0]


def test_a_model_computes_what_the_graph_says(sim, linear):
    path, w, b = linear
    x = np.random.default_rng(1).standard_normal(X).astype(np.float32)
    (y,) = sim.run(sim.load(path), [x], [Y])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


def test_the_queried_sizes_are_what_load_takes(sim, linear):
    work, weight = sim.query(linear[0])
    assert weight == 64 * 32 * 4 + 32 * 4
    model = sim.load(linear[0])
    assert sim.isthmus_sim_used(0) == -(-(work + 64) // 4096) * 4096 + -(-(weight + 64) // 4096) * 4096
    sim.ok("aclmdlUnload", model)
    assert sim.isthmus_sim_used(0) == 0


def test_bytes_and_files_are_the_same_model(sim, linear):
    data, identity = linear[0].read_bytes(), ct.c_uint32()
    work, weight = ct.c_size_t(), ct.c_size_t()
    sim.ok("aclmdlQuerySizeFromMem", data, len(data), ct.byref(work), ct.byref(weight))
    assert (work.value, weight.value) == sim.query(linear[0])
    sim.ok("aclmdlLoadFromMem", data, len(data), ct.byref(identity))
    sim.ok("aclmdlLoadFromMemWithMem", data, len(data), ct.byref(identity), None, 0, None, 0)
    assert not np.isnan(ones(sim, identity.value)).any()


def test_callers_memory_makes_load_allocate_nothing(sim, linear):
    work, weight = sim.query(linear[0])
    memory = (sim.malloc(work), work), (sim.malloc(weight), weight)
    used, made = sim.isthmus_sim_used(0), sim.isthmus_sim_allocations()
    for _ in range(20):
        code, model = load_with_mem(sim, linear[0], *memory)
        assert code == 0
        sim.ok("aclmdlUnload", model)
    assert (sim.isthmus_sim_used(0), sim.isthmus_sim_allocations()) == (used, made)


def test_the_weights_are_in_the_callers_buffer(sim, linear):
    path, w, _ = linear
    weight = sim.query(path)[1]
    pointer = sim.malloc(weight)
    code, _ = load_with_mem(sim, path, weights=(pointer, weight))
    assert code == 0
    np.testing.assert_array_equal(sim.get(pointer, (64, 32)), w)


def test_a_buffer_may_be_part_of_a_larger_one_but_must_be_aligned(sim, linear):
    work, weight = sim.query(linear[0])
    block = sim.malloc(work + weight + 4096)
    code, model = load_with_mem(sim, linear[0], (block + 64, work), (block + 64 + -(-work // 64) * 64, weight))
    assert code == 0
    assert not np.isnan(ones(sim, model)).any()
    assert load_with_mem(sim, linear[0], (block + 32, work))[0] == GE_PARAM
    assert "aligned" in sim.text()


def test_too_small_buffers_are_refused_before_anything_is_allocated(sim, linear):
    work, weight = sim.query(linear[0])
    made = sim.isthmus_sim_allocations()
    assert load_with_mem(sim, linear[0], weights=(sim.malloc(weight), weight - 1))[0] == GE_PARAM
    assert "(E13025)" in sim.text()
    assert str(weight) in sim.text()
    least = work - (X_BYTES + Y_BYTES)  # inputs and outputs are bound, so their part is not needed
    assert load_with_mem(sim, linear[0], work=(sim.malloc(work), least - 1))[0] == GE_PARAM
    assert "(E19999)" in sim.text()
    assert load_with_mem(sim, linear[0], work=(sim.malloc(work), least))[0] == 0
    assert sim.isthmus_sim_allocations() == made + 4


def test_memory_that_is_not_the_callers_is_refused(sim, linear):
    work, weight = sim.query(linear[0])
    pointer = sim.malloc(work)
    sim.ok("aclrtFree", pointer)
    assert load_with_mem(sim, linear[0], work=(pointer, work))[0] == 107000
    assert load_with_mem(sim, linear[0], weights=(64, weight))[0] == 107000


@pytest.mark.parametrize("failing", ["work", "weights"])
def test_a_full_device_is_245000_and_leaves_nothing(sim, linear, failing):
    work, _ = sim.query(linear[0])
    one = -(-(work + 64) // 4096) * 4096
    sim.isthmus_sim_set_memory(one if failing == "weights" else 4096 if one > 4096 else 0, 0, 0)
    identity = ct.c_uint32()
    assert sim.aclmdlLoadFromFile(str(linear[0]).encode(), ct.byref(identity)) == GE_OOM
    assert "(EL0004)" in sim.text()
    assert sim.isthmus_sim_used(0) == 0
    assert sim.live() == 0


def test_bad_files_have_their_codes(sim, linear, tmp_path):
    work, weight = ct.c_size_t(), ct.c_size_t()

    def code(data):
        (tmp_path / "m.om").write_bytes(data)
        return sim.aclmdlQuerySize(str(tmp_path / "m.om").encode(), ct.byref(work), ct.byref(weight))

    good = linear[0].read_bytes()
    assert sim.aclmdlQuerySize(b"/no/such/file", ct.byref(work), ct.byref(weight)) == BAD_PATH
    assert sim.aclmdlQuerySize(str(tmp_path).encode(), ct.byref(work), ct.byref(weight)) == BAD_PATH
    assert code(good) == 0
    assert code(good[:-1]) == BAD_SIZE
    assert code(good + b"\0") == BAD_SIZE
    assert code(b"PK\3\4" + good[4:]) == BAD_SIZE
    assert code(good[:100]) == code(b"") == BAD_SIZE
    assert "(E10001)" in sim.text()


def test_a_model_for_another_chip_is_refused(sim, compile_om, linear_model):
    path = compile_om(linear_model[0], soc_version="Ascend310P3")
    identity = ct.c_uint32()
    assert sim.aclmdlLoadFromFile(str(path).encode(), ct.byref(identity)) == GE_PARAM
    assert "(E10001)" in sim.text()
    assert "Ascend310P3" in sim.text()
    sim.isthmus_sim_set_soc(b"Ascend310P1")
    sim.load(path)


def test_the_bare_910b_is_the_first_generation(sim, compile_om, linear_model):
    path = compile_om(linear_model[0], soc_version="Ascend910B")
    identity = ct.c_uint32()
    assert sim.aclmdlLoadFromFile(str(path).encode(), ct.byref(identity)) == GE_PARAM
    sim.isthmus_sim_set_soc(b"Ascend910A")
    sim.load(path)


def test_a_real_om_can_be_asked_for_sizes_but_not_loaded(sim, linear, tmp_path):
    """A file without our partition stands for one of the real compiler's."""
    data = linear[0].read_bytes()
    foreign = data.replace(om_writer.PROGRAM.to_bytes(4, "little"), b"\x03\0\0\0", 1)
    (tmp_path / "m.om").write_bytes(foreign)
    assert sim.query(tmp_path / "m.om") == sim.query(linear[0])
    identity = ct.c_uint32()
    assert sim.aclmdlLoadFromFile(str(tmp_path / "m.om").encode(), ct.byref(identity)) == 545004
    assert "real device" in sim.text()


def test_an_unloaded_model_is_gone(sim, linear):
    model = sim.load(linear[0])
    sim.ok("aclmdlUnload", model)
    assert sim.aclmdlUnload(model) == BAD_ID
    desc = sim.aclmdlCreateDesc()
    assert sim.aclmdlGetDesc(desc, model) == BAD_ID
    sim.ok("aclmdlDestroyDesc", desc)
    with pytest.raises(AssertionError, match="145003"):
        ones(sim, model)


def test_a_model_is_used_in_its_own_context(sim, linear):
    model = sim.load(linear[0])
    first, context = ct.c_void_p(), ct.c_void_p()
    sim.ok("aclrtGetCurrentContext", ct.byref(first))
    sim.ok("aclrtCreateContext", ct.byref(context), 0)
    with pytest.raises(AssertionError, match="107004"):
        ones(sim, model)
    assert sim.aclmdlUnload(model) == 107004
    sim.ok("aclrtSetCurrentContext", first)
    sim.ok("aclrtDestroyContext", context)
    assert not np.isnan(ones(sim, model)).any()


def test_a_description_says_what_the_model_has(sim, linear):
    desc, dims, index = sim.aclmdlCreateDesc(), IODims(), ct.c_size_t()
    sim.ok("aclmdlGetDesc", desc, sim.load(linear[0]))
    assert (sim.aclmdlGetNumInputs(desc), sim.aclmdlGetNumOutputs(desc)) == (1, 1)
    assert (sim.aclmdlGetInputSizeByIndex(desc, 0), sim.aclmdlGetOutputSizeByIndex(desc, 0)) == (X_BYTES, Y_BYTES)
    assert sim.aclmdlGetInputNameByIndex(desc, 0) == b"x"
    assert sim.aclmdlGetOutputNameByIndex(desc, 0) == b"add:0:y"
    assert (sim.aclmdlGetInputDataType(desc, 0), sim.aclmdlGetInputFormat(desc, 0)) == (0, 2)
    for call, shape in (("aclmdlGetInputDims", X), ("aclmdlGetInputDimsV2", X), ("aclmdlGetOutputDims", Y)):
        sim.ok(call, desc, 0, ct.byref(dims))
        assert dims.shape == shape
    sim.ok("aclmdlGetCurOutputDims", desc, 0, ct.byref(dims))
    assert dims.shape == Y
    sim.ok("aclmdlGetInputIndexByName", desc, b"x", ct.byref(index))
    assert sim.aclmdlGetInputIndexByName(desc, b"nothing", ct.byref(index)) == PARAM
    assert sim.aclmdlGetInputDims(desc, 1, ct.byref(dims)) == PARAM
    sim.ok("aclmdlDestroyDesc", desc)


def test_a_file_can_be_described_without_loading(sim, linear):
    desc = sim.aclmdlCreateDesc()
    sim.ok("aclmdlGetDescFromFile", desc, str(linear[0]).encode())
    assert sim.aclmdlGetInputSizeByIndex(desc, 0) == X_BYTES
    data = linear[0].read_bytes()
    sim.ok("aclmdlGetDescFromMem", desc, data, len(data))
    assert sim.aclmdlGetNumOutputs(desc) == 1
    sim.ok("aclmdlDestroyDesc", desc)
    assert sim.aclmdlDestroyDesc(desc) == 200005
    assert sim.aclmdlGetNumInputs(desc) == 0


def test_long_names_are_replaced_and_found_again(sim, compile_om, make):
    name = "x" * 200
    model = make(
        [helper.make_node("Abs", [name], ["y"])], {name: (TensorProto.FLOAT, [2])}, {"y": (TensorProto.FLOAT, [2])}
    )
    desc, dims = sim.aclmdlCreateDesc(), IODims()
    sim.ok("aclmdlGetDesc", desc, sim.load(compile_om(model)))
    sim.ok("aclmdlGetInputDims", desc, 0, ct.byref(dims))
    assert dims.name.startswith(b"acl_modelId_")
    assert sim.aclmdlGetTensorRealName(desc, dims.name) == name.encode()
    assert sim.aclmdlGetTensorRealName(desc, b"nothing") is None
    sim.ok("aclmdlDestroyDesc", desc)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [([X_BYTES - 1], [Y_BYTES]), ([X_BYTES], [Y_BYTES - 1]), ([], [Y_BYTES]), ([X_BYTES], [])],
)
def test_datasets_must_cover_the_model(sim, linear, inputs, outputs):
    model = sim.load(linear[0])
    block = sim.malloc(4096)
    given, taken = sim.dataset([(block, n) for n in inputs]), sim.dataset([(block, n) for n in outputs])
    assert sim.aclmdlExecute(model, given, taken) == GE_PARAM
    sim.drop(given)
    sim.drop(taken)


def test_buffers_that_lie_about_their_size_are_noticed(sim, linear):
    model = sim.load(linear[0])
    small, block = sim.malloc(64), sim.malloc(4096)
    given, taken = sim.dataset([(small, X_BYTES)]), sim.dataset([(block, Y_BYTES)])
    assert sim.aclmdlExecute(model, given, taken) == 107000
    sim.drop(given)
    sim.drop(taken)


@pytest.mark.parametrize(("offset", "size"), [(32, 4096), (64 + 1, 4096), (0, X_BYTES - 32)])
def test_pieces_of_memory_start_on_64_bytes_and_have_a_tail(sim, linear, offset, size):
    """`aclrtMallocAlign32` adds no tail, so a tensor must not reach the end of such a block."""
    model, block = sim.load(linear[0]), ct.c_void_p()
    sim.ok("aclrtMallocAlign32", ct.byref(block), size + 32, 2)
    sim.ok("aclrtMemset", block, size, 0, size)
    y = sim.malloc(Y_BYTES)
    given, taken = sim.dataset([(block.value + offset, X_BYTES)]), sim.dataset([(y, Y_BYTES)])
    assert sim.aclmdlExecute(model, given, taken) == 507015
    sim.drop(given)
    sim.drop(taken)


def test_an_output_without_memory_gets_some_that_the_caller_frees(sim, linear):
    model = sim.load(linear[0])
    given, taken = sim.dataset([(sim.put(np.ones(X, np.float32)), X_BYTES)]), sim.dataset([(0, 0)])
    assert sim.aclmdlExecuteAsync(model, given, taken, None) == GE_PARAM
    sim.ok("aclmdlExecute", model, given, taken)
    buffer = sim.aclmdlGetDatasetBuffer(taken, 0)
    address = sim.aclGetDataBufferAddr(buffer)
    assert sim.aclGetDataBufferSizeV2(buffer) == Y_BYTES
    assert not np.isnan(sim.get(address, Y)).any()
    sim.ok("aclrtFree", address)
    sim.drop(given)
    sim.drop(taken)


def test_buffers_can_be_rebound(sim, linear):
    path, w, b = linear
    model = sim.load(path)
    first, second = np.zeros(X, np.float32), np.ones(X, np.float32)
    given, taken = sim.dataset([(sim.put(first), X_BYTES)]), sim.dataset([(sim.malloc(Y_BYTES), Y_BYTES)])
    sim.ok("aclmdlExecute", model, given, taken)
    other = sim.malloc(Y_BYTES)
    sim.ok("aclUpdateDataBuffer", sim.aclmdlGetDatasetBuffer(given, 0), sim.put(second), X_BYTES)
    sim.ok("aclUpdateDataBuffer", sim.aclmdlGetDatasetBuffer(taken, 0), other, Y_BYTES)
    sim.ok("aclmdlExecute", model, given, taken)
    np.testing.assert_allclose(sim.get(other, Y), second @ w + b, rtol=1e-4, atol=1e-4)
    sim.drop(given)
    sim.drop(taken)


def test_an_output_may_overlap_an_input(sim, linear):
    path, w, b = linear
    x = np.ones(X, np.float32)
    block = sim.put(x)
    given, taken = sim.dataset([(block, X_BYTES)]), sim.dataset([(block, Y_BYTES)])
    sim.ok("aclmdlExecute", sim.load(path), given, taken)
    np.testing.assert_allclose(sim.get(block, Y), x @ w + b, rtol=1e-4, atol=1e-4)
    sim.drop(given)
    sim.drop(taken)


def test_overwritten_weights_are_noticed(sim, linear):
    weight = sim.query(linear[0])[1]
    pointer = sim.malloc(weight)
    _, model = load_with_mem(sim, linear[0], weights=(pointer, weight))
    ones(sim, model)
    sim.ok("aclrtMemset", pointer, weight, 0, weight)
    with pytest.raises(AssertionError, match="507015"):
        ones(sim, model)


def test_weights_freed_too_early_are_noticed(sim, linear):
    weight = sim.query(linear[0])[1]
    pointer = sim.malloc(weight)
    _, model = load_with_mem(sim, linear[0], weights=(pointer, weight))
    sim.ok("aclrtFree", pointer)
    with pytest.raises(AssertionError, match="507015"):
        ones(sim, model)


def test_a_run_writes_over_its_workspace(sim, linear):
    work, _ = sim.query(linear[0])
    pointer = sim.malloc(work)
    sim.ok("aclrtMemset", pointer, work, 0, work)
    _, model = load_with_mem(sim, linear[0], work=(pointer, work))
    ones(sim, model)
    assert np.isnan(sim.get(pointer, (work // 4,))).any()


def test_stale_handles_are_errors_and_no_crash(sim):
    block = sim.malloc(64)
    dataset = sim.dataset([(block, 64)])
    buffer = sim.aclmdlGetDatasetBuffer(dataset, 0)
    sim.ok("aclmdlDestroyDataset", dataset)
    sim.ok("aclDestroyDataBuffer", buffer)
    assert sim.aclmdlDestroyDataset(dataset) == 200005
    assert sim.aclDestroyDataBuffer(buffer) == 200005
    assert sim.aclUpdateDataBuffer(buffer, block, 64) == 200005
    assert sim.aclmdlAddDatasetBuffer(dataset, buffer) == 200005
    assert sim.aclDestroyDataBuffer(None) == PARAM
    assert sim.aclmdlExecute(1, dataset, dataset) == 200005


# ---- LoadWithConfig ----

PRIORITY, LOAD_TYPE, PATH, MEM, MEM_SIZE, WEIGHT, WEIGHT_SIZE, WORK, WORK_SIZE = range(9)
MEM_OPTIMIZE, WEIGHT_PATH, WITHOUT_GRAPH = 13, 14, 28


@pytest.fixture
def config(sim):
    handle = sim.aclmdlCreateConfigHandle()
    yield handle
    sim.ok("aclmdlDestroyConfigHandle", handle)


def option(sim, handle, attribute, value, size=None):
    return sim.aclmdlSetConfigOpt(handle, attribute, ct.byref(value), ct.sizeof(value) if size is None else size)


def test_a_model_loads_with_a_configuration(sim, linear, config):
    work, weight = sim.query(linear[0])
    values = {
        LOAD_TYPE: ct.c_size_t(2),
        PATH: ct.c_char_p(str(linear[0]).encode()),
        WEIGHT: ct.c_void_p(sim.malloc(weight)),
        WEIGHT_SIZE: ct.c_size_t(weight),
        WORK: ct.c_void_p(sim.malloc(work)),
        WORK_SIZE: ct.c_size_t(work),
        PRIORITY: ct.c_int32(3),
        WITHOUT_GRAPH: ct.c_int32(1),
        MEM_OPTIMIZE: ct.c_size_t(0),
    }
    for attribute, value in values.items():
        assert option(sim, config, attribute, value) == 0, attribute
    made, identity = sim.isthmus_sim_allocations(), ct.c_uint32()
    sim.ok("aclmdlLoadWithConfig", config, ct.byref(identity))
    assert sim.isthmus_sim_allocations() == made
    assert not np.isnan(ones(sim, identity.value)).any()


@pytest.mark.parametrize(("optimize", "left_out"), [(0, 0), (1, X_BYTES + Y_BYTES)])
def test_the_own_workspace_can_leave_out_what_is_bound(sim, linear, config, optimize, left_out):
    work, weight = sim.query(linear[0])
    option(sim, config, LOAD_TYPE, ct.c_size_t(1))
    option(sim, config, PATH, ct.c_char_p(str(linear[0]).encode()))
    assert option(sim, config, MEM_OPTIMIZE, ct.c_size_t(optimize)) == 0
    identity = ct.c_uint32()
    sim.ok("aclmdlLoadWithConfig", config, ct.byref(identity))
    sizes = sorted(int(line.split()[-1]) for line in sim.listing().splitlines() if line.startswith("device memory"))
    assert sizes == sorted([(work - left_out + 31) // 32 * 32, (weight + 31) // 32 * 32])
    assert not np.isnan(ones(sim, identity.value)).any()


@pytest.mark.parametrize(
    ("attribute", "value", "size"),
    [
        (MEM_OPTIMIZE, ct.c_size_t(2), None),
        (PRIORITY, ct.c_int32(8), None),
        (PRIORITY, ct.c_int64(1), None),
        (LOAD_TYPE, ct.c_size_t(1), 4),
        (WITHOUT_GRAPH, ct.c_int32(1), 8),
        (15, ct.c_size_t(1), None),
        (29, ct.c_size_t(1), None),
    ],
)
def test_bad_options_are_bad_arguments(sim, config, attribute, value, size):
    assert option(sim, config, attribute, value, size) == PARAM


def test_a_configuration_must_fit_its_load_type(sim, config, linear):
    identity = ct.c_uint32()
    assert sim.aclmdlLoadWithConfig(config, ct.byref(identity)) == PARAM
    for kind in (1, 3, 5):
        option(sim, config, LOAD_TYPE, ct.c_size_t(kind))
        assert sim.aclmdlLoadWithConfig(config, ct.byref(identity)) == PARAM
    option(sim, config, LOAD_TYPE, ct.c_size_t(1))
    option(sim, config, PATH, ct.c_char_p(str(linear[0]).encode()))
    option(sim, config, WEIGHT_PATH, ct.c_char_p(b"/tmp"))
    assert sim.aclmdlLoadWithConfig(config, ct.byref(identity)) == PARAM  # a file finds its weights itself


@pytest.fixture(scope="module")
def combined(compile_om, make):
    """A model whose one weight is in a file beside the om."""
    w = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make(nodes, {"x": (FLOAT, [4, 64])}, {"y": (FLOAT, [4, 32])}, {"w": w})
    return compile_om(model, external_weight="2", precision_mode_v2="origin"), w


def from_memory(sim, config, data):
    for attribute, value in {
        LOAD_TYPE: ct.c_size_t(3),
        MEM: ct.cast(ct.c_char_p(data), ct.c_void_p),
        MEM_SIZE: ct.c_size_t(len(data)),
    }.items():
        assert option(sim, config, attribute, value) == 0


def test_external_weights_of_a_model_in_memory_need_a_path_or_an_address(sim, config, combined):
    path, w = combined
    data, identity = path.read_bytes(), ct.c_uint32()
    from_memory(sim, config, data)
    assert sim.aclmdlLoadWithConfig(config, ct.byref(identity)) == BAD_PATH
    assert sim.isthmus_sim_used(0) == 0
    option(sim, config, WEIGHT_PATH, ct.c_char_p(str(path.parent / "weight").encode()))
    sim.ok("aclmdlLoadWithConfig", config, ct.byref(identity))
    np.testing.assert_allclose(ones(sim, identity.value)[0], w.sum(0), rtol=1e-4, atol=1e-4)


def test_an_address_beats_the_path(sim, config, combined):
    path, w = combined
    data, identity = path.read_bytes(), ct.c_uint32()
    from_memory(sim, config, data)
    option(sim, config, WEIGHT_PATH, ct.c_char_p(b"/no/such/directory"))
    name, pointer = b"m_weight_combined", sim.put(w * 2)
    assert sim.aclmdlSetExternalWeightAddress(config, b"a/b", pointer, w.nbytes) == PARAM
    assert sim.aclmdlSetExternalWeightAddress(config, name, pointer, w.nbytes - 1) == PARAM
    assert sim.aclmdlSetExternalWeightAddress(config, name, None, w.nbytes) == PARAM
    sim.ok("aclmdlSetExternalWeightAddress", config, name, pointer, w.nbytes)
    made = sim.isthmus_sim_allocations()
    sim.ok("aclmdlLoadWithConfig", config, ct.byref(identity))
    assert sim.isthmus_sim_allocations() == made + 2 - (sim.query(path)[1] == 0)
    np.testing.assert_allclose(ones(sim, identity.value)[0], 2 * w.sum(0), rtol=1e-4, atol=1e-4)


def test_missing_or_short_weight_files_are_refused(sim, combined, tmp_path):
    path, _ = combined
    (tmp_path / "m.om").write_bytes(path.read_bytes())
    identity = ct.c_uint32()
    assert sim.aclmdlLoadFromFile(str(tmp_path / "m.om").encode(), ct.byref(identity)) == BAD_PATH
    (tmp_path / "weight").mkdir()
    (tmp_path / "weight" / "m_weight_combined").write_bytes(b"short")
    assert sim.aclmdlLoadFromFile(str(tmp_path / "m.om").encode(), ct.byref(identity)) == BAD_SIZE
    assert sim.live() == 0
