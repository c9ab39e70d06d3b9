"""What the suite promises: exclusions with reasons, skips only for what is unavailable, and a verdict that holds."""

import attrs
import isthmus
import lying
import pytest
from isthmus.errors import UnavailableError
from isthmus.types import ConformanceProfile

CASE = "test_programs::test_the_result_matches_the_reference[softmax]"
PROMISE = "test_memory::test_buffers_do_not_alias"


def backend(name, driver=lying.base.Driver, **lists):
    made = type(name, (lying.base.Backend,), {"driver": driver, "conformance": ConformanceProfile(**lists)})
    return lying.install(made, name)


class Wrong(lying.base.Driver):
    def execute(self, binding):
        super().execute(binding)
        binding.arrays[1][0][...] += 1


def test_a_case_can_be_unsupported_with_a_reason(run_suite):
    name = backend("without_softmax", Wrong, unsupported={"test_programs::*[softmax]": "no exponential"})
    found, code = run_suite(name, CASE)
    assert found[CASE] == ("unsupported", "no exponential")
    assert code == 0


def test_an_expected_failure_is_one_that_fails(run_suite):
    name = backend("owes_softmax", Wrong, expected_failures={CASE: "issue 7"})
    assert run_suite(name, CASE) == ({CASE: ("expected_failure", "issue 7")}, 0)


def test_an_expected_failure_that_passes_is_a_failure(run_suite):
    name = backend("paid_softmax", expected_failures={CASE: "issue 7"})
    found, code = run_suite(name, CASE)
    assert found[CASE][0] == "failed"
    assert "XPASS" in found[CASE][1]
    assert code == 1


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"unsupported": {PROMISE: "hard"}}, "is a promise"),
        ({"unsupported": {"*": "all of it"}}, "is a promise"),
        ({"unsupported": {"test_programs::*[softmax]": " "}}, "without a reason"),
        ({"expected_failures": {CASE: ""}}, "without a reason"),
    ],
)
def test_the_lists_cannot_excuse_everything(run_suite, capfd, lists, words):
    _, code = run_suite(backend(f"excused_{abs(hash(str(lists)))}", **lists))
    assert code == pytest.ExitCode.USAGE_ERROR
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["unsupported", "expected_failures"])
def test_an_exclusion_that_matches_nothing_fails_the_run(run_suite, capfd, kind):
    name = backend(f"stale_{kind}", **{kind: {"test_programs::*[no_such_case]": "was there once"}})
    _, code = run_suite(name, arguments=["--collect-only"])
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "do not exist: test_programs::*[no_such_case]" in capfd.readouterr().err
    assert run_suite(name, CASE)[1] == 0, "a part of the suite cannot tell"


def test_brackets_in_a_pattern_are_themselves(run_suite):
    name = backend("literal", Wrong, expected_failures={CASE.replace("softmax", "xyz"): "a class of characters"})
    assert run_suite(name, CASE)[0][CASE][0] == "failed"


class NoDevice(lying.base.Backend):
    def devices(self):
        raise UnavailableError("no driver", fix="install it")


def test_what_is_unavailable_is_skipped_and_nothing_else(run_suite):
    name = lying.install(NoDevice, "no_device")
    found, code = run_suite(name, PROMISE, "test_plugin::test_the_backend_says_who_it_is")
    assert found[PROMISE] == ("unavailable", "no driver fix: install it")
    assert found["test_plugin::test_the_backend_says_who_it_is"][0] == "passed"
    assert code == 0


class NoCompiler(lying.base.Backend):
    def targets(self):
        return ()


def test_without_a_compiler_or_artifacts_programs_are_unavailable(run_suite):
    found, _ = run_suite(lying.install(NoCompiler, "no_compiler"), CASE, PROMISE)
    assert found[CASE][0] == "unavailable"
    assert "python -m isthmus.conformance build" in found[CASE][1]
    assert found[PROMISE][0] == "passed"


class Evasive(lying.base.Driver):
    def allocate(self, size, pages, alignment):
        raise UnavailableError("not now")


def test_a_device_that_opened_cannot_plead_unavailable(run_suite):
    assert run_suite(backend("evasive", Evasive), PROMISE)[0][PROMISE][0] == "failed"


def test_a_skip_for_another_reason_is_a_failure(run_suite, monkeypatch):
    from isthmus.conformance import subject

    monkeypatch.setattr(subject, "UNAVAILABLE", "too hard: ")
    found, _ = run_suite(lying.install(NoDevice, "no_device"), PROMISE)
    assert found[PROMISE][0] == "failed"
    assert "only what is unavailable" in found[PROMISE][1]


def test_a_leak_of_the_public_objects_is_a_failure(run_suite, monkeypatch):
    monkeypatch.setattr(isthmus.Buffer, "close", lambda self: None)
    found, code = run_suite(lying.honest(), "test_memory::test_an_empty_allocation_is_legal", leaks=True)
    assert code == 1, found


def test_the_backend_must_be_named_and_exist(run_suite, capfd):
    _, code = run_suite("no_such_backend", PROMISE)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "no backend 'no_such_backend'" in capfd.readouterr().err


def test_every_case_has_a_fingerprint_of_its_own():
    from isthmus.conformance.cases import CASES

    assert len({case.fingerprint for case in CASES}) == len({case.name for case in CASES}) == len(CASES)
    changed = attrs.evolve(CASES[0], shapes={"w": (1,), "b": (1,)})
    assert changed.fingerprint != CASES[0].fingerprint


def test_cases_are_the_same_on_every_machine():
    """Figures noted once: another numpy must draw the same values."""
    from isthmus.conformance.cases import CASES

    case = next(c for c in CASES if c.name == "matmul_bias")
    assert case.inputs("main", 1)["x"].reshape(-1)[:2].tolist() == pytest.approx([0.0371591, -1.2464846], abs=1e-6)
    assert case.weights["w"].reshape(-1)[:2].tolist() == pytest.approx([0.0044902, -0.0460859], abs=1e-6)


@pytest.mark.parametrize("spelling", ["canonical", "l2", "op"])
def test_references_agree_with_the_onnx_reference(spelling, tmp_path):
    import numpy as np
    import onnx
    from isthmus.conformance.cases import CASES
    from isthmus.conformance.cases.build import write
    from isthmus.types import CANONICAL, Dialect
    from onnx.reference import ReferenceEvaluator

    dialect = {
        "canonical": CANONICAL,
        "l2": Dialect("l2", rms_norm="l2", rope="slice"),
        "op": Dialect("op", opset=24, rms_norm="op", gelu="op", silu="op", rope="op"),
    }[spelling]
    for case in CASES:
        graphs = write(case, dialect, tmp_path / case.name)
        for entry, file in graphs.graphs.items():
            model = onnx.load(graphs.path / file)
            onnx.checker.check_model(model, full_check=True)
            inputs = case.inputs(entry, 1)
            wanted = case.expected(entry, inputs)
            bound = 4e-3 if "float16" in case.name else 1e-5
            for got, want in zip(ReferenceEvaluator(model).run(None, inputs), wanted.values()):
                assert np.abs(got - want).max() <= bound * max(1, np.abs(want).max()), f"{case.name}/{entry}"
