"""The QAIRT route against fake tools that record how they were called. No real SDK has run here."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from isthmus import compile as compile_artifact
from isthmus.errors import CompileError, InputError, UnavailableError
from isthmus.types import DType
from isthmus_qnn_htp import qairt
from isthmus_qnn_htp.layout import read_program

TOOL = """#!{python}
import json, os, shutil, sys
name, given = os.path.basename(sys.argv[0]), sys.argv[1:]
root = os.environ["QNN_SDK_ROOT"]
inputs = {{p: os.path.exists(p) for p in given if p.startswith("/")}}
seen = {{"tool": name, "argv": given, "exists": inputs, "path": os.environ["PYTHONPATH"], "files": os.listdir()}}
if "--config_file" in given:
    config = json.load(open(given[given.index("--config_file") + 1]))
    seen["config"] = config
    seen["htp"] = json.load(open(config["backend_extensions"]["config_file_path"]))
with open(root + "/calls.jsonl", "a") as log:
    log.write(json.dumps(seen) + "\\n")
print("the last line of", name)
if os.path.exists(root + "/fail." + name):
    sys.exit(3)
if name == "qnn-context-binary-generator":
    out = given[given.index("--output_dir") + 1] + "/" + given[given.index("--binary_file") + 1] + ".bin"
    shutil.copyfile(root + "/binary", out)
else:
    flag = "--output_path" if "--output_path" in given else "--output_dlc"
    open(given[given.index(flag) + 1], "w").close()
