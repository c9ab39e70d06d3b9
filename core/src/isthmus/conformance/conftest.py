"""Fixtures of the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus import Artifact, Device
from isthmus.conformance import options, subject
from isthmus.conformance.cases import CASES, Case
from isthmus.conformance.subject import Subject
from isthmus.spi import Backend

Compiler = Callable[[Path, Path], Artifact]


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> Backend:
    """The backend under test, no device opened."""
    return options.under_test(pytestconfig)


@pytest.fixture(scope="session")
def session_subject(
    pytestconfig: pytest.Config, backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    """The backend with its options, its shared device and its artifacts."""
    made = subject.make(pytestconfig, backend, tmp_path_factory.mktemp("subject"), options.pairs)
    yield made
    made.close()


@pytest.fixture
def device(session_subject: Subject, pytestconfig: pytest.Config) -> Iterator[Device]:
    """An open device, shared by the tests that neither close it nor leave anything on it."""
    opened = session_subject.device()
    if report := pytestconfig.pluginmanager.get_plugin("isthmus-report"):
        report.note_device(opened.info)
    yield opened
    if opened.memory.records():  # of a test that failed halfway; the next one starts afresh
        opened.close()


@pytest.fixture
def fresh_device(session_subject: Subject) -> Iterator[Device]:
    """A device of the test's own, to be closed, lost or forked with."""
    with session_subject.open() as opened:
        yield opened


@pytest.fixture
def target(session_subject: Subject, device: Device) -> str:
    """What to compile for."""
    return session_subject.target(device.info)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """Every model case in turn, or the ones a test names."""
    found = request.param
    return found if isinstance(found, Case) else subject.BY_NAME[found]


@pytest.fixture
def artifact(session_subject: Subject, case: Case, target: str) -> Artifact:
    """The case, compiled once for all tests."""
    return session_subject.artifact(case, target)


@pytest.fixture
def copied(artifact: Artifact, tmp_path: Path) -> Path:
    """A copy of the artifact's directory, to be damaged."""
    import shutil

    return Path(shutil.copytree(artifact.path, tmp_path / "copied"))


@pytest.fixture
def compiler(session_subject: Subject, target: str) -> Compiler:
    """Compiles a graph set or .onnx file into a directory. Where there is no compiler, the test is skipped."""
    session_subject.artifact(subject.BY_NAME["matmul_bias"], target)
    return lambda source, out: session_subject.compile(source, out, target)
