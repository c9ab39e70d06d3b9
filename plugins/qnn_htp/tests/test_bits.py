"""What this backend computes is, bit for bit, what ONNX Runtime's QNN EP computes from the same binary."""

import numpy as np
import pytest
from isthmus.types import DType, Quantization, TensorSpec


@pytest.mark.parametrize("name", ["fp32", "fp16", "u16", "u8", "step", "gather", "long"])
def test_a_graph_gives_the_bits_of_onnx_runtime(device, contexts, case, artifact, name):
    wanted = case(contexts, name)
    with device.load(artifact(wanted.binary)) as program:
        got = program.run("main", wanted.inputs)
    assert got.keys() == wanted.outputs.keys()
    for key, value in wanted.outputs.items():
        assert value.any(), "a result of zeros would prove nothing"
        np.testing.assert_array_equal(got[key], value)


def test_both_graphs_of_one_context_give_the_bits_of_onnx_runtime(device, contexts, case, artifact):
    wanted = case(contexts, "two")
    with device.load(artifact(wanted.binary, ("first", "second"))) as program:
        first = program.run("first", {"x": wanted.inputs["x"]})
        second = program.run("second", {"b": wanted.outputs["b"]})
    np.testing.assert_array_equal(first["a"], wanted.outputs["a"])
    np.testing.assert_array_equal(second["c"], wanted.outputs["c"])


def test_tensors_are_bound_by_name_whatever_the_order_of_the_manifest(device, contexts, case, artifact):
    wanted = case(contexts, "step")

    def reverse(entries):
        spec = entries["main"]
        return {"main": type(spec)(spec.inputs[::-1], spec.outputs[::-1])}

    with device.load(artifact(wanted.binary, respec=reverse)) as program:
        got = program.run("main", wanted.inputs)
    for key, value in wanted.outputs.items():
        np.testing.assert_array_equal(got[key], value)


def test_chips_of_two_architectures_run_side_by_side(device, contexts, sm8750_contexts, case, artifact):
    ours, theirs = case(contexts, "fp32"), case(sm8750_contexts, "fp32")
    with device.load(artifact(ours.binary)) as a, device.load(artifact(theirs.binary, target="sm8750")) as b:
        np.testing.assert_array_equal(a.run("main", ours.inputs)["y"], ours.outputs["y"])
        np.testing.assert_array_equal(b.run("main", theirs.inputs)["y"], theirs.outputs["y"])


def test_metadata_states_types_shapes_and_quantisation_of_the_onnx_graph(contexts, case, metadata):
    (graph,) = metadata(case(contexts, "u16").binary).graphs
    (x,) = [tensor.spec() for tensor in graph.inputs]
    scale = float(np.float32(8 / 65535))
    assert x == TensorSpec("x", DType.UINT16, (4, 64), Quantization((scale,), (32768,)))
    (graph,) = metadata(case(contexts, "gather").binary).graphs
    specs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in (*graph.inputs, *graph.outputs)}
    assert specs == {"x": (DType.FLOAT32, (8, 64)), "last": (DType.INT32, (1,)), "y": (DType.FLOAT32, (1, 32))}
