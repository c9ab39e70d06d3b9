"""What is refused without the compiler, and what is left to it."""

import numpy as np
import pytest
from isthmus.errors import CompileError, InputError, UnsupportedError
from isthmus_qnn_htp import targets
from isthmus_qnn_htp.onnx_graph import complete_external, entry_spec, read_model
from isthmus_qnn_htp.options import Precision
from isthmus_qnn_htp.precheck import precheck
from onnx import TensorProto as T
from onnx import helper


def check(path, target="sm8650"):
    model = read_model(path)
    entry_spec(model, "main")
    precheck(model, "main", targets.parse(target), Precision.FP16)


@pytest.mark.parametrize(
    ("op", "dtype", "said"),
    [
        (
            "Relu",
            T.DOUBLE,
            r"'n' \(Relu\) of entry 'main' has tensor 'x', float64\[4,4\]\n  why: the HTP has no float64",
        ),
        ("Relu", T.BFLOAT16, r"bfloat16\[4,4\]"),
        ("Neg", T.INT64, r"'n' \(Neg\) of entry 'main' computes int64\[4,4\]\n  why: .* 32 bits"),
        ("Identity", T.STRING, "a type no buffer can hold"),
        ("Identity", T.COMPLEX64, "a type no buffer can hold"),
    ],
)
def test_element_types_the_htp_lacks_name_the_node_and_the_tensor(graphs, op, dtype, said):
    with pytest.raises(CompileError, match=said):
        check(graphs.node(op, dtype, name="n"))


def test_a_node_without_a_name_is_called_by_its_place(graphs):
    with pytest.raises(CompileError, match="node 'Relu_0'"):
        check(graphs.node("Relu", T.DOUBLE))


def test_a_free_dimension_comes_with_the_command_that_fixes_it(graphs):
    with pytest.raises(CompileError, match=r"axis 0 \(batch\)") as error:
        check(graphs.node("Relu", shape=["batch", 4]))
    assert "make_dynamic_shape_fixed --dim_param batch" in error.value.fix


@pytest.mark.parametrize("shape", [(2, 0, 4), (0,)])
def test_tensors_without_elements_are_refused(graphs, shape):
    with pytest.raises(CompileError, match="it has no elements"):
        check(graphs.node("Relu", shape=shape, name="n"))


def test_an_empty_parameter_is_no_empty_tensor(graphs):
    weights = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    check(
        graphs.node(
            "Resize", shape=(1, 1, 4, 4), out=(T.FLOAT, (1, 1, 8, 8)), inputs=("x", "roi", "scales"), weights=weights
        )
    )


def test_an_input_without_a_use_is_refused(graphs):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = graphs.write(nodes, {"x": (T.FLOAT, [4]), "idle": (T.FLOAT, [4])}, {"y": (T.FLOAT, [4])})
    with pytest.raises(CompileError, match="input 'idle' of entry 'main' is used by no node"):
        check(path)


def test_an_output_that_no_input_reaches_is_refused(graphs):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["c"], ["z"])]
    outputs = {"y": (T.FLOAT, [4]), "z": (T.FLOAT, [2])}
    path = graphs.write(nodes, {"x": (T.FLOAT, [4])}, outputs, {"c": np.ones(2, np.float32)})
    with pytest.raises(CompileError, match="output 'z' of entry 'main' is not computed from any input"):
        check(path)


def test_an_output_that_is_an_input_is_refused(graphs):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = graphs.write(nodes, {"x": (T.FLOAT, [4])}, {"y": (T.FLOAT, [4]), "x": (T.FLOAT, [4])})
    with pytest.raises(CompileError, match="output 'x' of entry 'main'"):
        check(path)


def test_int64_that_only_depends_on_shapes_is_left_alone(graphs):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "two"], ["d"]),
        helper.make_node("Div", ["d", "two"], ["h"]),
        helper.make_node("Reshape", ["x", "h"], ["y"]),
    ]
    check(graphs.write(nodes, {"x": (T.FLOAT, [4, 2])}, {"y": (T.FLOAT, [4, 2])}, {"two": np.array([2, 2])}))


def test_int64_ids_are_left_alone(graphs):
    table = {"t": np.zeros((8, 4), np.float32)}
    check(graphs.node("Gather", T.INT64, (3,), inputs=("t", "x"), out=(T.FLOAT, (3, 4)), weights=table))


def test_an_old_opset_is_refused(graphs):
    with pytest.raises(CompileError, match="opset 6"):
        check(graphs.node("Relu", opset=6))


@pytest.mark.parametrize(
    ("target", "why"),
    [("sm8350", "takes no fp16"), ("sa8295", "missing or partial on v68"), ("sm8450", "on v69"), ("sm8735", "no fp16")],
)
def test_float_graphs_are_refused_for_chips_without_fp16(graphs, target, why):
    with pytest.raises(UnsupportedError, match=f"{target.upper()}.* quantised graphs only") as error:
        check(graphs.matmul(), target)
    assert why in error.value.why


def test_quantised_and_integer_graphs_are_not(graphs):
    check(graphs.quantized_matmul(), "sm8350")
    check(graphs.node("Neg", T.INT32), "sm8350")


@pytest.mark.parametrize("damage", ["not onnx", ""])
def test_a_file_that_is_no_graph_is_refused(graphs, tmp_path, damage):
    path = tmp_path / "g.onnx"
    path.write_text(damage)
    with pytest.raises(CompileError, match=r"g\.onnx"):
        check(path)


def test_external_weights_get_a_length(graphs):
    path = graphs.matmul(external="w.data")
    model = read_model(path)
    (tensor,) = model.graph.initializer
    del tensor.external_data[[e.key for e in tensor.external_data].index("length")]
    complete_external(model, path.parent)
    assert {e.key: e.value for e in tensor.external_data}["length"] == str(64 * 32 * 4)


def test_external_weights_that_are_not_there_or_too_short_are_refused(graphs):
    path = graphs.matmul(external="w.data")
    data = path.parent / "w.data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"weight 'w' is bytes 0 to 8192 of .*has 8191 bytes"):
        complete_external(read_model(path), path.parent)
    data.unlink()
    with pytest.raises(InputError, match="is missing"):
        complete_external(read_model(path), path.parent)


def test_external_weights_outside_the_graph_set_are_refused(graphs):
    path = graphs.matmul(external="w.data")
    model = read_model(path)
    next(e for e in model.graph.initializer[0].external_data if e.key == "location").value = "../../secret"
    with pytest.raises(InputError, match="leaves the directory"):
        complete_external(model, path.parent)
