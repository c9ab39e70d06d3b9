"""The suite, run inside this process on backends made for the purpose; and the example plugin, installed for a while."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from isthmus.conformance import options

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "example_backend"
KIT = Path(options.__file__).parent

sys.path[:0] = [str(EXAMPLE / "src"), str(Path(__file__).parent)]  # the honest backend; and those that lie


class Collector:
    """Worst outcome of each test, with the reason."""

    def __init__(self):
        self.found: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report):
        name = options._short(report.nodeid)
        outcome = options._verdict([report])
        if name not in self.found or outcome[0] != "passed":
            self.found[name] = outcome


@pytest.fixture
def run_suite(tmp_path, capfd, monkeypatch):
    """Runs tests of the suite on a registered backend. Returns outcome and reason by name, and pytest's exit code."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "empty.ini").write_text("[pytest]\n")

    def run(backend: str, *tests: str, arguments=(), leaks=False):
        where = [str(KIT / (test.replace("::", ".py::", 1))) for test in tests] or [str(KIT)]
        collector = Collector()
        code = pytest.main(
            [
                *where,
                *["-c", str(tmp_path / "empty.ini"), "--rootdir", str(KIT), "--confcutdir", str(KIT)],
                *["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:terminal", "-s"],
                *([] if leaks else ["-p", "no:unraisableexception"]),  # it collects garbage, twice as long as the rest
                *["--import-mode=importlib", "--basetemp", str(tmp_path / "kit"), "--isthmus-backend", backend],
                *arguments,
            ],
            plugins=[options, collector],
        )
        return collector.found, int(code)

    return run
