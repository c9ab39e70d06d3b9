"""The simulated compiler: flags, checks, precision, what it writes."""

from __future__ import annotations

import subprocess

import numpy as np
import onnx
import pytest
from isthmus_ascend_cann.simulator import atc_command
from isthmus_ascend_cann.simulator.atc import flags, tables
from isthmus_ascend_cann.simulator.atc.failure import AtcError
from onnx import TensorProto, helper

F, H = TensorProto.FLOAT, TensorProto.FLOAT16
REQUIRED = ["--model=m.onnx", "--output=m", "--framework=5", "--soc_version=Ascend910B4"]


def chain(make, dtype, steps=4):
    """``x * c + d`` again and again: every step rounds anew in half precision."""
    nodes, last = [], "x"
    for i in range(steps):
        nodes.append(helper.make_node("Mul", [last, "c"], [f"t{i}"], name=f"mul{i}"))
        nodes.append(helper.make_node("Add", [f"t{i}", "d"], [f"u{i}"], name=f"add{i}"))
        last = f"u{i}"
    array = np.float16 if dtype == H else np.float32
    constants = {"c": np.array([1.0009], array), "d": np.array([0.333], array)}
    return make(nodes, {"x": (dtype, [1000])}, {last: (dtype, [1000])}, constants)


def chain_in_half(x, steps=4):
    for _ in range(steps):
        x = x * np.float16(1.0009)
        x = x + np.float16(0.333)
    return x


def test_the_command_says_what_the_real_one_says_and_that_it_is_simulated(tmp_path, linear_model):
    onnx.save(linear_model[0], str(tmp_path / "m.onnx"))
    command = [*atc_command(), f"--model={tmp_path / 'm.onnx'}", f"--output={tmp_path / 'm'}", *REQUIRED[2:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "ATC run success, welcome to the next use." in done.stdout
    assert "simulated" in done.stderr
    assert (tmp_path / "m.om").read_bytes()[:4] == b"IMOD"


def test_a_failure_exits_with_255_and_an_e_code(tmp_path):
    done = subprocess.run([*atc_command(), *REQUIRED], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 255
    assert "ATC run failed" in done.stdout
    assert "(E10001): " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--model=m.onnx", "--framework=5", "--soc_version=Ascend910B4"], "E10054"),
        ([*REQUIRED[:2], "--soc_version=Ascend910B4"], "E10007"),
        ([*REQUIRED, "--no_such_flag=1"], "E10003"),
        ([*REQUIRED, "--buffer_optimize=on"], "E10001"),
        ([*REQUIRED, "--precision_mode=fp16"], "E10001"),
        ([*REQUIRED, "--precision_mode=force_fp16", "--precision_mode_v2=fp16"], "E10056"),
        ([*REQUIRED, "--dynamic_batch_size=1,2", "--dynamic_dims=1;2"], "E10009"),
        ([*REQUIRED, "--singleop=x.json"], "E10055"),
        (["stray", *REQUIRED], "E10054"),
    ],
)
def test_bad_command_lines_are_refused_with_their_code(arguments, code):
    with pytest.raises(AtcError) as caught:
        flags.parse(arguments)
    assert caught.value.code == code


def test_flags_may_have_one_dash_a_blank_and_hyphens():
    values = flags.parse(["-model", "m.onnx", "--output", "m", "--framework", "5", "--soc-version=Ascend310P3"])
    assert values["model"] == "m.onnx"
    assert values["soc_version"] == "Ascend310P3"
    assert values["buffer_optimize"] == "l2_optimize"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"soc_version": "Ascend910"}, "E10001"),
        ({"input_shape": "z:1,64"}, "E10016"),
        ({"input_shape": "x:1,64,1"}, "E10049"),
        ({"input_shape": "x:0,64"}, "E10011"),
        ({"input_shape": "x:one,64"}, "E10002"),
        ({"input_shape": "x:4,64", "dynamic_batch_size": "1,2"}, "E10040"),
        ({"input_shape": "x:-1,64", "dynamic_batch_size": "1"}, "E10035"),
        ({"input_shape": "x:-1,64", "dynamic_batch_size": "1,-2"}, "E10038"),
        ({"input_shape": "x:-1,64", "dynamic_batch_size": "2,2"}, "E10039"),
        ({"input_shape": "x:4,-1", "dynamic_batch_size": "1,2"}, "E10012"),
        ({"input_shape": "x:-1,64", "dynamic_image_size": "1,2;3,4"}, "E10018"),
        ({"input_shape": "x:-1,64", "dynamic_dims": "1;2"}, "E10031"),
        ({"input_shape": "x:-1,64", "dynamic_dims": "1,1;2,2", "input_format": "ND"}, "E10045"),
        ({"input_shape": "x:-1,64", "dynamic_dims": "1;2,2", "input_format": "ND"}, "E10037"),
        ({"input_shape": "x:1~8,64", "soc_version": "Ascend310"}, "EZ3003"),
        (
            {"input_shape": "x:4,64", "precision_mode": "allow_mix_precision_bf16", "soc_version": "Ascend310P3"},
            "E10001",
        ),
        ({"input_shape": "x:4,64", "precision_mode_v2": "cube_hif8"}, "E10001"),
        ({"input_shape": "x:4,64", "keep_dtype": "no/such/file"}, "E13001"),
        ({"input_shape": "x:4,64", "input_fp16_nodes": "z"}, "E10016"),
        ({"input_shape": "x:4,64", "output_type": "INT8"}, "E10001"),
        ({}, "E11005"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_with_its_code(compile_om, symbolic_linear, given, code):
    with pytest.raises(AtcError) as caught:
        compile_om(symbolic_linear, **given)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("operator", "opset", "inputs"),
    [
        ("Gelu", 20, ["x"]),
        ("RMSNormalization", 23, ["x", "s"]),
        ("QuantizeLinear", 17, ["x", "s"]),
        ("Abs", 19, ["x"]),
    ],
)
def test_operators_without_a_parser_are_refused(compile_om, make, operator, opset, inputs):
    model = make(
        [helper.make_node(operator, inputs, ["y"], name="n")],
        {"x": (F, [2, 4])},
        {"y": (TensorProto.UINT8 if operator == "QuantizeLinear" else F, [2, 4])},
        {"s": np.ones(4 if operator == "RMSNormalization" else (), np.float32)},
        opset,
    )
    with pytest.raises(AtcError) as caught:
        compile_om(model)
    assert caught.value.code == "E16002"


