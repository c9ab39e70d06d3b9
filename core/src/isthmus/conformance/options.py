"""The pytest plugin: command line, exclusion lists, and the report. Loaded with ``-p isthmus.conformance.options``.

A packaged conftest.py could not add options: pytest loads it too late.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..errors import InputError, IsthmusError
from ..registry import registry
from ..spi import Backend
from ..types import DeviceInfo
from . import exclusions

UNAVAILABLE = "unavailable: "
PASSED, FAILED = "passed", "failed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("isthmus")
    group.addoption("--isthmus-backend", metavar="NAME", help="backend under test")
    group.addoption("--isthmus-device", metavar="NAME", help="device of the backend; default: its first")
    group.addoption("--isthmus-target", metavar="NAME", help="what to compile for; default: the device's first target")
    group.addoption("--isthmus-artifacts", metavar="DIR", help="cases compiled by python -m isthmus.conformance build")
    group.addoption("--isthmus-option", metavar="K=V", action="append", default=[], help="compile option")
    group.addoption("--isthmus-device-option", metavar="K=V", action="append", default=[], help="device option")
    group.addoption("--isthmus-report", metavar="FILE", help="write outcomes as JSON lines, as they happen")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a backend that cannot be tested, and turn what we warn of into failures."""
    config.addinivalue_line("markers", f"{exclusions.EVERY_CASE}: runs for every model case")
    if not (name := config.getoption("--isthmus-backend")):
        return
    try:
        registry().backend(name)
    except IsthmusError as error:
        raise pytest.UsageError(str(error)) from error
    config.addinivalue_line("filterwarnings", "error:unclosed <:ResourceWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    if path := config.getoption("--isthmus-report"):
        config.pluginmanager.register(Report(Path(path)), "isthmus-report")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name what is under test."""
    if not (name := config.getoption("--isthmus-backend")):
        return None
    info = registry().backend(name).info
    return f"isthmus: backend {info.name} {info.plugin_version}, SPI {'.'.join(map(str, info.spi_version))}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply the backend's lists to the suite's tests; other tests of the same run are left alone."""
    ours = [item for item in items if item.path.parent == exclusions.HERE]
    if not ours:
        return
    exclusions.apply(under_test(config).conformance, ours)
    if config.getoption("--isthmus-artifacts"):  # compiling was tested where the artifacts were made
        items[:] = [item for item in items if "compiler" not in getattr(item, "fixturenames", ())]


def under_test(config: pytest.Config) -> Backend:
    """The backend under test."""
    if not (name := config.getoption("--isthmus-backend")):
        raise pytest.UsageError(f"--isthmus-backend NAME is required; installed: {', '.join(registry().names())}")
    return registry().backend(name)


def pairs(given: list[str]) -> dict[str, str]:
    """``["k=v"]`` as a mapping. ``InputError`` without ``=``."""
    for text in given:
        if "=" not in text:
            raise InputError(f"option {text!r} is not KEY=VALUE")
    return dict(text.split("=", 1) for text in given)


class Report:
    """Outcomes as JSON lines, flushed one by one: a backend that kills the process leaves the name of the test."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._phases: dict[str, list[pytest.TestReport]] = {}
        self._device_noted = False

    def note(self, **line: Any) -> None:
        """Append a line."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def note_device(self, info: DeviceInfo) -> None:
        """Say what the results were made on, once."""
        if not self._device_noted:
            self.note(device=info.id, reality=info.reality.value)
            self._device_noted = True

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        """A test begins."""
        self._phases[nodeid] = []
        self.note(start=_short(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        self._phases.setdefault(report.nodeid, []).append(report)

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        """A test is over."""
        phases = self._phases.pop(nodeid)
        outcome, why = _verdict(phases)
        self.note(test=_short(nodeid), outcome=outcome, reason=why, seconds=round(sum(p.duration for p in phases), 3))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The run is over, so the file is whole."""
        self.note(finished=int(session.exitstatus))
        self._file.close()


def _verdict(phases: list[pytest.TestReport]) -> tuple[str, str]:
    for phase in phases:
        if phase.failed:
            crash = getattr(phase.longrepr, "reprcrash", None)
            return FAILED, (crash.message if crash else str(phase.longrepr))[:2000]
    for phase in phases:
        if phase.skipped:
            return _skipped(phase)
    return PASSED, ""


def _skipped(phase: pytest.TestReport) -> tuple[str, str]:
    if hasattr(phase, "wasxfail"):
        return "expected_failure", phase.wasxfail
    text = str(phase.longrepr[2] if isinstance(phase.longrepr, tuple) else phase.longrepr).removeprefix("Skipped: ")
    for outcome, prefix in (("unavailable", UNAVAILABLE), ("unsupported", exclusions.UNSUPPORTED)):
        if text.startswith(prefix):
            return outcome, text.removeprefix(prefix)
    return FAILED, f"skipped, though only what is unavailable may be: {text}"


def _short(nodeid: str) -> str:
    path, _, test = nodeid.partition("::")
    return f"{Path(path).stem}::{test}"
