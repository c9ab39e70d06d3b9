"""Libraries are found by argument, environment, package, in that order; what was searched is in the error."""

import importlib.util

import pytest
from isthmus import open_device
from isthmus.errors import UnavailableError
from isthmus_qnn_htp import _lib, libraries
from isthmus_qnn_htp.backend import QnnHtp


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in (libraries.DIRECTORY_VARIABLE, *libraries.SDK_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_package(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == libraries.PACKAGE else find_spec(n))


def fill(directory):
    directory.mkdir(parents=True)
    for name in (libraries.CORE, libraries.SYSTEM):
        (directory / name).touch()
    return directory


def test_the_package_is_the_last_place(tmp_path, monkeypatch):
    assert libraries.find().origin == "package onnxruntime_qnn"
    sdk = fill(tmp_path / "sdk" / "lib" / "x86_64-linux-clang")
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path / "sdk"))
    assert libraries.find() == libraries.Libraries(sdk, "variable QAIRT_SDK_ROOT")
    named = fill(tmp_path / "named")
    monkeypatch.setenv(libraries.DIRECTORY_VARIABLE, str(named))
    assert libraries.find().directory == named
    given = fill(tmp_path / "given")
    assert libraries.find(str(given)).directory == given


def test_a_directory_that_was_named_is_the_only_one_looked_at(tmp_path, monkeypatch):
    with pytest.raises(
        UnavailableError, match=r"option library_dir: no libQnnHtp.so and no libQnnSystem.so in .*absent"
    ):
        libraries.find(str(tmp_path / "absent"))
    monkeypatch.setenv(libraries.DIRECTORY_VARIABLE, str(tmp_path))
    with pytest.raises(UnavailableError, match=f"variable {libraries.DIRECTORY_VARIABLE}: no libQnnHtp.so"):
        libraries.find()


def test_the_error_names_every_place_and_the_command_that_fixes_it(no_package):
    with pytest.raises(UnavailableError) as caught:
        QnnHtp().devices()
    for place in (libraries.DIRECTORY_VARIABLE, *libraries.SDK_VARIABLES, libraries.PACKAGE):
        assert place in caught.value.what
    assert "pip install onnxruntime-qnn" in caught.value.fix


@pytest.mark.parametrize("isolation", ["child", "in_process"])
def test_a_library_that_is_no_library_is_unavailable(tmp_path, isolation):
    fill(tmp_path / "fake")
    with pytest.raises(UnavailableError, match=r"libQnnHtp.so cannot be loaded"):
        open_device("qnn_htp", options={"library_dir": str(tmp_path / "fake"), "isolation": isolation})


def test_a_library_without_the_entry_point_is_unavailable():
    with pytest.raises(
        UnavailableError, match=r"libQnnSystem\.so is not a QNN library: it has no QnnInterface_getProv"
    ):
        _lib.open_core(libraries.find().system)