def test_control_flow_is_refused(compile_om, make):
    def branch(name):
        return helper.make_graph(
            [helper.make_node("Abs", ["x"], [name])], name, [], [helper.make_tensor_value_info(name, F, [2])]
        )

    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))]
    with pytest.raises(AtcError) as caught:
        compile_om(make(nodes, {"x": (F, [2]), "c": (TensorProto.BOOL, [])}, {"y": (F, [2])}))
    assert caught.value.code == "E10055"


def test_missing_external_data_leave_no_om(compile_om, linear_model, tmp_path):
    model = linear_model[0]
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(AtcError) as caught:
        compile_om(tmp_path / "m.onnx", output=str(tmp_path / "m"))
    assert caught.value.code == "E16001"
    assert not list(tmp_path.glob("*.om*"))


def test_external_data_are_read(sim, compile_om, linear_model, tmp_path):
    model, w, b = linear_model
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    x = np.ones((4, 64), np.float32)
    (y,) = sim.run(sim.load(compile_om(tmp_path / "m.onnx", precision_mode_v2="origin")), [x], [(4, 32)])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


def test_garbage_is_no_model(compile_om, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(AtcError) as caught:
        compile_om(tmp_path / "m.onnx")
    assert caught.value.code == "E16001"


def test_force_fp16_rounds_after_every_operator(sim, compile_om, make):
    x = (np.random.default_rng(0).standard_normal(1000) * 10).astype(np.float32)
    (y,) = sim.run(sim.load(compile_om(chain(make, F))), [x], [(1000,)])
    np.testing.assert_array_equal(y, chain_in_half(x.astype(np.float16)).astype(np.float32))


def test_a_float16_graph_rounds_after_every_operator(sim, compile_om, make):
    x = (np.random.default_rng(0).standard_normal(1000) * 10).astype(np.float16)
    path = compile_om(chain(make, H), precision_mode_v2="origin")
    (y,) = sim.run(sim.load(path), [x], [(1000,)], np.float16)
    np.testing.assert_array_equal(y, chain_in_half(x))


def test_fp16_overflows(sim, compile_om, make):
    model = make([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])})
    (y,) = sim.run(sim.load(compile_om(model)), [np.array([300, 2], np.float32)], [(2,)])
    assert y.tolist() == [np.inf, 4]


