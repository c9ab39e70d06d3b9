"""Static AIPP in the simulated compiler."""

from __future__ import annotations

import numpy as np
import pytest
from isthmus_ascend_cann.om import read_om
from isthmus_ascend_cann.simulator.atc.failure import AtcError
from onnx import TensorProto, helper

F = TensorProto.FLOAT
STATIC = "aipp_mode: static\n input_format : RGB888_U8\n"


@pytest.fixture
def picture_model(make):
    return make([helper.make_node("Mul", ["x", "two"], ["y"])], {"x": (F, [1, 3, 4, 6])}, {"y": (F, [1, 3, 4, 6])},
                {"two": np.array(2, np.float32)})  # fmt: skip


@pytest.fixture
def compile_aipp(compile_om, picture_model, tmp_path):
    def run(body, **given):
        (tmp_path / "aipp.cfg").write_text(f"# comment\naipp_op {{\n {body}}}\n")
        options = {"insert_op_conf": str(tmp_path / "aipp.cfg"), "precision_mode_v2": "origin", **given}
        return compile_om(picture_model, **options)

    return run


def test_pictures_are_cropped_swapped_and_normalised(sim, compile_aipp):
    path = compile_aipp(
        STATIC
        + "src_image_size_w: 8\n src_image_size_h: 5\n crop: true\n load_start_pos_w: 2\n load_start_pos_h: 1\n"
        + "rbuv_swap_switch: true\n mean_chn_0: 10\n min_chn_1: 0.5\n var_reci_chn_2: 0.25\n"
    )
    x = np.random.default_rng(0).integers(0, 256, (1, 5, 8, 3), np.uint8)
    (y,) = sim.run(sim.load(path), [x], [(1, 3, 4, 6)])
    want = x[:, 1:5, 2:8, ::-1].astype(np.float32).transpose(0, 3, 1, 2).copy()
    want[:, 0] -= 10
    want[:, 1] -= 0.5
    want[:, 2] *= 0.25
    np.testing.assert_allclose(y, want * 2, rtol=1e-6)


def test_the_om_states_the_picture_and_what_the_graph_takes(compile_aipp):
    (tensor,) = read_om(compile_aipp(STATIC)).inputs
    assert (tensor.shape, tensor.shape_v2) == ((1, 4, 6, 3), (1, 3, 4, 6))
    assert (tensor.size, tensor.dtype, tensor.format) == (72, 4, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("aipp_mode: dynamic\n", "E10055"),
        ("aipp_mode: static\n input_format: YUV420SP_U8\n", "E10055"),
        (STATIC + "csc_switch: true\n", "E10055"),
        (STATIC + "padding: true\n", "E10055"),
        (STATIC + "related_input_rank: 1\n", "E10052"),
        (STATIC + 'related_input_name: "z"\n', "E10052"),
        (STATIC + "src_image_size_w: 9\n", "E10052"),
        (STATIC + "crop: true\n load_start_pos_w: 1\n", "E10052"),
        (STATIC + "crop: true\n crop_size_w: 5\n", "E10052"),
    ],
)
def test_what_is_wrong_or_not_simulated_is_refused(compile_aipp, body, code):
    with pytest.raises(AtcError) as caught:
        compile_aipp(body)
    assert caught.value.code == code


def test_a_file_without_a_block_is_refused(compile_om, picture_model, tmp_path):
    (tmp_path / "empty.cfg").write_text("nothing")
    for file in ("empty.cfg", "missing.cfg"):
        with pytest.raises(AtcError) as caught:
            compile_om(picture_model, insert_op_conf=str(tmp_path / file))
        assert caught.value.code == "E10052"
