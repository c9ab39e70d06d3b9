"""``isthmus.conformance.run``: a process of its own, whatever the caller's surroundings, and the example plugin in it."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import onnx_ir
import pytest
from isthmus.conformance import Outcome, Report, run, subject
from isthmus.conformance.__main__ import main
from isthmus.conformance.runner import _read
from isthmus.errors import InputError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "example_backend"
ONE = "memory and round_trip and 4096"
NO_ONNX = "sys; sys.modules['onnx'] = sys.modules['onnx_ir'] = None"
LYING = """
import {lie}
from isthmus import hookimpl
from isthmus.types import BackendInfo
from isthmus_example.backend import ExampleBackend
from isthmus_example.driver import ExampleDriver
import os, signal

class Driver(ExampleDriver):
    def execute(self, binding):
        os.kill(os.getpid(), signal.SIGSEGV)

class Lying(ExampleBackend):
    info = BackendInfo({name!r}, (1, 0), "0")
    def devices(self):
        import attrs
        return tuple(attrs.evolve(d, backend={name!r}) for d in super().devices())
    def targets(self):
        return super().targets() if {compiler} else ()
    def open(self, device, options):
        return Driver() if {crash} else super().open(device, options)

@hookimpl
def isthmus_backends():
    yield Lying()
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with an entry point on ``sys.path``, as pip would."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(EXAMPLE / "src")
    monkeypatch.syspath_prepend(site)

    def install(name, entry, source=None):
        info = site / f"{name.replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        lines = [f"{key} = {value}" for key, value in entry.items()]
        (info / "entry_points.txt").write_text("\n".join(["[isthmus.backends]", *lines, ""]))
        if source:
            (site / f"{next(iter(entry.values()))}.py").write_text(source)

    return install


