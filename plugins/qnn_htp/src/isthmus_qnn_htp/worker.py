"""The process that runs QNN for one device: ``python -m isthmus_qnn_htp.worker SOCKET PARENT``.

It owns every vendor object. Descriptors 1 and 2 are a pipe to the parent, so that nothing a library prints reaches the
program's output, and its last words are kept.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError
from isthmus.spi import Region
from isthmus.types import EntrySpec, Pages

from . import _lib, binary
from .checks import Chip
from .device_options import DeviceOptions
from .driver import QnnDriver
from .layout import ProgramRecord
from .libraries import find
from .memory import Memory
from .program import Binding, Program
from .wire import CONVERTER, Channel, Kind, error_to_json, frame, to_json, unpack_binding, unpack_rebind

LOG_MARK = "\x02"
_DONE = frame(Kind.DONE)


class Worker:
    """Answers frames until the other end is gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._driver: QnnDriver | None = None
        self._numbers = itertools.count(1)
        self._memories: dict[int, Memory] = {}
        self._programs: dict[int, Program] = {}
        self._bindings: dict[int, Binding] = {}

    def serve(self) -> None:
        """Answer each frame. An error of ours is an answer; any other ends the process, with its traceback."""
        while True:
            try:
                kind, payload = self._channel.receive()
            except EOFError:
                return
            try:
                if kind == Kind.EXECUTE:
                    self._bindings[unpack_binding(payload)].execute()
                    self._channel.send(_DONE)
                elif kind == Kind.REBIND:
                    self._bindings[unpack_binding(payload)].rebind(*unpack_rebind(payload, self._memories))
                    self._channel.send(_DONE)
                else:
                    self._call(json.loads(payload))
            except IsthmusError as error:
                self._channel.send(frame(Kind.FAILED, error_to_json(error)))

    def close(self) -> None:
        """Close the device if it is open: the parent may have gone without a word."""
        if self._driver is not None:
            self._driver.close()

    def _call(self, fields: dict[str, Any]) -> None:
        command = fields.pop("call")
        if command == "allocate":
            self._allocate(**fields)
        else:
            answer = getattr(self, f"_do_{command}")(**fields)
            self._channel.send(frame(Kind.DONE, to_json(answer)))

    @property
    def _open(self) -> QnnDriver:
        assert self._driver is not None
        return self._driver

    def _do_inspect(self, path: str, library_dir: str) -> dict[str, Any]:
        system = _lib.open_system(find(library_dir).system)
        return binary.to_json(binary.read_binary(system, Path(path)))

    def _do_open(self, options: dict[str, Any]) -> dict[str, Any]:
        self._driver = QnnDriver.open(CONVERTER.structure(options, DeviceOptions))
        return {"capabilities": list(self._driver.capabilities), "io_alignment": self._driver.io_alignment}

    def _do_chip(self) -> Chip:
        return self._open.chip

    def _allocate(self, size: int, pages: str, alignment: int) -> None:
        memory = self._open.allocate_shared(size, Pages(pages), alignment)
        number = next(self._numbers)
        self._memories[number] = memory
        answer = {"id": number, "length": memory.length, "offset": memory.offset, "granted": memory.granted}
        self._channel.send(frame(Kind.DONE, to_json(answer)), memory.fd)
        memory.close_fd()

    def _do_free(self, memory: int) -> None:
        self._open.free(self._memories.pop(memory))

    def _do_requirements(self, directory: str, record: Any, entries: Any) -> Any:
        return self._open.requirements_of(Path(directory), *_program(record, entries))

    def _do_load(self, directory: str, record: Any, entries: Any, target: str) -> int:
        number = next(self._numbers)
        self._programs[number] = self._open.load_program(Path(directory), *_program(record, entries), target)
        return number

    def _do_unload(self, program: int) -> None:
        self._open.unload(self._programs.pop(program))

    def _do_bind(self, program: int, entry: str, inputs: list[list[int]], outputs: list[list[int]]) -> int:
        number = next(self._numbers)
        regions = [[Region(self._memories[m], offset, size) for m, offset, size in side] for side in (inputs, outputs)]
        self._bindings[number] = self._open.bind(self._programs[program], entry, *regions)
        return number

    def _do_unbind(self, binding: int) -> None:
        self._open.unbind(self._bindings.pop(binding))

    def _do_profile(self, binding: int) -> Sequence[Any]:
        return self._open.profile(self._bindings[binding])

    def _do_close(self) -> None:
        driver, self._driver = self._open, None
        driver.close()


def _program(record: Any, entries: Any) -> tuple[ProgramRecord, Mapping[str, EntrySpec]]:
    return CONVERTER.structure(record, ProgramRecord), CONVERTER.structure(entries, dict[str, EntrySpec])


class _LogLines(logging.Formatter):
    """One line per record, marked, with its level: the parent logs it again."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{LOG_MARK}{record.levelno} {' '.join(record.getMessage().split())}"


def _follow(parent: int) -> None:
    """End with the parent, even in the middle of a vendor call and even if a fork of it still holds the socket.

    PR_SET_PDEATHSIG would not do: it fires when the thread that opened the device ends.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Run."""
    end, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogLines())
    _lib.LOGGER.addHandler(handler)
    _lib.LOGGER.setLevel(logging.DEBUG)
    _lib.LOGGER.propagate = False
    worker = Worker(Channel(end))
    worker.serve()
    worker.close()
    os._exit(0)  # not through the libraries' exit handlers, some of which crash


if __name__ == "__main__":
    main()
