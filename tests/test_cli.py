"""The promises of the command line: machine-readable stdout, one clear error, the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import isthmus_tiny_internvl as tiny
import numpy as np
import pytest
from isthmus.cli import output
from isthmus.types import Reality
from onnx import TensorProto, helper, save
from PIL import Image
from safetensors.numpy import load_file, save_file

PICTURE = tiny.EVALUATION / "images" / "digit_026.png"
ASK = ("generate", "-q", "What digit is this?")


@pytest.fixture
def checkpoint(tmp_path):
    """A private copy of the bundled checkpoint, to be damaged."""
    return shutil.copytree(tiny.CHECKPOINT, tmp_path / "checkpoint")


@pytest.fixture
def model(tmp_path):
    """A graph of one MatMul."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.ones((4, 3), np.float32))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, d]) for n, d in (("x", 4), ("y", 3)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The bundled model compiled for the CPU, through the command line."""
    out = tmp_path_factory.mktemp("artifact") / "tiny"
    command = [sys.executable, "-m", "isthmus.cli.main", "compile", "-o", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["entries"].keys() == {"vision", "prefill", "decode"}
    return out


def test_generate_answers_a_question_about_a_held_out_picture(cli) -> None:
    told = cli(*ASK, "--image", PICTURE)
    assert (told.code, told.out) == (0, "This is the digit six.\n")


def test_generate_prints_one_json_document(cli) -> None:
    told = cli(*ASK, "--image", PICTURE, "--json").json
    assert told["text"] == "This is the digit six."
    assert (told["reality"], told["image_tokens"], told["stop_reason"]) == ("real", 16, "stop")


def test_generate_without_a_kv_cache_says_the_same(cli) -> None:
    assert cli(*ASK, "--image", PICTURE, "--no-kv-cache").out == "This is the digit six.\n"


def test_generate_runs_a_compiled_artifact(cli, artifact) -> None:
    assert cli(*ASK, "--image", PICTURE, "--model", artifact).out == "This is the digit six.\n"


def test_several_contexts_share_one_weights_file(cli, tmp_path) -> None:
    told = cli("export", "-o", tmp_path / "g", "--contexts", "64,256", "--prefill", "16,64", "--json").json
    assert {"vision", "decode_64", "decode_256", "prefill_16_64"} <= told["entries"].keys()
    assert len(list((tmp_path / "g").glob("*.data"))) == 1
    assert cli(*ASK, "--image", PICTURE, "--model", tmp_path / "g").out == "This is the digit six.\n"


def test_evaluate_equals_the_reference(cli) -> None:
    told = cli("evaluate", "--json").json
    assert told["agreement_with_reference"] == 1.0
    assert told["accuracy"] == pytest.approx(118 / 120)
    assert told["max_logit_error"] <= 1e-4
    assert set(told["per_task"]) == {"digit", "parity", "colour", "shape", "place", "caption", "count", "text"}


def test_evaluate_stops_at_its_limit(cli) -> None:
    assert cli("evaluate", "--limit", 3, "--json").json["questions"] == 3


def test_size_inspect_and_bench_speak_json(cli, artifact) -> None:
    size = cli("size", artifact, "--json").json
    assert size["fits"]
    assert size["weights"] > 1_000_000
    assert cli("inspect", artifact, "--json").json["backend"] == "cpu"
    bench = cli("bench", "--model", artifact, "--repeat", 1, "--profile", "--json").json
    assert bench["decode_tokens_per_second"] > 0
    assert bench["profile"]["decode"]


def test_inspect_knows_graph_sets_and_onnx_files(cli, model, tmp_path) -> None:
    cli("export", "-o", tmp_path / "g")
    assert "decode" in cli("inspect", tmp_path / "g", "--json").out
    assert "MatMul" in cli("inspect", model, "--json").out


def test_run_takes_arrays_and_returns_arrays(cli, model, tmp_path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "in.npz", x=x)
    told = cli("run", model, "--inputs", tmp_path / "in.npz", "--output", tmp_path / "out.npz", "--json")
    assert told.json["outputs"][0]["shape"] == [2, 3]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], x @ np.ones((4, 3), np.float32))


@pytest.mark.parametrize("damage", ["empty", "text", "npy", "cut", "pickle", "missing", "folder"])
def test_inputs_that_are_no_npz_are_refused(cli, model, tmp_path, damage) -> None:
    path = tmp_path / "in.npz"
    x = np.zeros((2, 4), np.float32)
    np.savez(path, x=np.array([{}], object) if damage == "pickle" else x)
    if damage in ("missing", "folder"):
        path.unlink()
    if damage == "folder":
        path.mkdir()
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, x)
    if damage in ("empty", "text", "cut"):
        path.write_bytes({"empty": b"", "text": b"PK\x03\x04 not a zip", "cut": path.read_bytes()[:-40]}[damage])
    told = cli("run", model, "--inputs", path, "--json")
    assert (told.code, told.json["error"]) == (2, "InputError")


def test_backends_lists_devices_with_their_reality(cli) -> None:
    told = cli("backends", "--json").json["backends"]
    assert told["cpu"]["devices"][0] == {
        "id": "cpu:0",
        "reality": "real",
        "description": told["cpu"]["devices"][0]["description"],
        "targets": ["host"],
    }
    assert cli("backends", "--options").code == 0


def test_doctor_gives_a_verdict_for_every_backend(cli) -> None:
    found = cli("doctor", "--json")
    assert found.code == 0, found.out
    told = found.json["backends"]
    assert told["cpu"]["usable"]
    assert all(facts["verdict"] for facts in told.values())