@pytest.fixture
def example(install):
    """The example plugin, installed by what its own pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(project["name"], project["entry-points"]["isthmus.backends"])


@pytest.fixture
def lying(install, example):
    def lying(name, *, lie="json", compiler=True, crash=False):
        install(name, {name: f"{name}_plugin"}, LYING.format(name=name, lie=lie, compiler=compiler, crash=crash))

    return lying


def test_the_example_plugin_conforms(example):
    found = run("example")
    assert found.exit_code == 0, "\n".join(found.lines())
    assert found.device == "example:0"
    assert found.reality == "real"
    assert found.counts["failed"] == found.counts["unavailable"] == found.counts["expected_failure"] == 0
    assert found.counts["passed"] > 250
    assert {t.reason for t in found.tests if t.outcome == "unsupported"} == {"no convolution"}
    assert json.loads(json.dumps(found.to_json()))["counts"] == found.counts


def test_the_caller_s_surroundings_play_no_part(example, tmp_path, monkeypatch):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('the conftest of the user')\n")
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the numpy of the user')\n")
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    assert False\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    before = set(tmp_path.rglob("*"))
    found = run("example", extra_args=("-k", ONE))
    assert found.error == ""
    assert [t.outcome for t in found.tests] == ["passed"]
    assert set(tmp_path.rglob("*")) == before


def test_a_crash_is_a_failure_of_the_test_it_happened_in(lying):
    lying("crashes", crash=True)
    found = run("crashes", extra_args=("-k", "(round_trip and 4096) or (matches_the_reference and matmul_bias)"))
    assert found.exit_code == 1
    assert "SIGSEGV" in found.error
    assert [(t.test, t.reason) for t in found.tests if t.outcome == "failed"] == [
        ("test_programs::test_the_result_matches_the_reference[matmul_bias]", "the process died: signal SIGSEGV")
    ]


def test_loading_a_library_with_the_plugin_is_caught(lying):
    lying("eager", lie="sentencepiece")
    found = run("eager", extra_args=("-k", "vendor_library"))
    assert found.counts["failed"] == 1
    assert "/sentencepiece/" in found.tests[0].reason


def test_artifacts_made_elsewhere_are_judged_without_a_compiler(lying, tmp_path, monkeypatch):
    for module in (onnx, onnx_ir):  # run() imports the plugin in this process too, which takes them away
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lying("compiles")
    lying("runs_only", compiler=False, lie=NO_ONNX)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    build = [sys.executable, "-m", "isthmus.conformance", "build", "--backend", "compiles", str(tmp_path / "cases")]
    done = subprocess.run(build, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "patches: unsupported: no convolution" in done.stderr
    assert len(done.stdout.split()) == len(list((tmp_path / "cases").iterdir())) > 10
    for manifest in (tmp_path / "cases").glob("*/manifest.json"):
        manifest.write_text(manifest.read_text().replace('"compiles"', '"runs_only"'))
    part = ("-k", "matmul_bias and (matches_the_reference or wherever_it_is_moved or needs_nothing_of_its_graphs)")
    found = run("runs_only", artifacts=tmp_path / "cases", extra_args=part)
    assert found.exit_code == 0, "\n".join(found.lines())
    assert found.counts["passed"] == len(found.tests) == 3
    case = subject.BY_NAME["matmul_bias"]
    manifest = tmp_path / "cases" / case.name / "manifest.json"
    manifest.write_text(manifest.read_text().replace(case.fingerprint, "0" * 64))
    with pytest.raises(InputError, match="another version of the suite"):
        subject._made_elsewhere(tmp_path / "cases" / case.name, case)


def test_options_reach_the_backend_and_strangers_are_refused(example):
    wrong = run("example", device_options={"chekc_finite": "yes"}, extra_args=("-k", ONE))
    assert wrong.exit_code == 1
    assert "did you mean 'check_finite'" in wrong.tests[0].reason


@pytest.mark.parametrize(
    ("outcomes", "error", "code"),
    [
        (["passed", "unsupported", "expected_failure"], "", 0),
        (["passed", "unavailable"], "", 3),
        (["passed", "unavailable", "failed"], "", 1),
        (["passed"], "the run ended early", 1),
        ([], "", 1),
    ],
)
def test_the_exit_code_is_the_verdict(outcomes, error, code):
    tests = tuple(Outcome(f"a::{i}", outcome, "why", 0.0) for i, outcome in enumerate(outcomes))
    report = Report("x", "x:0", "real", tests, error)
    assert report.exit_code == code
    assert len(report.lines()) == 1 + sum(o != "passed" for o in outcomes) + bool(error)


def test_bad_arguments_are_input_errors(example, tmp_path):
    with pytest.raises(InputError, match="no backend"):
        run("no_such_backend")
    with pytest.raises(InputError, match="not a directory"):
        run("example", artifacts=tmp_path / "gone")


def test_building_the_cases_refuses_what_it_cannot_build(capsys, tmp_path):
    assert main(["build", "--backend", "no_such_backend", str(tmp_path / "cases")]) == 2
    assert "no backend 'no_such_backend'" in capsys.readouterr().err
    assert main(["build", "--backend", "cpu", "--target", "mars", str(tmp_path / "cases")]) == 2
    assert main(["build", "--backend", "cpu", "--option", "level", str(tmp_path / "cases")]) == 2
    assert not (tmp_path / "cases").exists()


def test_a_report_that_ends_early_says_how(tmp_path):
    log = tmp_path / "report.jsonl"
    log.write_text('{"start": "a::b"}\n{"test": "a::b", "outcome": "passed", "reason": "", "seconds": 0}\n')
    assert _read(log, "x", -9, "").error == "the run ended early, signal SIGKILL"
    assert _read(tmp_path / "none", "x", 4, "ERROR: no such option").exit_code == 1


def test_the_page_on_writing_a_backend_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "writing-a-backend.md").read_text()
    shown = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", page, re.DOTALL)
    assert {name for name, _ in shown} >= {"pyproject.toml", "__init__.py", "backend.py", "compile.py", "driver.py"}
    for name, code in shown:
        folder = EXAMPLE if name == "pyproject.toml" else EXAMPLE / "src" / "isthmus_example"
        file = (folder / name).read_text()
        for part in code.strip().split("\n...\n"):
            assert part.strip("\n") in file, f"the page shows other text than {name}:\n{part}"


def test_the_raw_command_of_the_page_works(example, tmp_path):
    command = [sys.executable, "-m", "pytest", "--pyargs", "isthmus.conformance"]
    command += ["-p", "isthmus.conformance.options", "--isthmus-backend", "example", "-q", "-k", ONE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
