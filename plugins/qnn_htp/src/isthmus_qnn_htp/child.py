"""The process that runs QNN for a device, seen from the parent: start it, ask it, and notice when it is gone."""

from __future__ import annotations

import atexit
import collections
import json
import logging
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from isthmus.errors import DeviceLostError, UnavailableError

from ._lib import LOGGER
from .wire import Channel, Kind, call_frame, error_from_json
from .worker import LOG_MARK

_LAST_LINES = 20
_UNKNOWN = -math.inf
_PATIENCE = 10.0  # seconds for a process to end once it has nothing more to do


class Child:
    """A worker process. Every call waits for its answer; one call at a time."""

    def __init__(self, watchdog_seconds: float | None) -> None:
        if not sys.executable:
            raise UnavailableError(
                "this Python has no executable to start a process with",
                fix="use the device option isolation=in_process",
            )
        self._watchdog = watchdog_seconds
        self._pid = os.getpid()
        self._cpu_time = _UNKNOWN
        self._doing = "start"
        self._lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        ours, read = self._start()
        self._reader = threading.Thread(target=self._read_log, args=(read,), name="isthmus-qnn-log", daemon=True)
        self._reader.start()
        if watchdog_seconds is not None:
            _limit(ours, watchdog_seconds / 2)
        self._channel = Channel(ours, self._when_idle)
        _ALIVE.add(self)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return (self._process.returncode or 0) < 0

    def call(self, command: str, **fields: Any) -> Any:
        """Run a command of the worker; ``DeviceLostError`` if the process ends or hangs over it."""
        return json.loads(self._ask(command, call_frame(command, fields))[0])

    def call_for_fd(self, command: str, **fields: Any) -> tuple[Any, int]:
        """Likewise, with the file descriptor it answers with."""
        answer, fd = self._ask(command, call_frame(command, fields), with_fd=True)
        return json.loads(answer), fd

    def release(self, command: str, **fields: Any) -> None:
        """Run a command that gives something back. A process that has ended has given everything back."""
        if self in _ALIVE:
            self.call(command, **fields)

    def send(self, doing: str, frame: bytes) -> None:
        """Send a frame made before and wait for its plain answer. The hot path."""
        self._ask(doing, frame)

    def forget_words(self) -> None:
        """Drop the lines it has left so far: what a good start prints explains no later failure."""
        self._lines.clear()

    def kill(self) -> None:
        """End it now."""
        _ALIVE.discard(self)
        if self._pid == os.getpid():
            self._process.kill()
            self._process.wait()
            self._reader.join(_PATIENCE)
            self._channel.close()

    def close(self) -> None:
        """Let it end by itself, or end it. Safe to call twice."""
        self._channel.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            LOGGER.warning("QNN process %d did not end by itself", self.pid)
        self.kill()

    def _start(self) -> tuple[socket.socket, int]:
        """Our end of its socket, and the descriptor its log is read from."""
        with ExitStack() as theirs, ExitStack() as ours:
            try:
                end, its_end = socket.socketpair()
                ours.callback(end.close)
                theirs.callback(its_end.close)
                read, write = os.pipe()
                ours.callback(os.close, read)
                theirs.callback(os.close, write)
                self._process = _spawn(its_end.fileno(), write)
            except OSError as error:
                raise UnavailableError(f"no process can be started to run QNN in: {error}") from error
            ours.pop_all()
            return end, read

    def _ask(self, doing: str, frame: bytes, with_fd: bool = False) -> tuple[bytes, int]:
        self._doing, self._cpu_time, fd = doing, _UNKNOWN, -1
        try:
            self._channel.send(frame)
            if with_fd:
                kind, answer, fd = self._channel.receive_with_fd()
            else:
                kind, answer = self._channel.receive()
        except (EOFError, OSError) as error:
            self._lost(error)
        except BaseException:
            self.kill()  # an answer is still to come, and the next call must not take it for its own
            raise
        if kind == Kind.FAILED:
            raise error_from_json(answer)
        return answer, fd

    def _lost(self, error: Exception) -> NoReturn:
        """Say how it ended."""
        hung = isinstance(error, TimeoutError | BlockingIOError)
        if not hung:
            self._wait()
        self.kill()
        status = self._process.returncode
        how = f"gave no answer and computed nothing for {self._watchdog:g} s" if hung else _ended(status)
        raise DeviceLostError(
            f"the process that runs QNN {how} during {self._doing}",
            why=self._last_words(killed_from_outside=status == -signal.SIGKILL and not hung),
            fix="open the device again with open_device; other devices go on",
        ) from error

    def _last_words(self, killed_from_outside: bool) -> str | None:
        if self._lines:
            return "its last words:" + "".join(f"\n    {line}" for line in self._lines)
        return "it was killed from outside, or by the kernel for lack of memory" if killed_from_outside else None

    def _wait(self) -> None:
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            LOGGER.warning("QNN process %d closed its socket and lives on", self.pid)

    def _when_idle(self) -> None:
        """Half the watchdog's time without an answer. Twice, and no computing in between, is a hang."""
        assert self._watchdog is not None
        before, self._cpu_time = self._cpu_time, _cpu_seconds(self.pid)
        if self._cpu_time - before < 0.005 * self._watchdog:
            raise TimeoutError

    def _read_log(self, read: int) -> None:
        with open(read, errors="replace", encoding="utf-8") as lines:
            for line in lines:
                self._log(line.strip())

    def _log(self, line: str) -> None:
        level, text = logging.INFO, line  # what a library prints by itself
        if line.startswith(LOG_MARK):
            number, _, text = line[1:].partition(" ")
            level = int(number)
        if text:
            self._lines.append(text)
            LOGGER.log(level, "%s", text)


def _spawn(end: int, log: int) -> subprocess.Popen[bytes]:
    """Start Python anew: a forked copy of a process that has used QNN hangs."""
    path = os.pathsep.join(entry for entry in sys.path if entry and Path(entry).exists())
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "isthmus_qnn_htp.worker", str(end), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(end,),
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C at a terminal is the parent's
    )


def _limit(end: socket.socket, seconds: float) -> None:
    """Make the kernel time out sends and receives: a time-out of Python's would cost a system call per receive."""
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-status, 'a signal')} (signal {-status})"


_ALIVE: weakref.WeakSet[Child] = weakref.WeakSet()


@atexit.register
def _kill_all() -> None:
    for child in list(_ALIVE):
        child.kill()
