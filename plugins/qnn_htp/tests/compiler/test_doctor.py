"""What ``isthmus doctor`` says of a Snapdragon set-up."""

import pytest
from isthmus_qnn_htp import doctor, libraries, toolchain


def test_this_machine_compiles_and_emulates():
    facts = doctor.facts()
    assert facts["onnxruntime pair"] == "fits"
    assert facts["QNN build"].startswith("v2.")
    assert "emulator" in facts["device"]
    assert facts["verdict"].startswith("compiles")
    assert all(isinstance(value, str) and value for value in facts.values())


@pytest.mark.parametrize(
    ("ort", "qnn", "said"),
    [
        (None, "2.7.0", "onnxruntime not installed"),
        ("1.32.0", None, "onnxruntime-qnn not installed"),
        ("1.22.1", "2.7.0", "too old"),
        ("1.28.0", "2.3.0", "older plugin ABI"),
    ],
)
def test_a_pair_that_does_not_fit_is_named_with_a_command(monkeypatch, ort, qnn, said):
    monkeypatch.setattr(toolchain, "installed", {"onnxruntime": ort, "onnxruntime-qnn": qnn}.get)
    what, fix = toolchain.pair_problem()
    assert said in what
    assert fix.startswith("pip install")
    monkeypatch.setattr(doctor, "installed", toolchain.installed)
    assert "cannot compile" in doctor.facts()["verdict"]


@pytest.mark.parametrize(
    ("ort", "qnn"), [("1.32.0", "2.7.0"), ("1.32.0", "2.4.0"), ("1.27.0", "2.3.0"), ("1.33.0rc1", "2.8.0")]
)
def test_a_pair_that_fits_or_is_unknown_passes(monkeypatch, ort, qnn):
    monkeypatch.setattr(toolchain, "installed", {"onnxruntime": ort, "onnxruntime-qnn": qnn}.get)
    assert toolchain.pair_problem() is None


def test_missing_libraries_are_the_verdict_and_nothing_is_raised(monkeypatch, tmp_path):
    monkeypatch.setenv(libraries.DIRECTORY_VARIABLE, str(tmp_path))
    facts = doctor.facts()
    assert facts["verdict"].startswith("cannot run: ")
    assert str(tmp_path) in facts["libraries"]


def test_libraries_of_two_releases_are_seen(tmp_path):
    (tmp_path / "libQnnHtp.so").write_bytes(b"\0v2.51.0.260929181845\0")
    (tmp_path / "libHtpPrepare.so").write_bytes(b"\0v2.47.0.260601000000\0")
    (tmp_path / "empty.so").touch()
    found = doctor.builds(sorted(tmp_path.iterdir()))
    assert found == {"libQnnHtp.so": "v2.51.0.260929181845", "libHtpPrepare.so": "v2.47.0.260601000000"}


def test_the_search_path_of_the_dsp_is_judged(tmp_path):
    (tmp_path / "good").mkdir()
    (tmp_path / "good/libQnnHtpV75Skel.so").touch()
    good, absent = tmp_path / "good", tmp_path / "absent"
    assert "not set" in doctor.judge_search_path(None, 75)
    assert doctor.judge_search_path(str(good), 75) == f"libQnnHtpV75Skel.so: {good}/libQnnHtpV75Skel.so"
    assert "no libQnnHtpV79Skel.so" in doctor.judge_search_path(str(good), 79)
    assert f"not there: {absent}" in doctor.judge_search_path(f"{absent};{good}", 75)
    colons = doctor.judge_search_path(f"{good}:{absent}", 75)
    assert f"export ADSP_LIBRARY_PATH='{good};{absent}'" in colons


def test_the_stub_of_the_architecture_is_looked_for(tmp_path):
    assert "no libQnnHtpV75Stub.so" in doctor.judge_stub(tmp_path, 75)
    (tmp_path / "libQnnHtpV75Stub.so").touch()
    assert doctor.judge_stub(tmp_path, 75) == "libQnnHtpV75Stub.so"
    assert doctor.judge_stub(tmp_path, None) == "libQnnHtpV75Stub.so"
