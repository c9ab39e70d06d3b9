"""A vendor's compiler as a child process: its output goes to a file, and it never outlives the call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def run_compiler(
    command: Sequence[str], directory: Path, log: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Run in ``directory`` with output appended to ``log``; the exit code, negative for a signal.

    The child is killed if this call is left by an exception, Ctrl-C included. It may watch its standard input to notice
    that this process is gone.
    """
    with (
        log.open("ab") as output,
        _killed_at_the_end(
            subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        ) as child,
    ):
        return child.wait()


def describe_end(code: int) -> str:
    """``exit code 1`` or ``SIGSEGV (Segmentation fault)``."""
    if code >= 0:
        return f"exit code {code}"
    return f"{signal.Signals(-code).name} ({signal.strsignal(-code)})"


def append_file(to: Path, source: Path) -> None:
    """Append the bytes of ``source``."""
    with to.open("ab") as whole, source.open("rb") as part:
        while block := part.read(1 << 20):
            whole.write(block)


@contextlib.contextmanager
def _killed_at_the_end(child: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield child
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its session: a tool's own children too
        child.wait()
        if child.stdin is not None:
            child.stdin.close()