def test_origin_keeps_float32(sim, linear):
    path, w, b = linear
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (y,) = sim.run(sim.load(path), [x], [(4, 32)])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mode", ["allow_fp32_to_fp16", "force_fp32", "allow_mix_precision", "allow_mix_precision_bf16"]
)
def test_modes_round_what_they_say(sim, compile_om, linear_model, mode):
    model, w, b = linear_model
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (y,) = sim.run(sim.load(compile_om(model, precision_mode=mode)), [x], [(4, 32)])
    half = x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)
    if mode == "allow_fp32_to_fp16":
        want = half.astype(np.float16).astype(np.float32) + b
    elif mode == "force_fp32":
        want = half + b
    elif mode == "allow_mix_precision":
        want = (half.astype(np.float16) + b.astype(np.float16)).astype(np.float32)
    else:
        assert 1e-3 < np.abs(y - (x @ w + b)).max() < 0.2  # 8 bits of mantissa
        return
    # One float16 step where the order of the sum tips the rounding.
    assert np.abs(y - want).max() <= 2**-6
    assert np.mean(y == want) > 0.9 or mode == "force_fp32"
    assert np.abs(y - (x @ w + b)).max() > 1e-4


def test_kept_operators_stay_in_float32(sim, compile_om, make, tmp_path):
    (tmp_path / "keep").write_text("mul0\nOpType::Add\n")
    x = (np.random.default_rng(0).standard_normal(1000) * 10).astype(np.float32)
    path = compile_om(chain(make, F, steps=1), keep_dtype=str(tmp_path / "keep"))
    (y,) = sim.run(sim.load(path), [x], [(1000,)])
    np.testing.assert_array_equal(y, x * np.float32(1.0009) + np.float32(0.333))


def test_fp16_weights_take_half_the_bytes(sim, compile_om, linear_model, linear):
    narrow, wide = sim.query(compile_om(linear_model[0]))[1], sim.query(linear[0])[1]
    assert (narrow, wide) == (64 * 32 * 2 + 32 * 2, 64 * 32 * 4 + 32 * 4)


def test_inputs_and_outputs_can_be_float16(sim, compile_om, linear_model):
    model, w, b = linear_model
    path = compile_om(model, input_fp16_nodes="x", output_type="FP16", precision_mode_v2="origin")
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float16)
    (y,) = sim.run(sim.load(path), [x], [(4, 32)], np.float16)
    np.testing.assert_allclose(y, (x.astype(np.float32) @ w + b).astype(np.float16), rtol=1e-3)


@pytest.mark.parametrize("mode", ["0", "1", "2"])
def test_external_weights_are_found_beside_the_om(sim, compile_om, linear_model, mode):
    model, w, b = linear_model
    path = compile_om(model, external_weight=mode, precision_mode_v2="origin")
    files = sorted(f.name for f in (path.parent / "weight").glob("*"))
    inside = sim.query(path)[1]
    assert (inside == 64 * 32 * 4 + 128) == (mode == "0")
    assert [f.startswith("weight_") for f in files] == ([True] if mode == "1" else [False] * (mode == "2"))
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    (y,) = sim.run(sim.load(path), [x], [(4, 32)])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


def test_reuse_in_place_and_lifetimes_make_the_workspace(sim, compile_om, make):
    def work(**given):
        return sim.query(compile_om(chain(make, F), precision_mode_v2="origin", **given))[0]

    tensor = 4096  # 1000 floats in whole blocks of 512 bytes
    assert work() == 3 * tensor  # input, output, and one that every operator writes over
    assert work(buffer_optimize="off_optimize") == 4 * tensor
    assert work(disable_reuse_memory="1") == 9 * tensor


def test_range_shapes_are_named_after_the_host_and_state_no_workspace(sim, compile_om, symbolic_linear):
    path = compile_om(symbolic_linear, input_shape="x:1~8,64", host_env_cpu="aarch64")
    assert path.name == "m_linux_aarch64.om"
    assert sim.query(path)[0] == 0


def test_ir_3_models_list_their_constants_among_the_inputs(sim, compile_om, linear_model):
    model, w, b = linear_model
    model.ir_version = 3
    for name, shape in (("w", [64, 32]), ("b", [32])):
        model.graph.input.append(helper.make_tensor_value_info(name, F, shape))
    x = np.ones((4, 64), np.float32)
    (y,) = sim.run(sim.load(compile_om(model, precision_mode_v2="origin")), [x], [(4, 32)])
    np.testing.assert_allclose(y, x @ w + b, rtol=1e-5, atol=1e-5)


def test_every_flag_of_the_real_command_is_known_here():
    names = {*tables.flag_defaults(), *tables.refused_flags()}
    assert len(names) == 84  # GE's 85 without help
    assert not set(tables.flag_defaults()) & tables.refused_flags()
