from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import UnsupportedError
from isthmus.graph.weights import FILE, Weight, WeightsFile, inline, slabs


def weight(name, array, dtype=np.float32):
    return Weight(name, array.shape, np.dtype(dtype), lambda: array)


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=8), source=st.sampled_from(["<f4", "<f2", "bf16"]))
def test_every_tensor_is_where_its_reference_says_and_aligned(tmp_path_factory, sizes, source):
    directory = tmp_path_factory.mktemp("weights")
    dtype = ml_dtypes.bfloat16 if source == "bf16" else np.dtype(source)
    arrays = [np.random.default_rng(n).standard_normal(n).astype(dtype) for n in sizes]
    with WeightsFile(directory) as file:
        found = [file.append(weight(f"w{i}", a)) for i, a in enumerate(arrays)]
    data = (directory / FILE).read_bytes()
    for tensor, array in zip(found, arrays):
        assert tensor.offset % (4096 if array.size * 4 >= 4096 else 64) == 0
        stored = np.frombuffer(data, np.float32, array.size, tensor.offset)
        np.testing.assert_array_equal(stored, array.astype(np.float32))


def test_a_transposed_view_is_written_in_its_own_order(tmp_path, monkeypatch):
    monkeypatch.setattr("isthmus.graph.weights._SLAB", 64)
    array = np.arange(35.0, dtype=np.float16).reshape(5, 7).T
    assert len([*slabs(weight("w", array))]) > 1
    with WeightsFile(tmp_path) as file:
        file.append(weight("w", array))
    np.testing.assert_array_equal(np.fromfile(tmp_path / FILE, np.float32).reshape(7, 5), array)


def test_an_inline_tensor_keeps_values_and_shape():
    array = np.arange(6.0).reshape(1, 2, 3)
    tensor = inline(weight("w", array))
    np.testing.assert_array_equal(tensor.numpy(), array.astype(np.float32))


def test_a_value_beyond_float16_is_refused_by_name(tmp_path):
    with WeightsFile(tmp_path) as file, pytest.raises(UnsupportedError, match=r"llm\.x holds values beyond .*float16"):
        file.append(weight("llm.x", np.array([1e5], np.float32), np.float16))
