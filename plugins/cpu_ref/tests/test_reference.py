"""The device that tells the truth: canonical graphs in float64."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isthmus.errors import CompileError, ExecutionError, InputError
from isthmus_cpu_ref.evaluate import last_uses
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

FLOAT, DOUBLE, HALF = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16


def run(models, reference, path, inputs):
    with reference.load(models.compile(path, target="reference")) as program:
        return program.run("main", inputs)


def test_float32_sums_lose_nothing_on_the_way(models, reference):
    """1e8 + 1 - 1e8 is 0 in float32."""
    nodes = [helper.make_node("Add", ["x", "one"], ["t"]), helper.make_node("Sub", ["t", "x"], ["y"])]
    path = models.write(nodes, {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])}, {"one": np.float32([1])})
    got = run(models, reference, path, {"x": np.float32([1e8])})["y"]
    assert got.dtype == np.float32
    assert got.tolist() == [1.0]


def test_values_beyond_float16_survive_between_nodes(models, reference):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["t"]),
        helper.make_node("Cast", ["t"], ["u"], to=HALF),
        helper.make_node("Sqrt", ["u"], ["y"]),
    ]
    path = models.write(nodes, {"x": (HALF, [2])}, {"y": (HALF, [2])})
    got = run(models, reference, path, {"x": np.float16([3000, 2])})["y"]
    assert got.dtype == np.float16
    assert got.tolist() == [3000, 2]


def test_an_output_beyond_its_type_is_infinite(models, reference):
    path = models.write([helper.make_node("Mul", ["x", "x"], ["y"])], {"x": (HALF, [1])}, {"y": (HALF, [1])})
    assert run(models, reference, path, {"x": np.float16([3000])})["y"] == np.inf


@pytest.mark.parametrize("spelling", ["Erf", "Gelu"])
def test_the_error_function_is_exact_to_float64(models, reference, spelling):
    path = models.write(
        [helper.make_node(spelling, ["x"], ["y"])], {"x": (DOUBLE, [200])}, {"y": (DOUBLE, [200])}, opset=20
    )
    x = np.linspace(-5, 5, 200)
    got = run(models, reference, path, {"x": x})["y"]
    erf = np.array([math.erf(v) for v in (x if spelling == "Erf" else x / math.sqrt(2))])
    want = erf if spelling == "Erf" else 0.5 * x * (1 + erf)
    assert np.abs(got - want).max() < 1e-14


CONSTANTS = {
    "value_float": [helper.make_node("Constant", [], ["c"], value_float=0.1)],
    "value_floats": [helper.make_node("Constant", [], ["c"], value_floats=[0.1])],
    "value": [
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.float32([0.1]), "c")),
    ],
    "ConstantOfShape": [
        helper.make_node("Constant", [], ["s"], value_ints=[1]),
        helper.make_node(
            "ConstantOfShape", ["s"], ["c"], value=onnx.numpy_helper.from_array(np.float32([0.1]), "value")
        ),
    ],
}


@pytest.mark.parametrize("kind", CONSTANTS)
def test_float32_constants_are_widened_before_they_are_used(models, reference, kind):
    """c*c*1e30 in float32 differs from float64 in the 8th digit; the constant itself is the float32 number."""
    nodes = [*CONSTANTS[kind], helper.make_node("Mul", ["c", "c"], ["cc"]), helper.make_node("Mul", ["cc", "x"], ["y"])]
    path = models.write(nodes, {"x": (DOUBLE, [1])}, {"y": (DOUBLE, [1])})
    model = onnx.load(path)
    for node in model.graph.node:
        if node.output[0] == "cc":  # float32 * float32, then a cast, so that the model is valid
            node.output[0] = "cc32"
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("Cast", ["cc32"], ["cc"], to=DOUBLE))
    onnx.save(model, path)
    got = run(models, reference, path, {"x": np.array([1e30])})["y"]
    assert got == pytest.approx(float(np.float32(0.1)) ** 2 * 1e30, rel=1e-15)


def test_big_weights_are_widened_too(models, reference):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64)).astype(np.float32)
    path = models.write(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Cast", ["t"], ["y"], to=DOUBLE)],
        {"x": (FLOAT, [3, 64])},
        {"y": (DOUBLE, [3, 64])},
        {"w": w},
    )
    x = rng.standard_normal((3, 64)).astype(np.float32)
    got = run(models, reference, path, {"x": x})["y"]
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.astype(np.float64), rtol=1e-13)


def test_it_agrees_with_cpu0_within_the_tolerance_both_state(models, reference, cpu):
    path = models.attention(tokens=65, heads=4, width=64)
    x = np.random.default_rng(0).standard_normal((1, 65, 64)).astype(np.float32)
    want = run(models, reference, path, {"x": x})["y"]
    artifact = models.compile(path)
    with cpu.load(artifact) as program:
        got = program.run("main", {"x": x})["y"]
    tolerance = artifact.manifest.tolerance
    assert np.abs(got - want).max() <= tolerance.atol + tolerance.rtol * np.abs(want).max()


@pytest.mark.parametrize("axes", [(0,), None])
def test_constants_and_defaults_within_an_operator_hold(models, reference, axes):
    """MeanVarianceNormalization is a function: float32 exponents, and axes (0, 2, 3) where none are given."""
    node = helper.make_node("MeanVarianceNormalization", ["x"], ["y"], **({"axes": axes} if axes else {}))
    path = models.write([node], *({n: (FLOAT, [3, 2, 4, 5])} for n in "xy"))
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    got = run(models, reference, path, {"x": x})["y"]
    wide, over = x.astype(np.float64), axes or (0, 2, 3)
    want = (wide - wide.mean(over, keepdims=True)) / (wide.std(over, keepdims=True) + 1e-9)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_integers_stay_integers(models, reference):
    path = models.write([helper.make_node("Add", ["x", "x"], ["y"])], *({n: (TensorProto.INT64, [1])} for n in "xy"))
    assert run(models, reference, path, {"x": np.array([2**62 - 1])})["y"].tolist() == [2**63 - 2]


def test_an_operator_it_computes_in_float32_is_listed(models):
    node = helper.make_node("GridSample", ["x", "g"], ["y"], name="sample")
    path = models.write([node], {"x": (FLOAT, [1, 1, 4, 4]), "g": (FLOAT, [1, 2, 2, 2])}, {"y": (FLOAT, [1, 1, 2, 2])})
    assert models.compile(path, target="reference").manifest.placement == {"main/sample": "float32"}
    assert models.compile(models.mlp(), target="reference").manifest.placement == {}


def test_an_operator_outside_the_standard_is_refused(models):
    with pytest.raises(CompileError, match="MatMulNBits"):
        models.compile(models.quantized(), target="reference")


def test_a_run_that_fails_says_why(models, reference):
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    path = models.write([node], {"x": (FLOAT, [3]), "i": (TensorProto.INT64, [1])}, {"y": (FLOAT, [1])})
    with pytest.raises(ExecutionError, match="IndexError"):
        run(models, reference, path, {"x": np.ones(3, np.float32), "i": np.array([7])})


def test_a_result_of_another_shape_than_stated_is_an_error(models, reference):
    path = models.write([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [3, 2])})
    with pytest.raises((ExecutionError, CompileError)):
        run(models, reference, path, {"x": np.ones((2, 3), np.float32)})


def test_it_takes_no_options(models):
    from isthmus import open_device

    with pytest.raises(InputError, match="no options"):
        open_device("cpu:reference", options={"threads": 2})
    with pytest.raises(InputError, match="no options"):
        models.compile(models.mlp(), target="reference", optimization="none")


WITHOUT_RUNTIME = """
import json, sys
sys.modules["onnxruntime"] = None  # an import of it fails
import numpy as np
from isthmus import compile, open_device
artifact = compile("cpu", sys.argv[1], sys.argv[2], target="reference")
with open_device("cpu:reference") as device, device.load(artifact) as program:
    y = program.run("main", {"x": np.ones(artifact.entries["main"].inputs[0].shape, np.float32)})["y"]
