"""Predicted memory against the memory of a process that loads and executes."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest
from isthmus import open_device
from onnx import TensorProto, helper


def two_entries(models):
    where = models.root / "pair"
    files = {f"m{rows}": models.mlp(rows=rows, width=1536, layers=4, name=f"m{rows}", where=where) for rows in (1, 64)}
    return models.graph_set(files)


MODELS = {
    "warm up": lambda models: models.mlp(),
    "weights": lambda models: models.mlp(rows=64, width=2048, layers=3),
    "scratch": lambda models: models.attention(tokens=1025, heads=8, width=512),
    "pair": two_entries,
    "4 bits": lambda models: models.quantized(width=8192, accuracy_level=0),
}


@pytest.fixture(scope="module")
def artifacts(module_models):
    return {name: module_models.compile(build(module_models)) for name, build in MODELS.items()}


@pytest.fixture(scope="module")
def measured(artifacts, in_child):
    """Measured and predicted growth of a process that loads a model in a mode."""
    paths = {name: str(artifact.path) for name, artifact in artifacts.items()}
    seen = in_child("memory_child.py", paths.pop("warm up"), *paths.values())
    return {(name, mode): figures for name, path in paths.items() for mode, figures in seen[path].items()}


@pytest.mark.parametrize("mode", ["packed", "mapped", "lent"])
@pytest.mark.parametrize("model", ["weights", "scratch", "pair", "4 bits"])
def test_predicted_memory_is_within_ten_percent_of_the_process(measured, model, mode):
    figures = measured[model, mode]
    assert figures["predicted"] > 30 << 20
    assert figures["measured"] == pytest.approx(figures["predicted"], rel=0.10)


@pytest.mark.parametrize("mode", ["mapped", "lent"])
def test_two_entries_over_one_block_take_it_once(measured, mode):
    figures = measured["pair", mode]
    assert figures["measured"] < 1.5 * figures["weights"]
    assert measured["pair", "packed"]["measured"] > 1.9 * figures["weights"]


def test_loading_from_lent_weights_takes_no_second_copy(measured):
    figures = measured["weights", "lent"]
    assert figures["measured"] - figures["weights"] < figures["weights"] // 4


def test_the_cost_of_each_choice_is_told(artifacts):
    artifact = artifacts["weights"]
    needs = {}
    for prepack in ("auto", "on", "off"):
        with open_device("cpu", options={"prepack": prepack}) as device:
            needs[prepack] = device.memory_requirements(artifact)
    assert needs["auto"] == artifact.manifest.memory
    assert needs["on"].own_load == needs["auto"].own_load
    assert needs["off"].own_load < needs["on"].own_load + needs["off"].weights
    assert needs["auto"].load_extra > 0 == needs["off"].load_extra
    assert needs["on"].caller_load > needs["auto"].caller_load == needs["off"].caller_load
    told = " ".join(needs["auto"].notes)
    assert f"{needs['auto'].weights} bytes of weights mapped" in told
    assert "prepack=off" in told
    assert "no caller workspace" in told


def test_scratch_of_a_large_graph_is_measured_and_of_a_small_one_added_up(artifacts):
    large, small = artifacts["scratch"].manifest.memory, artifacts["warm up"].manifest.memory
    assert any("measured in a run" in note for note in large.notes)
    assert any("sum of its intermediate" in note for note in small.notes)
    scores = 8 * 1025 * 1025 * 4
    assert scores <= large.workspace["main"] <= 3 * scores
    assert large.exact
    assert small.exact


def test_a_graph_that_fails_on_zeros_has_a_lower_bound_and_says_why(models):
    """Its index is computed from an input that zeros put out of range."""
    nodes = [
        helper.make_node("Sub", ["i", "big"], ["j"]),
        helper.make_node("Gather", ["x", "j"], ["row"], axis=0),
        helper.make_node("Relu", ["row"], ["y"]),
    ]
    shape = (TensorProto.FLOAT, [1, 1 << 20])
    path = models.write(
        nodes,
        {"x": (TensorProto.FLOAT, [4, 1 << 20]), "i": (TensorProto.INT64, [1])},
        {"y": shape},
        {"big": np.array([9])},
    )
    memory = models.compile(path).manifest.memory
    assert not memory.exact
    assert any("not measured" in note and "indices" in note for note in memory.notes)
    assert memory.workspace["main"] >= 4 << 20


@pytest.mark.parametrize("accuracy_level", [0, 4])
def test_figures_of_quantised_weights_count_what_packing_adds(models, accuracy_level):
    """Packed with int8 activations: the weights, and three float32 per block of 32. Otherwise scales stay in place."""
    width = 256
    blocks = width * width // 32
    artifact = models.compile(models.quantized(width=width, accuracy_level=accuracy_level))
    figures = json.loads(artifact.file("cpu.json").read_text())
    entry = figures["entries"]["main"]
    assert entry["packed"] == width * width // 2 + (12 * blocks if accuracy_level else 0)
    assert figures["unpacked"] == (0 if accuracy_level else 4 * blocks)
    assert entry["always_packed"]
    with open_device("cpu", options={"prepack": "off"}) as device:
        assert device.memory_requirements(artifact).own_load >= entry["packed"]


def test_weights_of_a_batched_product_are_not_packed(models):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    io = (TensorProto.FLOAT, [2, 4, 64])
    path = models.write([node], {"x": io}, {"y": io}, {"w": np.ones((2, 64, 64), np.float32)})
    artifact = models.compile(path)
    figures = json.loads(artifact.file("cpu.json").read_text())
    assert figures["entries"]["main"]["packed"] == 0
    assert figures["unpacked"] == artifact.manifest.memory.weights == 2 * 64 * 64 * 4


def test_requirements_add_up(artifacts):
    for artifact in artifacts.values():
        memory = artifact.manifest.memory
        assert memory.own_load >= sum(memory.workspace.values())
        assert memory.caller_load >= sum(memory.workspace.values())
        assert set(memory.io) == set(memory.workspace) == set(artifact.entries)
        for name, spec in artifact.entries.items():
            assert memory.io[name] == sum(t.nbytes for t in (*spec.inputs, *spec.outputs))
        assert attrs.asdict(memory)["alignment"] == 64
