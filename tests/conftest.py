"""The command line, called in this process with a cache of its own."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from isthmus.cli import main as entry
from isthmus.cli import output


@attrs.frozen
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run ``isthmus`` with arguments; what it printed and its exit code."""

    monkeypatch.setenv("ISTHMUS_ASCEND_SIMULATOR", "")  # so that what --simulator sets is taken back
    monkeypatch.delenv("ISTHMUS_ASCEND_SIMULATOR")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr("sys.argv", ["isthmus", *map(str, arguments)])
        monkeypatch.setattr(output, "_json_mode", False)
        monkeypatch.setattr(output, "_emitted", False)
        with pytest.raises(SystemExit) as left:
            entry.main()
        printed = capsys.readouterr()
        return Result(int(left.value.code or 0), printed.out, printed.err)

    return run
