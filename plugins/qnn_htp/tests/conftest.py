"""Context binaries made by ONNX Runtime's QNN EP, and artifacts around them."""

import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest
from isthmus import open_device
from isthmus.artifact import Artifact, finish_artifact
from isthmus.graphset import GraphSet
from isthmus.spi import CompileReport
from isthmus.types import EntrySpec, MemoryRequirements, Reality, Tolerance
from isthmus_qnn_htp import _lib, libraries
from isthmus_qnn_htp.binary import read_binary
from isthmus_qnn_htp.layout import CONTEXT, BinaryRecord, ProgramRecord

SCRIPT = Path(__file__).parent / "ort_contexts.py"


def build_contexts(out, soc, cases):
    done = subprocess.run([sys.executable, SCRIPT, out, str(soc), *cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def contexts(tmp_path_factory):
    """A folder of context binaries for SM8650, with what the EP computed from them. See ``ort_contexts.py``."""
    cases = ["fp32", "fp16", "u16", "u8", "step", "long", "gather", "two", "shared"]
    return build_contexts(tmp_path_factory.mktemp("contexts"), 57, cases)


@pytest.fixture(scope="session")
def sm8750_contexts(tmp_path_factory):
    """The same for another chip and architecture."""
    return build_contexts(tmp_path_factory.mktemp("v79"), 69, ["fp32"])


@pytest.fixture(scope="session")
def sm7325_contexts(tmp_path_factory):
    """A quantised graph for a chip with 2 MiB of VTCM."""
    return build_contexts(tmp_path_factory.mktemp("small"), 35, ["u8"])


@pytest.fixture(scope="session")
def metadata():
    """Read a context binary's metadata."""
    system = _lib.open_system(libraries.find().system)
    return lambda path: read_binary(system, path)


@attrs.frozen
class Case:
    """One case of ``ort_contexts.py``: its binary, inputs and results."""

    binary: Path
    inputs: dict
    outputs: dict


@pytest.fixture(scope="session")
def case():
    def read(folder, name):
        files = dict(np.load(folder / f"{name}.npz")) if (folder / f"{name}.npz").exists() else {}
        inputs = {k[3:]: v for k, v in files.items() if k.startswith("in_")}
        outputs = {k[4:]: v for k, v in files.items() if k.startswith("out_")}
        (binary,) = folder.glob(f"{name}*_ctx_qnn.bin")
        return Case(binary, inputs, outputs)

    return read


@pytest.fixture
def artifact(tmp_path, metadata):
    """Make an artifact of a context binary; entries are named ``names``, its graphs' spec is taken from it.

    ``edit`` may change the ``ProgramRecord``, ``damage`` the bytes, ``respec`` the entries: before the manifest's
    hashes are taken, so that what is wrong is wrong in spite of them.
    """
    made = iter(range(1000))

    def make(binary, names=("main",), *, target="sm8650", edit=None, damage=None, respec=None) -> Artifact:
        work = tmp_path / f"artifact{next(made)}"
        work.mkdir()
        info = metadata(binary)
        graphs = dict(zip((g.name for g in info.graphs), names))
        entries = {
            graphs[g.name]: EntrySpec(tuple(t.spec() for t in g.inputs), tuple(t.spec() for t in g.outputs))
            for g in info.graphs
        }
        record = ProgramRecord({CONTEXT: BinaryRecord(graphs)}, info.soc, info.arch, info.sdk)
        (edit(record) if edit else record).write(work)
        shutil.copyfile(binary, work / CONTEXT)
        if damage:
            (work / CONTEXT).write_bytes(damage((work / CONTEXT).read_bytes()))
        report = CompileReport(
            respec(entries) if respec else entries,
            MemoryRequirements(0, {}, {}, False, 0, 0),
            {},
            Tolerance(1e-2, 1e-2),
            Reality.EMULATED,
        )
        source = GraphSet(binary.parent, {"main": f"{binary.name.removesuffix('_ctx_qnn.bin')}.onnx"})
        return finish_artifact(
            work, source, report, isthmus="0", backend="qnn_htp", plugin="0", target=target, options={}
        )

    return make


@pytest.fixture(scope="module", params=["child", "in_process"])
def isolation(request):
    """Both ways to run."""
    return {"isolation": request.param}


@pytest.fixture(scope="module")
def device(isolation):
    """One device for all tests of a module: what one does to it must not hurt the next."""
    with open_device("qnn_htp", options=isolation) as opened:
        yield opened


@pytest.fixture(scope="module")
def child_device():
    with open_device("qnn_htp") as opened:
        yield opened


@pytest.fixture
def hook(monkeypatch):
    """Let the worker's Python begin with the sitecustomize.py of a folder of ``hooks``."""
    return lambda name: monkeypatch.setattr(sys, "path", [str(Path(__file__).parent / "hooks" / name), *sys.path])
