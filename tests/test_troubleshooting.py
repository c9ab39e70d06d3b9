"""One test per row of docs/troubleshooting.md: the fault is planted, and the row's command must find it."""

from __future__ import annotations

import copy
import itertools
import re
import shutil
from pathlib import Path

import attrs
import numpy as np
import onnx
import pytest
from isthmus.cli.models import bundled_package
from isthmus.device import Device
from isthmus.errors import OutOfMemoryError
from isthmus.graphset import GraphSet
from isthmus.models.export import export
from isthmus.pipeline.session import Session
from isthmus.types import Pages
from isthmus_cpu_ref.driver import CpuDriver
from onnx import TensorProto, helper

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory) -> Path:
    """The bundled model's graphs."""
    path = tmp_path_factory.mktemp("troubleshooting") / "graphs"
    export(bundled_package() / "checkpoint", path)
    return path


@pytest.fixture
def decode(graphs, tmp_path):
    """Copies of the decode entry alone, to be compared and damaged."""

    def make(name: str) -> Path:
        out = tmp_path / name
        out.mkdir()
        for file in ("decode.onnx", "weights.data"):
            shutil.copyfile(graphs / file, out / file)
        attrs.evolve(GraphSet.open(graphs), path=out, graphs={"decode": "decode.onnx"}, assets=(), model={}).save()
        return out

    return make


@pytest.fixture
def matmul(tmp_path):
    """A graph of one MatMul with ``rows`` rows, which may be a name."""

    def make(rows: int | str) -> Path:
        weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.ones((4, 3), np.float32))
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, d]) for n, d in (("x", 4), ("y", 3)))
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return path

    return make


