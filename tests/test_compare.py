"""Three planted faults in the bundled model, each found at its node; recordings; the report in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import attrs
import numpy as np
import onnx
import pytest
from isthmus.cli.models import bundled_package
from isthmus.graphset import GraphSet
from isthmus.models.export import export


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    """The bundled model's graphs in the canonical spelling: squares in its norms."""
    path = tmp_path_factory.mktemp("compare") / "good"
    export(bundled_package() / "checkpoint", path)
    return path


@pytest.fixture
def only(good, tmp_path):
    """A copy of one entry, for a test to break."""

    def copy(entry: str, name: str) -> Path:
        out = tmp_path / name
        out.mkdir()
        for file in (f"{entry}.onnx", "weights.data"):
            shutil.copyfile(good / file, out / file)
        attrs.evolve(GraphSet.open(good), path=out, graphs={entry: f"{entry}.onnx"}, assets=(), model={}).save()
        return out

    return copy


def located(result):
    """The first divergence of the only case."""
    assert result.code == 1, result.err
    ((case,),) = [v["cases"] for v in result.json["verdicts"]]
    return case["first"]


def weight_place(model: Path, name: str) -> tuple[int, int]:
    """Offset and length in ``weights.data``."""
    graph = onnx.load(model / "decode.onnx", load_external_data=False).graph
    place = {e.key: e.value for t in graph.initializer if t.name == name for e in t.external_data}
    return int(place["offset"]), int(place["length"])


def test_a_wrong_pixel_shuffle_order_is_found_at_its_transpose(cli, only):
    right, wrong = only("vision", "right"), only("vision", "wrong")
    model = onnx.load(wrong / "vision.onnx", load_external_data=False)
    node = next(n for n in model.graph.node if n.name == "vision.shuffle.swap_back")
    node.attribute[0].ints[:] = [0, 1, 2, 3]
    onnx.save(model, wrong / "vision.onnx")
    first = located(cli("compare", wrong, "--reference-model", right, "--random", 1, "--json"))
    assert first["node"] == "vision.shuffle.swap_back"
    assert "another order" in first["cause"]


def test_a_corrupted_weight_block_is_found_at_its_node_with_its_place(cli, only, tmp_path):
    right, wrong = only("decode", "right"), only("decode", "wrong")
    start, _ = weight_place(wrong, "llm.layers.2.mlp.up.weight")
    with (wrong / "weights.data").open("r+b") as file:
        file.seek(start + 4096)
        file.write(bytes(4096))
    report = tmp_path / "report.html"
    result = cli("compare", wrong, "--reference-model", right, "--random", 1, "--report", report, "--json")
    first = located(result)
    assert first["node"] == "llm.layers.2.mlp.up"
    assert first["cause"].startswith("weight llm.layers.2.mlp.up.weight differs from the reference's in 1024 of 32768")
    assert "the first at 1024, the last at 2047" in first["cause"]
    assert "llm.layers.2.mlp.up" in report.read_text()


def test_equal_models_pass_and_recordings_are_judged_elsewhere(cli, only, tmp_path):
    model = only("decode", "right")
    for name in ("a", "b"):
        extra = ["--random", 1] if name == "a" else ["--inputs", tmp_path / "a"]
        made = cli("compare", model, "--record", tmp_path / name, *extra, "--json")
        assert made.code == 0, made.err
    result = cli("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert result.code == 0, result.err
    (case,) = result.json["verdicts"][0]["cases"]
    assert case["outputs"]["logits"]["max_abs"] == 0
    assert case["taps"]


def test_tolerances_come_from_a_file_and_a_miss_is_exit_code_1(cli, only, tmp_path):
    model = only("decode", "right")
    strict, loose = tmp_path / "strict.json", tmp_path / "loose.json"
    strict.write_text('{"cpu": {"rtol": 1e-12, "atol": 0.0}}')
    loose.write_text('{"cpu": {"rtol": 0.001, "atol": 0.0}}')
    common = ["compare", model, "--reference", "cpu:reference", "--random", 1, "--taps", "none", "--tolerances"]
    assert cli(*common, strict).code == 1
    assert cli(*common, loose).code == 0
    loose.write_text('{"cpu": {"rtol": "1"}}')
    assert cli(*common, loose).code == 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--images", "nowhere"],
        ["--images", "x.png", "--random", "1"],
        ["--target", "qnn_htp=sm8650"],
        ["--option", "ascend.precision=x"],
        ["--record", "r", "--backends", "cpu,qnn_htp"],
        ["--inputs", "nowhere.npz"],
    ],
    ids=" ".join,
)
def test_flags_that_would_have_no_effect_are_refused(cli, only, flags):
    result = cli("compare", only("decode", "right"), *flags)
    assert result.code == 2
    assert result.err.startswith("error: ")


@pytest.mark.slow
def test_a_norm_that_overflows_fp16_in_a_scaled_checkpoint_is_found_at_its_square(cli, only):
    model = only("decode", "scaled")
    start, length = weight_place(model, "llm.layers.0.mlp.down.weight")
    with (model / "weights.data").open("r+b") as file:
        file.seek(start)
        weights = np.frombuffer(file.read(length), np.float32) * np.float32(3000)
        file.seek(start)
        file.write(weights.tobytes())  # the residual stream passes 256, so that its square passes 65504
    first = located(cli("compare", model, "--backends", "qnn_htp", "--random", 1, "--json"))
    assert first["node"] == "llm.layers.1.norm1.square"
    assert "overflow of fp16" in first["cause"]
    assert "rms_norm=l2" in first["cause"]


@pytest.mark.slow
def test_the_report_is_drawn_by_a_real_browser_without_a_network(cli, only, tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("unavailable here: chromium")
    report, picture = tmp_path / "report.html", tmp_path / "report.png"
    assert cli("compare", only("decode", "right"), "--random", 1, "--report", report).code == 0
    common = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    common += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    dom = subprocess.run(
        [*common, "--dump-dom", report.as_uri()], capture_output=True, text=True, env=environment, check=True
    ).stdout
    assert 'class="sqnr"' in dom
    assert "all within tolerance" in dom
    subprocess.run(
        [*common, f"--screenshot={picture}", "--window-size=1000,1400", report.as_uri()],
        capture_output=True,
        env=environment,
        check=True,
    )
    from PIL import Image

    with Image.open(picture) as shot:
        assert len(shot.convert("RGB").getcolors(1 << 24) or []) > 20
