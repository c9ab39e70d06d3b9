"""What a plugin promises before a device is open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import isthmus
from isthmus.conformance.options import UNAVAILABLE
from isthmus.conformance.subject import Subject
from isthmus.errors import InputError, UnavailableError
from isthmus.options import describe_options
from isthmus.spi import SPI_VERSION, Backend
from isthmus.types import Dialect

LOADED = """
import ctypes, re, ssl, sys
from pathlib import Path
import isthmus

def libraries():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in lines if ".so" in line}

before = libraries()
backend = isthmus.registry().backend(sys.argv[1])
for target in backend.targets():
    backend.dialect(target)
harmless = r"/lib-dynload/|/(numpy|numpy.libs|ml_dtypes|onnx|google|psutil|yaml)/|/lib(c|m|dl|rt|pthread|gcc_s|stdc)[.+-]"
print("\\n".join(sorted(path for path in libraries() - before if not re.search(harmless, path))))
"""
"""Lists the libraries that come with the plugin, but for those of Python, of the core and of reading ONNX."""


def devices(backend: Backend) -> list[isthmus.DeviceInfo]:
    try:
        return list(backend.devices())
    except UnavailableError as error:
        pytest.skip(UNAVAILABLE + " ".join(str(error).split()))


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason=UNAVAILABLE + "this system does not list a process's libraries"
)
def test_importing_the_plugin_loads_no_vendor_library(backend: Backend) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", LOADED, backend.info.name], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout.strip(), f"loaded before a device was opened: {', '.join(done.stdout.split())}"


def test_the_backend_says_who_it_is(backend: Backend) -> None:
    assert backend.info.name
    assert ":" not in backend.info.name
    assert backend.info.plugin_version
    assert backend.info.spi_version[0] == SPI_VERSION[0]


def test_devices_have_names_targets_and_a_description(backend: Backend) -> None:
    found = devices(backend)
    assert len({device.name for device in found}) == len(found)
    for device in found:
        assert device.backend == backend.info.name
        assert device.targets
        assert device.description


def test_listing_devices_twice_gives_the_same(backend: Backend) -> None:
    assert devices(backend) == devices(backend)


def test_every_target_has_a_dialect(backend: Backend) -> None:
    targets = list(backend.targets())
    assert len(set(targets)) == len(targets)
    for target in targets:
        assert isinstance(backend.dialect(target), Dialect)


def test_devices_run_what_the_compiler_compiles(backend: Backend) -> None:
    compiled = set(backend.targets())
    for device in devices(backend):
        assert not compiled or compiled & set(device.targets), f"nothing compiled here runs on {device.id}"


def test_an_unknown_target_is_an_input_error(backend: Backend, tmp_path: Path) -> None:
    if backend.targets():
        with pytest.raises(InputError):
            backend.dialect("no such target")


def test_the_doctor_always_answers_in_words(backend: Backend) -> None:
    for key, value in backend.doctor().items():
        assert isinstance(key, str)
        assert isinstance(value, str)


@pytest.mark.parametrize("kind", ["compile_options", "device_options"])
def test_every_option_has_a_default_and_a_help(backend: Backend, kind: str) -> None:
    options = getattr(backend, kind)
    assert all(field.default is not attrs.NOTHING for field in attrs.fields(options))
    for option in describe_options(options):
        assert option["help"], f"{kind}: {option['name']} has no help"


def test_unknown_options_are_refused(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_option"):
        isthmus.compile(backend.info.name, tmp_path, tmp_path / "out", options={"no_such_option": "1"})
    with pytest.raises(InputError, match="no_such_option"):
        isthmus.open_device(backend.info.name, options={"no_such_option": "1"}).close()


def test_an_unknown_device_is_refused_with_those_there_are(backend: Backend) -> None:
    found = devices(backend)
    with pytest.raises(InputError, match=found[0].name):
        isthmus.open_device(f"{backend.info.name}:no such device").close()


def test_a_foreign_file_is_not_described(backend: Backend, tmp_path: Path) -> None:
    for content in (b"", b"\0" * 64, b"not of this backend", bytes(range(256))):
        file = tmp_path / "file.bin"
        file.write_bytes(content)
        try:
            described = backend.inspect(file)
        except InputError:
            continue
        assert described is None


def test_opening_a_device_opens_the_one_asked_for(backend: Backend, session_subject: Subject) -> None:
    for device in devices(backend):
        if session_subject.device_options and session_subject.device_name not in (None, device.name):
            continue  # the options are for another device
        with isthmus.open_device(device.id, options=session_subject.device_options) as opened:
            assert opened.info == device
