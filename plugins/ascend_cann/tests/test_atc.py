"""Driving ATC: found where it is, limited, judged by exit code and file, and quoted when it fails."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import isthmus
import psutil
import pytest
from isthmus.errors import CompileError, UnavailableError
from isthmus_ascend_cann import atc, toolkit
from isthmus_ascend_cann.atc_options import CompileOptions

Fake = Callable[[str], Path]


@pytest.fixture(autouse=True)
def no_cann(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without CANN, whatever is installed here."""
    monkeypatch.setattr(toolkit, "DEFAULTS", (str(tmp_path / "nowhere"),))
    for name in (*toolkit.ENVIRONMENT, "TE_PARALLEL_COMPILER", "MAX_COMPILE_CORE_NUMBER", "ISTHMUS_ASCEND_SIMULATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A toolkit whose atc is a shell script."""

    def write(script: str) -> Path:
        root = tmp_path / "toolkit"
        (root / "bin").mkdir(parents=True)
        (root / "compiler").mkdir()
        (root / "compiler" / "version.info").write_text("Version=7.7.0.1.238:8.2.RC1\n")
        program = root / "bin" / "atc"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("ASCEND_HOME_PATH", str(root))
        return root

    return write


OUTPUT = "for a; do case $a in --output=*) out=${a#--output=};; esac; done\n"
FAILS = """
echo 'ATC start working now, please wait for a moment.'
echo 'ATC run failed, Please check the detail log'
echo 'EZ3002: [PID: 5] 2026 Optype [Gelu] of Ops kernel [AIcoreEngine] is unsupported.'
echo '        Possible Cause: this chip'
exit 255
"""


def run(tmp_path: Path, **limits: int | None) -> Path:
    log = tmp_path / "log"
    atc.run(
        atc.find(False),
        [f"--output={tmp_path}/m"],
        directory=tmp_path,
        log=log,
        limits=atc.Limits(**{"jobs": 3, "seconds": None, "memory": None, **limits}),  # type: ignore[arg-type]
        what="entry 'main'",
        need=0,
    )
    return log


def test_atc_is_found_in_the_toolkit_with_its_version(fake: Fake) -> None:
    root = fake("exit 0")
    assert atc.find(False) == atc.Atc((str(root / "bin" / "atc"),), "8.2.RC1", False)


def test_without_atc_the_error_says_what_was_searched_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        atc.find(False)
    text = str(caught.value)
    assert str(tmp_path / "nowhere") in text
    assert "not set: ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME" in text
    assert "set_env.sh" in text
    assert "--simulator" in text
    assert caught.value.exit_code == 3


def test_atc_gets_a_scratch_directory_and_as_many_jobs_as_the_host_bears(fake: Fake, tmp_path: Path) -> None:
    fake("echo $TMPDIR $TE_PARALLEL_COMPILER $MAX_COMPILE_CORE_NUMBER; pwd")
    assert run(tmp_path).read_text().split() == [str(tmp_path), "3", "3", str(tmp_path)]


def test_what_the_user_set_is_respected(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TE_PARALLEL_COMPILER", "1")
    fake("echo $TE_PARALLEL_COMPILER $MAX_COMPILE_CORE_NUMBER")
    assert run(tmp_path).read_text().split() == ["1", "3"]


def test_jobs_follow_the_free_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 7 << 30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert atc.limits(CompileOptions()).jobs == 2
    memory.available = 1 << 30
    assert atc.limits(CompileOptions()).jobs == 1
    memory.available = 900 << 30
    assert atc.limits(CompileOptions()).jobs == 8
    assert atc.limits(CompileOptions(compile_jobs=20, memory_limit_mib=5)) == atc.Limits(20, None, 5 << 20)


def test_a_failure_is_explained_by_its_codes_and_quotes_the_log(fake: Fake, tmp_path: Path) -> None:
    fake(FAILS)
    with pytest.raises(CompileError) as caught:
        run(tmp_path)
    text = str(caught.value)
    assert "entry 'main': atc exited with 255" in text
    assert "EZ3002: an operator type is unsupported on this SoC" in text
    assert "Optype [Gelu]" in text
    assert str(tmp_path / "log") in text


def test_a_killed_atc_is_most_likely_short_of_host_memory(fake: Fake, tmp_path: Path) -> None:
    fake("kill -9 $$")
    with pytest.raises(CompileError, match="was killed") as caught:
        run(tmp_path)
    assert "compile_jobs=1" in str(caught.value)


def test_a_limit_of_time_stops_atc_and_what_it_started(fake: Fake, tmp_path: Path) -> None:
    fake("sleep 98761 & sleep 98762")
    with pytest.raises(CompileError, match="timeout_s"):
        run(tmp_path, seconds=1)
    deadline = time.monotonic() + 10
    while any("9876" in " ".join(_command(p)) for p in psutil.process_iter()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any("sleep 9876" in " ".join(_command(p)) for p in psutil.process_iter())


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_a_limit_of_host_memory_stops_atc(fake: Fake, tmp_path: Path) -> None:
    fake("sleep 60")
    with pytest.raises(CompileError, match="memory_limit_mib"):
        run(tmp_path, memory=1)


def test_a_full_disk_is_found_before_atc_starts(fake: Fake, tmp_path: Path) -> None:
    fake("exit 0")
    with pytest.raises(CompileError, match="MiB free"):
        atc.run(
            atc.find(False), [], directory=tmp_path, log=tmp_path / "log", limits=atc.Limits(1, None, None), what="x", need=1 << 60
        )  # fmt: skip


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are kept go to the temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))


def kept_log(error: CompileError) -> str:
    """Content of the log that an error names."""
    return Path(error.what.rpartition("the log is ")[2]).read_text()


def test_success_without_a_file_is_a_failure_and_the_log_is_kept(
    fake: Fake, tmp_path: Path, graph: Callable[..., Path]
) -> None:
    fake("echo 'ATC run success, welcome to the next use.'")
    with pytest.raises(CompileError, match=r"wrote no \.om") as caught:
        isthmus.compile("ascend", graph(), tmp_path / "artifact")
    assert "run success" in kept_log(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main.onnx", "toolkit"]


def test_an_om_under_another_name_is_found_and_checked(fake: Fake, tmp_path: Path, graph: Callable[..., Path]) -> None:
    fake(f"{OUTPUT} echo rubbish > ${{out}}_linux_x86_64.om")
    with pytest.raises(isthmus.IsthmusError, match=r"not a valid \.om"):
        isthmus.compile("ascend", graph(), tmp_path / "artifact")


def test_the_flags_name_the_model_the_chip_and_the_options(
    fake: Fake, tmp_path: Path, graph: Callable[..., Path]
) -> None:
    fake("for a; do echo $a; done; exit 1")
    file = graph()
    with pytest.raises(CompileError) as caught:
        isthmus.compile("ascend", file, tmp_path / "a", target="Ascend910B-gen1", options={"log": "info"})
    said = kept_log(caught.value).splitlines()
    assert f"--model={file}" in said
    assert "--framework=5" in said
    assert "--soc_version=Ascend910B" in said
    assert "--log=info" in said
    assert "--precision_mode=force_fp16" in said
