"""Runs the suite in a process of its own, so that a backend that crashes fails a test and not its caller."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..errors import InputError, UnavailableError
from ..registry import registry

HERE = Path(__file__).parent
OUTCOMES = ("passed", "failed", "unavailable", "unsupported", "expected_failure")


@attrs.frozen
class Outcome:
    """What became of one test: ``passed``, ``failed``, ``unavailable``, ``unsupported``, ``expected_failure``."""

    test: str
    outcome: str
    reason: str
    seconds: float


@attrs.frozen
class Report:
    """What became of all of them. ``exit_code``: 0 every promise was kept; 1 one was broken, or nothing ran; 3 none
    was broken, but something could not be tested here."""

    backend: str
    device: str
    reality: str
    tests: tuple[Outcome, ...]
    error: str = ""
    """Why the run itself failed, e.g. an exclusion that matches no test."""

    @property
    def counts(self) -> dict[str, int]:
        """Tests by outcome."""
        found = Counter(t.outcome for t in self.tests)
        return {outcome: found[outcome] for outcome in OUTCOMES}

    @property
    def exit_code(self) -> int:
        """What the command line returns."""
        if self.error or self.counts["failed"] or not self.tests:
            return 1
        return 3 if self.counts["unavailable"] else 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**attrs.asdict(self), "counts": self.counts, "exit_code": self.exit_code}

    def lines(self) -> list[str]:
        """For people: the counts, and each test that did not pass with its reason."""
        counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.counts.items() if n) or "nothing ran"
        found = [f"{self.device or self.backend} ({self.reality or 'not opened'}): {counts}"]
        for test in self.tests:
            if test.outcome != "passed":
                found.append(f"{test.outcome.replace('_', ' ')}: {test.test}: {test.reason.splitlines()[0][:300]}")
        return [*found, f"error: {self.error}"] if self.error else found


def run(
    backend: str,
    *,
    device: str | None = None,
    target: str | None = None,
    artifacts: Path | str | None = None,
    options: Mapping[str, object] | None = None,
    device_options: Mapping[str, object] | None = None,
    extra_args: Sequence[str] = (),
) -> Report:
    """Run the suite on a backend; progress goes to stderr.

    ``artifacts`` holds cases compiled elsewhere by ``python -m isthmus.conformance build``. ``options`` are for the
    compiler, ``device_options`` for the device. ``extra_args`` go to pytest, e.g. ``("-k", "memory")``. The caller's
    pytest configuration, plugins and environment play no part. ``InputError``: no such backend; ``UnavailableError``:
    pytest is not installed.
    """
    registry().backend(backend)
    try:
        import pytest  # noqa: F401
    except ImportError as error:
        raise UnavailableError("the suite needs pytest", fix="pip install isthmus[conformance]") from error
    if artifacts is not None and not Path(artifacts).is_dir():
        raise InputError(f"{artifacts} is not a directory", fix="python -m isthmus.conformance build DIR")
    asked = {"device": device, "target": target, "artifacts": artifacts and Path(artifacts).absolute()}
    flags = [f"--isthmus-{name}={value}" for name, value in asked.items() if value is not None]
    flags += [f"--isthmus-option={k}={v}" for k, v in (options or {}).items()]
    flags += [f"--isthmus-device-option={k}={v}" for k, v in (device_options or {}).items()]
    with tempfile.TemporaryDirectory(prefix="isthmus-conformance-") as scratch:
        log = Path(scratch) / "report.jsonl"
        flags += [f"--isthmus-backend={backend}", f"--isthmus-report={log}"]
        code, output = _pytest(Path(scratch), [*flags, *extra_args])
        return _read(log, backend, code, output)


def _pytest(scratch: Path, flags: Sequence[str]) -> tuple[int, str]:
    empty = scratch / "pytest.ini"
    empty.write_text("[pytest]\n")
    command = [sys.executable, "-P", "-m", "pytest", str(HERE)]  # with --pyargs, the caller's conftest.py would load
    command += [
        "-p",
        "isthmus.conformance.options",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-q",
        "--no-header",
        "--tb=short",
    ]
    command += ["-c", str(empty), f"--rootdir={HERE}", f"--confcutdir={HERE}", f"--basetemp={scratch / 'tmp'}"]
    ignored = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)  # plugins found here
    done = subprocess.run([*command, *flags], env=environment, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    return done.returncode, done.stderr.strip()


def _read(log: Path, backend: str, code: int, output: str) -> Report:
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    tests = [Outcome(**line) for line in lines if "test" in line]
    started = [line["start"] for line in lines if "start" in line]
    opened = next((line for line in lines if "device" in line), {"device": "", "reality": ""})
    error = ""
    if not any("finished" in line for line in lines):
        death = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if len(started) > len(tests):
            tests.append(Outcome(started[-1], "failed", f"the process died: {death}", 0.0))
        error = f"the run ended early, {death}: {output[:400]}".rstrip(": ")
    elif code not in (0, 1):
        error = output.removeprefix("ERROR: ") or f"pytest ended with exit code {code}"
    return Report(backend, opened["device"], opened["reality"], tuple(tests), error)