def picture(path, size):
    Image.new("RGB", size).save(path)
    return path


def test_bad_pictures_are_refused(cli, tmp_path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not a picture")
    truncated = tmp_path / "truncated.png"
    truncated.write_bytes(PICTURE.read_bytes()[:700])
    wide = picture(tmp_path / "wide.png", (20000, 3))
    for name in ("empty.png", "text.png", "missing.png", truncated, wide):
        told = cli(*ASK, "--image", tmp_path / name, "--json")
        assert (told.code, told.json["error"]) == (2, "InputError"), name
        assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("generate", "-q", ""), "empty"),
        (("generate", "-q", "what is this? " * 300), "context"),
        (("generate", "-q", "hi", "--backend", "nosuch"), "no backend 'nosuch'"),
        (("generate", "-q", "hi", "--target", "v99"), "no target 'v99'"),
        (("generate", "-q", "hi", "--model", "/nonexistent"), "does not exist"),
        (("generate", "-q", "hi", "--option", "colour=red"), "colour"),
        (("generate", "-q", "hi", "--option", "optimization"), "KEY=VALUE"),
        (("generate", "-q", "hi", "--device", "7"), "no device '7'"),
        (("generate", "-q", "hi", "--contexts", "many"), "--contexts"),
        (("generate", "-q", "hi", "--temperature", "-1"), "temperature"),
        (("evaluate", "--dataset", "/nonexistent"), "nonexistent"),
        (("inspect", "/nonexistent"), "does not exist"),
        (("compile", "--sweep-memory"), "no options that trade memory"),
        (("compile",), "--out"),
        (("doctor", "nosuch"), "no backend 'nosuch'"),
    ],
)
def test_bad_arguments_give_one_clear_error(cli, arguments, says) -> None:
    told = cli(*arguments, "--json")
    assert told.code == 2
    assert says in told.json["what"]
    assert told.err.count("error:") == 1


def damage_truncated(path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def damage_missing_shard(path) -> None:
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    save_file(tensors, path / "model-00001-of-00002.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model-00002-of-00002.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def damage_wrong_kind(path) -> None:
    (path / "config.json").write_text('{"model_type": "clip", "architectures": ["CLIPModel"]}')


def damage_not_json(path) -> None:
    (path / "config.json").write_text("{")


def damage_missing_tensor(path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["language_model.model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors")


def damage_shape(path) -> None:
    tensors = load_file(path / "model.safetensors")
    name = "language_model.model.layers.2.mlp.up_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][:-1])
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_truncated, "model.safetensors"),
        (damage_missing_shard, "model-00002-of-00002.safetensors"),
        (damage_wrong_kind, "clip"),
        (damage_not_json, "config.json"),
        (damage_missing_tensor, "layers.2.mlp.up_proj.weight"),
        (damage_shape, "layers.2.mlp.up_proj.weight"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_checkpoint_gives_one_clear_error_and_writes_nothing(cli, checkpoint, tmp_path, damage, says) -> None:
    damage(checkpoint)
    told = cli("export", checkpoint, "-o", tmp_path / "out", "--json")
    assert told.code == 2
    assert says in told.json["what"]
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_a_tampered_artifact_is_refused(cli, artifact, tmp_path) -> None:
    torn = shutil.copytree(artifact, tmp_path / "torn")
    file = max(torn.rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else 0)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    told = cli(*ASK, "--model", torn, "--json")
    assert (told.code, told.json["error"]) == (2, "IntegrityError")


def test_a_damaged_cache_is_built_again(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path))
    cli(*ASK, "--image", PICTURE)
    (cached,) = (tmp_path / "artifacts").iterdir()
    (cached / "manifest.json").write_text("{}")
    told = cli(*ASK, "--image", PICTURE)
    assert (told.code, told.out) == (0, "This is the digit six.\n")
    assert "built again" in told.err


def test_nothing_is_overwritten(cli, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    assert cli("export", "-o", tmp_path / "mine", "--json").json["what"].endswith("already exists")
    assert list((tmp_path / "mine").iterdir()) == []


def test_tables_show_how_real_a_device_is(capsys) -> None:
    output.emit({}, output.table(f"qnn_htp{output.label(Reality.EMULATED)}", ("a [b]",), [("[simulated]",)]))
    printed = capsys.readouterr().out
    assert "qnn_htp [emulated]" in printed
    assert "[simulated]" in printed


def test_pipes_are_refused_and_not_waited_for(cli, model, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert cli(*ASK, "--image", tmp_path / "pipe", "--json").json["error"] == "InputError"
    assert cli("run", model, "--inputs", tmp_path / "pipe", "--json").json["error"] == "InputError"


def test_an_unusable_cache_is_named(cli, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "file"))
    told = cli(*ASK, "--image", PICTURE, "--json")
    assert told.code == 2
    assert "ISTHMUS_CACHE_DIR" in told.json["fix"]


def test_a_usage_error_is_one_json_document_too(cli, model) -> None:
    for arguments in (
        ("generate",),
        ("generate", "-q", "x", "--bogus"),
        ("run", model, "--random", "-1"),
        ("nonsense",),
    ):
        told = cli(*arguments, "--json")
        assert (told.code, told.json["error"]) == (2, "UsageError")


def test_a_usage_error_exits_with_2(cli) -> None:
    assert cli("generate").code == 2
    assert cli("compile", "--nonsense").code == 2