"""


class FakeSdk:
    """A directory with the layout of an SDK."""

    def __init__(self, root):
        self.root = root
        for folder in ("bin/x86_64-linux-clang", "lib/x86_64-linux-clang", "lib/python"):
            (root / folder).mkdir(parents=True)
        for name in ("qairt-converter", "qairt-quantizer", "qnn-context-binary-generator"):
            tool = root / "bin/x86_64-linux-clang" / name
            tool.write_text(TOOL.format(python=sys.executable))
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        for name in ("libQnnHtp.so", "libQnnHtpNetRunExtensions.so"):
            (root / "lib/x86_64-linux-clang" / name).touch()

    def yields(self, binary):
        """What the generator will write."""
        (self.root / "binary").write_bytes(Path(binary).read_bytes())

    def fail(self, tool):
        (self.root / f"fail.{tool}").touch()

    @property
    def calls(self):
        return [json.loads(line) for line in (self.root / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def sdk(tmp_path, monkeypatch):
    made = FakeSdk(tmp_path / "sdk")
    monkeypatch.setenv("QNN_SDK_ROOT", str(made.root))
    return made


@pytest.fixture(scope="module")
def matmul_binary(graphs, tmp_path_factory):
    """A matmul graph, and a real binary of it for SM8650."""
    path = graphs.matmul(external="w.data")
    return path, compile_artifact("qnn_htp", path, tmp_path_factory.mktemp("real") / "out").path / "main.bin"


def option(call, name):
    return call["argv"][call["argv"].index(name) + 1]


def test_a_float_graph_is_converted_and_made_a_binary(sdk, matmul_binary, compiled):
    path, binary = matmul_binary
    sdk.yields(binary)
    artifact = compiled(path, toolchain="qairt", vtcm_mb=4, hvx_threads=2)
    convert, generate = sdk.calls
    assert convert["tool"] == "qairt-converter"
    assert convert["exists"][option(convert, "--input_network")]
    assert {"main.onnx", "w.data"} <= set(convert["files"]), "external weights lie beside the model"
    assert option(convert, "--output_path") == option(generate, "--dlc_path")
    assert option(convert, "--float_bitwidth") == "16"
    assert "--preserve_io_datatype" in convert["argv"]
    assert convert["argv"].count("NONTRIVIAL") == 4
    assert convert["path"].startswith(str(sdk.root / "lib/python"))
    assert generate["htp"] == {
        "graphs": [{"graph_names": ["main"], "O": 3, "fp16_relaxed_precision": 1, "vtcm_mb": 4, "hvx_threads": 2}],
        "devices": [{"soc_model": 57, "dsp_arch": "v75"}],
    }
    assert all(generate["exists"].values())
    assert "--model" not in generate["argv"]
    assert artifact.manifest.toolchain["toolchain"] == "qairt"
    assert list(read_program(artifact).binaries["main.bin"].graphs.values()) == ["main"]
    assert any("never tested against a real SDK" in note for note in artifact.manifest.notes)
    assert artifact.entries["main"].inputs[0].dtype is DType.FLOAT32


def test_an_older_sdk_loads_the_dlc_through_its_library(sdk, matmul_binary, compiled):
    path, binary = matmul_binary
    sdk.yields(binary)
    loader = sdk.root / "lib/x86_64-linux-clang/libQnnModelDlc.so"
    loader.touch()
    compiled(path, toolchain="qairt")
    assert option(sdk.calls[1], "--model") == str(loader)


def test_calibration_data_quantises_between_the_two(sdk, matmul_binary, compiled, tmp_path):
    path, binary = matmul_binary
    sdk.yields(binary)
    (tmp_path / "lists").mkdir()
    with pytest.raises(InputError, match=r"lists/main\.txt is not there"):
        compiled(path, toolchain="qairt", calibration=str(tmp_path / "lists"))
    (tmp_path / "lists/main.txt").write_text("x:=x.raw\n")
    (sdk.root / "calls.jsonl").unlink()
    compiled(path, toolchain="qairt", calibration=str(tmp_path / "lists"), weight_bits=4)
    convert, quantize, generate = sdk.calls
    assert option(quantize, "--input_dlc") == option(convert, "--output_path")
    assert option(quantize, "--output_dlc") == option(generate, "--dlc_path")
    assert (option(quantize, "--act_bitwidth"), option(quantize, "--weights_bitwidth")) == ("16", "4")
    assert option(quantize, "--input_list") == str(tmp_path / "lists/main.txt")


def test_a_quantised_graph_keeps_its_own_types(sdk, graphs, matmul_binary, compiled):
    sdk.yields(matmul_binary[1])  # its inputs and outputs are the same
    compiled(graphs.quantized_matmul(), toolchain="qairt")
    assert "--float_bitwidth" not in sdk.calls[0]["argv"]


def test_entries_that_share_weights_go_to_one_generator(sdk, graphs, matmul_binary, compiled):
    sdk.yields(matmul_binary[1])
    with pytest.raises(CompileError, match="none of the entries decode, prefill"):
        compiled(graphs.two_entries(), toolchain="qairt", weight_sharing=True)
    *_, generate = sdk.calls
    assert len(option(generate, "--dlc_path").split(",")) == 2
    assert generate["htp"]["context"] == {"weight_sharing_enabled": True}
    assert generate["htp"]["graphs"][0]["graph_names"] == ["decode", "prefill"]


def test_a_binary_of_another_chip_is_not_taken(sdk, matmul_binary, compiled):
    path, binary = matmul_binary
    sdk.yields(binary)
    with pytest.raises(CompileError, match="is for SoC 57 v75, not 69 v79"):
        compiled(path, "sm8750", toolchain="qairt")


@pytest.mark.parametrize("tool", ["qairt-converter", "qnn-context-binary-generator"])
def test_a_tool_that_fails_is_quoted(sdk, graphs, compiled, tool, tmp_path):
    sdk.fail(tool)
    with pytest.raises(CompileError, match=rf"{tool} failed: exit code 3\n  {tool}: the last line of {tool}"):
        compiled(graphs.matmul(), toolchain="qairt", log=str(tmp_path / "log"))
    assert f"the last line of {tool}" in (tmp_path / "log").read_text()
    assert not list(tmp_path.glob("out*"))


def test_without_an_sdk_the_error_says_where_it_was_looked_for(graphs, compiled, monkeypatch, tmp_path):
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path / "gone"))
    with pytest.raises(UnavailableError, match=r"QNN_SDK_ROOT is not set; QAIRT_SDK_ROOT=.*gone has no") as error:
        compiled(graphs.matmul(), toolchain="qairt")
    assert "qairt-converter" in error.value.what
    assert "libQnnHtp.so" in error.value.what


def test_the_environment_of_a_tool_keeps_ours(sdk, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    found = qairt.find_sdk()._environment()
    assert found["PYTHONPATH"] == f"{sdk.root}/lib/python{os.pathsep}/ours"
    assert found["LD_LIBRARY_PATH"].split(os.pathsep)[0] == str(sdk.root / "lib/x86_64-linux-clang")