try:
    open_device("cpu")
except Exception as error:
    print(json.dumps([bool(y.any()), type(error).__name__, error.exit_code]))
"""


def test_onnx_runtime_has_no_part_in_it(models, in_child, tmp_path):
    assert in_child(WITHOUT_RUNTIME, models.mlp(), tmp_path / "out") == [True, "UnavailableError", 3]


@settings(max_examples=60)
@given(data=st.data())
def test_a_result_is_dropped_after_its_last_use_and_no_sooner(data):
    """Random graphs: what ``last_uses`` keeps is enough for onnx.reference's own order, and nothing is left over."""
    names, nodes = ["x"], []
    for i in range(data.draw(st.integers(1, 12))):
        a, b = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        nodes.append(helper.make_node("Add", [a, b], [f"t{i}"]))
        names.append(f"t{i}")
    outputs = data.draw(st.sets(st.sampled_from(names[1:]), min_size=1))
    infos = [helper.make_tensor_value_info(n, FLOAT, [1]) for n in sorted(outputs)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", FLOAT, [1])], infos)
    live = {"x"}
    for node, done in zip(graph.node, last_uses(graph)):
        assert set(node.input) <= live
        live |= set(node.output)
        assert done <= live
        live -= done
    assert live == outputs | {"x"}


def test_bodies_of_control_flow_read_results_around_them(models, reference):
    """The body reads ``t``, which no node reads by name."""
    body = helper.make_graph(
        [helper.make_node("Add", ["t", "t"], ["in_then"])], "then", [], [helper.make_tensor_value_info("in_then", FLOAT, [2])]
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Identity", ["t"], ["in_else"])], "else", [], [helper.make_tensor_value_info("in_else", FLOAT, [2])]
    )  # fmt: skip
    nodes = [
        helper.make_node("Exp", ["x"], ["t"]),
        helper.make_node("Relu", ["x"], ["unused"]),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
    ]
    path = models.write(nodes, {"x": (FLOAT, [2]), "c": (TensorProto.BOOL, [])}, {"y": (FLOAT, [2])})
    x = np.float32([0, 1])
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        (want,) = ReferenceEvaluator(onnx.load(path)).run(None, feeds)
        np.testing.assert_allclose(run(models, reference, path, feeds)["y"], want, rtol=1e-6)
