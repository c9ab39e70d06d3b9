"""Runs ATC as a child process: progress, a log that is kept, limits of time, memory and disk, and a verdict.

Success is an exit code of 0 *and* an ``.om``: ATC has been seen to give one without the other. ATC and the operator
compilers it starts are one process group, so that stopping it stops them all.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import psutil  # type: ignore[import-untyped]
from isthmus.errors import CompileError, UnavailableError
from isthmus.types import VendorStatus
from rich.console import Console

from . import errors, toolkit
from .atc_options import CompileOptions

_POLL_S = 0.1
_GIB = 1 << 30
_JOB_MEMORY = 3 * _GIB
"""Host memory one operator compilation may take. A 12 GB board fails with several at once (qwen-ascend-llm #5)."""
_MAX_JOBS = 8
_SPARE_DISK = 256 << 20
_TAIL_LINES = 30


@attrs.frozen
class Atc:
    """An ATC that can be started."""

    command: tuple[str, ...]
    version: str
    simulated: bool


@attrs.frozen
class Limits:
    """When to stop ATC, and how much it may do at once."""

    jobs: int
    seconds: int | None
    memory: int | None
    """Bytes of host memory of ATC and its children together."""


def find(simulator: bool) -> Atc:
    """The ATC of this machine, or the simulated one when it is named. ``UnavailableError`` says what was searched."""
    if simulator:
        from . import simulator as simulated  # here, so that a machine that never names it needs no compiler

        return Atc(tuple(simulated.atc_command()), "simulated", True)
    program = toolkit.atc()
    if program is None:
        raise UnavailableError(
            "no atc on this machine",
            why=f"not in PATH; {toolkit.searched('bin/atc')}",
            fix="install the CANN toolkit, then: source set_env.sh. Without it: --simulator (results are simulated)",
        )
    return Atc((str(program),), _version(program), False)


def _version(program: Path) -> str:
    return next((v for root in program.resolve().parents if (v := toolkit.version_of(root))), "unknown")


def limits(options: CompileOptions) -> Limits:
    """Limits from the options, and from the free memory of this host where they leave it open."""
    room = max(1, psutil.virtual_memory().available // _JOB_MEMORY)
    jobs = options.compile_jobs or min(room, os.cpu_count() or 1, _MAX_JOBS)
    mib = options.memory_limit_mib
    return Limits(jobs, options.timeout_s, None if mib is None else mib << 20)


def run(atc: Atc, flags: Sequence[str], *, directory: Path, log: Path, limits: Limits, what: str, need: int) -> None:
    """Run ATC in ``directory``, where it also leaves its scratch files. Its words go to ``log``.

    ``what`` names the graph in progress and errors; ``need`` is the disk space asked for first, in bytes.
    ``CompileError`` quotes the log and explains its E-codes.
    """
    _check_disk(directory, need)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*atc.command, *flags],
            cwd=directory,
            env=_environment(directory, limits.jobs),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            stopped = _watch(process, limits, what)
        finally:
            _stop(process)
    if stopped or process.returncode:
        raise _failure(stopped or _ended(process.returncode), log, atc, what)


def no_output(log: Path, atc: Atc, what: str) -> CompileError:
    """The error for a run that ended well and left no ``.om``."""
    return _failure("atc exited with 0 but wrote no .om", log, atc, what)


def _environment(directory: Path, jobs: int) -> dict[str, str]:
    """What the user set himself is respected, but for the scratch directory, which is cleaned up."""
    ours = {"TE_PARALLEL_COMPILER": str(jobs), "MAX_COMPILE_CORE_NUMBER": str(jobs)}
    return {**ours, **os.environ, "TMPDIR": str(directory)}


def _check_disk(directory: Path, need: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < need + _SPARE_DISK:
        raise CompileError(
            f"{directory} has {free >> 20} MiB free; ATC may need {(need + _SPARE_DISK) >> 20} MiB",
            fix="free disk space, or set TMPDIR to a larger disk",
        )


def _watch(process: subprocess.Popen[bytes], limits: Limits, what: str) -> str:
    """Wait for the end; returns why it must be stopped, or nothing."""
    start, peak = time.monotonic(), 0
    with _progress(f"atc {what}") as show:
        while True:
            try:
                process.wait(_POLL_S)
                return ""
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - start
            held = _memory_of(process.pid)
            peak = max(peak, held)
            show(f"atc {what}: {seconds:.0f} s, {held >> 20} MiB of host memory (peak {peak >> 20})")
            if limits.seconds is not None and seconds > limits.seconds:
                return f"stopped after {limits.seconds} s (option timeout_s)"
            if limits.memory is not None and held > limits.memory:
                return f"stopped at {held >> 20} MiB of host memory (option memory_limit_mib)"


@contextmanager
def _progress(text: str) -> Iterator[Callable[[str], None]]:
    with Console(stderr=True).status(text) as status:
        yield status.update


def _memory_of(pid: int) -> int:
    total = 0
    try:
        processes = [parent := psutil.Process(pid), *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the whole group; operator compilers outlive an ATC that was stopped."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "atc was killed; on most hosts that is the kernel, short of memory"
    return f"atc was ended by signal {-code}" if code < 0 else f"atc exited with {code}"


def _failure(ended: str, log: Path, atc: Atc, what: str) -> CompileError:
    text = log.read_text("utf-8", errors="replace")
    codes = errors.message_codes(text)
    spoken = [(c, m) for c in codes if (m := errors.message_meaning(c))]
    causes = [f"{c}: {m.meaning}" + (f" ({m.cause})" if m.cause else "") for c, m in spoken]
    fixes = [m.fix for _, m in spoken if m.fix]
    hungry = "killed" in ended or "memory" in ended
    return CompileError(
        f"{what}: {ended}; the log is {log}",
        why="; ".join(causes) or ("operator compilers took more host memory than there is" if hungry else None),
        fix="; ".join(dict.fromkeys(fixes))
        or ("compile with compile_jobs=1, or on a host with more memory" if hungry else f"read {log}"),
        status=VendorStatus(
            Path(atc.command[-1]).name, None, codes[0] if codes else "", errors.shorten("\n".join(_telling(text)))
        ),
    )


def _telling(text: str) -> list[str]:
    """The lines of a log that carry a code, else its tail."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if errors.message_codes(line)), None)
    return lines[-_TAIL_LINES:] if first is None else lines[first : first + _TAIL_LINES]
