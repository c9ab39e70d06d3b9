"""The suite must pass an honest backend, and fail each lying one on the promise it breaks."""

import ast
import re

import lying
import pytest
from isthmus.conformance import options

NEEDS_A_PROCESS = "test_plugin::test_importing_the_plugin_loads_no_vendor_library"
"""Its liar is in test_example_plugin.py: the backend must be found by a process of its own."""


@pytest.mark.parametrize("mutant", lying.MUTANTS, ids=lambda m: f"{m.name}-{m.test.split('::')[1]}")
def test_a_lie_is_caught(mutant, run_suite, monkeypatch):
    if mutant.patch:
        mutant.patch(monkeypatch)
        name = lying.honest()
    else:
        name = lying.install(mutant.backend, f"lying_{mutant.name}")
    found, code = run_suite(name, mutant.test)
    assert code == 1
    failed = {test for test, (outcome, _) in found.items() if outcome == "failed"}
    assert failed, found
    assert {test.partition("[")[0] for test in failed} == {mutant.test.partition("[")[0]}


def test_the_honest_backend_passes_everything(run_suite):
    found, _ = run_suite(lying.honest(), arguments=["--deselect", f"{NEEDS_A_PROCESS.replace('::', '.py::')}"])
    bad = {test: verdict for test, verdict in found.items() if verdict[0] not in ("passed", "unsupported")}
    assert bad == {}
    for mutant in lying.MUTANTS:
        tests = [t for t in found if t == mutant.test or t.startswith(mutant.test + "[")]
        assert tests, f"{mutant.name} is to fail {mutant.test}, which is no test"
        assert all(found[t][0] == "passed" for t in tests), mutant.test


def test_every_promise_has_a_liar():
    promises = set()
    for file in options.exclusions.HERE.glob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                promises.add(f"{file.stem}::{node.name}")
    broken = {mutant.test.partition("[")[0] for mutant in lying.MUTANTS}
    assert promises - broken == {NEEDS_A_PROCESS}
    assert broken <= promises


def test_no_vendor_is_named_in_the_suite():
    vendors = re.compile(r"\b(qualcomm|qnn|hexagon|huawei|ascend|cann|onnxruntime|cuda)\b", re.IGNORECASE)
    for file in options.exclusions.HERE.rglob("*.py"):
        assert not vendors.search(file.read_text()), file.name
