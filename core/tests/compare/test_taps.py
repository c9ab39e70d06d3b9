import numpy as np
import onnx
import pytest
from isthmus.compare.taps import tapped, taps_of
from isthmus.errors import InputError
from onnx.reference import ReferenceEvaluator


def test_taps_are_listed_in_order_without_the_inside_of_a_gelu(gelu_set):
    taps = taps_of(gelu_set, "main")
    assert [tap.name for tap in taps] == ["mm", "g", "y"]
    assert (taps[0].node, taps[0].op, taps[0].inputs, taps[0].shape) == ("node.mm", "MatMul", ("x", "w"), (2, 8))


def test_a_tapped_copy_computes_the_same_and_shows_the_tensor(gelu_set, tmp_path):
    made = tapped(gelu_set, "main", ["mm", "y"], tmp_path / "tapped")
    onnx.checker.check_model(str(made.path / "main.onnx"))
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    model = onnx.load(made.path / "main.onnx")
    assert [o.name for o in model.graph.output] == ["y", "mm"]
    y, mm = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(mm, x @ np.arange(64, dtype=np.float32).reshape(8, 8), rtol=1e-6)
    (before,) = ReferenceEvaluator(onnx.load(gelu_set.path / "main.onnx")).run(None, {"x": x})
    np.testing.assert_array_equal(y, before)


def test_weights_are_copied_once_for_all_copies_of_a_set(gelu_set, tmp_path):
    made = tapped(gelu_set, "main", ["mm"], tmp_path / "tapped")
    file = made.path / "weights.data"
    assert file.read_bytes() == (gelu_set.path / "weights.data").read_bytes()
    before = file.stat().st_mtime_ns
    tapped(gelu_set, "main", ["g"], tmp_path / "tapped")
    assert file.stat().st_mtime_ns == before


def test_unknown_tensors_and_entries_are_named(gelu_set, tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        tapped(gelu_set, "main", ["nowhere"], tmp_path / "a")
    with pytest.raises(InputError, match="no entry 'decode'"):
        taps_of(gelu_set, "decode")