def change_weight(model: Path, name: str, change) -> None:
    """Rewrite a float32 weight in ``weights.data``."""
    graph = onnx.load(model / "decode.onnx", load_external_data=False).graph
    place = {e.key: e.value for t in graph.initializer if t.name == name for e in t.external_data}
    data = np.memmap(model / "weights.data", np.float32, "r+", int(place["offset"]), int(place["length"]) // 4)
    data[:] = change(np.array(data))
    data.flush()


def only_case(result):
    """The one case that missed."""
    assert result.code == 1, result.err
    ((case,),) = [v["cases"] for v in result.json["verdicts"]]
    return case


def test_row_context_binary_does_not_load(cli, matmul, tmp_path):
    assert cli("compile", matmul(2), "-o", tmp_path / "a").code == 0
    file = next(f for f in (tmp_path / "a").rglob("*") if f.is_file() and f.name != "manifest.json")
    file.write_bytes(file.read_bytes()[:-1])
    told = cli("inspect", tmp_path / "a", "--json")
    assert (told.code, told.json["error"]) == (2, "IntegrityError")
    assert file.name in told.json["what"]


def test_row_first_output_is_all_zeros(cli, decode, graphs, tmp_path):
    whole = shutil.copytree(graphs, tmp_path / "whole")
    change_weight(whole, "llm.head.weight", np.zeros_like)
    ask = ("generate", "-q", "What is it?", "--model", whole, "--max-new-tokens", 2, "--json")
    told = cli(*ask)
    assert (told.code, told.json["error"]) == (3, "ExecutionError")
    assert "all zero" in told.json["what"]
    assert cli(*ask, "--no-gate").code == 0
    right, wrong = decode("right"), decode("wrong")
    change_weight(wrong, "llm.head.weight", np.zeros_like)
    case = only_case(cli("compare", wrong, "--reference-model", right, "--random", 1, "--json"))
    assert case["first"]["node"] == "llm.head"
    assert "llm.head.weight" in case["first"]["cause"]


def test_row_babble_after_quantisation(cli, decode):
    right, wrong = decode("right"), decode("wrong")
    name = "llm.layers.2.mlp.up.weight"
    change_weight(wrong, name, lambda w: np.round(w / np.abs(w).max() * 1) * np.abs(w).max())
    case = only_case(cli("compare", wrong, "--reference-model", right, "--random", 1, "--json"))
    assert case["first"]["node"] == "llm.layers.2.mlp.up"
    assert name in case["first"]["cause"]


def test_row_image_and_text_features_are_out_of_step(cli, graphs, tmp_path):
    wrong = shutil.copytree(graphs, tmp_path / "wrong")
    known = GraphSet.open(wrong)
    model = copy.deepcopy(dict(known.model))
    model["image"]["tokens_per_tile"] *= 2
    attrs.evolve(known, model=model).save()
    told = cli("generate", "-q", "What is it?", "--model", wrong, "--json")
    assert (told.code, told.json["error"]) == (2, "IncompatibleError")
    assert "image_features" in told.json["what"]


def test_row_dynamic_shape_conversion_error(cli, matmul, tmp_path):
    told = cli("compile", matmul("n"), "-o", tmp_path / "a", "--json")
    assert told.code == 2
    assert "free dimension: axis 0 (n)" in told.json["what"]
    assert "--dim_param n" in told.json["fix"]


def test_row_model_load_fails(cli):
    told = cli("plan", bundled_package() / "checkpoint", "--budget", "9MB", "--json")
    assert (told.code, told.json["fits"]) == (1, False)
    assert any(change["fits"] for change in told.json["changes"])


def test_row_batches_fail_now_and_then(cli, matmul, monkeypatch):
    execute, turn = CpuDriver.execute, itertools.count()

    def sometimes(self, binding):
        execute(self, binding)
        if next(turn) % 2:
            self.write(binding.outputs[0]._replace(size=4), memoryview(np.float32([1e3]).view(np.uint8)))

    monkeypatch.setattr(CpuDriver, "execute", sometimes)
    case = only_case(
        cli("compare", matmul(2), "--backends", "cpu", "--reference", "cpu:reference", "--random", 1, "--json")
    )
    assert case["steadiness"]["repeats"] is False


def test_row_models_disturb_each_other(cli, matmul, monkeypatch):
    execute, seen = CpuDriver.execute, []

    def mixes(self, binding):
        execute(self, binding)
        given = bytearray(4)
        self.read(binding.inputs[0]._replace(size=4), memoryview(given))
        if seen and seen[-1] != given:
            self.write(binding.outputs[0]._replace(size=4), memoryview(seen[-1]))
        seen.append(given)

    monkeypatch.setattr(CpuDriver, "execute", mixes)
    case = only_case(
        cli("compare", matmul(2), "--backends", "cpu", "--reference", "cpu:reference", "--random", 1, "--json")
    )
    assert case["steadiness"]["forgets"] is False


def test_row_memory_creeps_up(cli, monkeypatch):
    close, kept = Session.close, []

    def forgetful(self):
        kept.append(self._io["logits"].device.allocate(4096))
        close(self)

    monkeypatch.setattr(Session, "close", forgetful)
    told = cli("bench", "--soak", "12", "--json")
    assert told.code == 1
    assert told.json["leaking"]


def test_row_huge_only_always_fails(cli, monkeypatch):
    allocate = Device.allocate

    def huge_only(self, size, pages=Pages.PREFER_HUGE, **rest):
        return allocate(self, 1 << 50, Pages.REQUIRE_HUGE, **rest)

    monkeypatch.setattr(Device, "allocate", huge_only)
    told = cli("generate", "-q", "What is it?", "--json")
    assert (told.code, told.json["error"]) == (OutOfMemoryError.exit_code, "OutOfMemoryError")
    assert "vm.nr_hugepages" in told.json["fix"]
    assert "huge pages" in cli("doctor", "cpu", "--json").json["backends"]["cpu"]["facts"]


def test_every_row_of_the_page_has_its_test():
    rows = re.findall(r"`(test_row_\w+)`", PAGE.read_text("utf-8"))
    assert sorted(rows) == sorted(name for name in globals() if name.startswith("test_row_"))
