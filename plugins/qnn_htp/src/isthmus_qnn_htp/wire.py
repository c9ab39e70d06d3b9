"""How a device's driver and the process that runs QNN for it talk: frames on a stream socket.

A frame is a kind, a length and a payload. Everything is JSON but what happens per step: an execute is nine bytes there
and five back, a rebind a packed table. File descriptors of shared memory travel beside a frame.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cattrs
from isthmus import errors
from isthmus.errors import IsthmusError
from isthmus.spi import Region
from isthmus.types import VendorStatus

HEADER = struct.Struct("<BI")
_BINDING = struct.Struct("<I")
_REBOUND = struct.Struct("<BIIQ")

CONVERTER = cattrs.Converter(forbid_extra_keys=True)


class Kind(enum.IntEnum):
    """What a frame is."""

    CALL = 1
    EXECUTE = 2
    REBIND = 3
    DONE = 4
    FAILED = 5


class Channel:
    """One end of the socket. ``idle`` is called when a time-out of the socket passes without a byte; it may raise."""

    def __init__(self, end: socket.socket, idle: Callable[[], None] | None = None) -> None:
        self._socket = end
        self._idle = idle

    def send(self, frame: bytes, fd: int = -1) -> None:
        """Send a frame, and a file descriptor if there is one."""
        if fd >= 0:
            socket.send_fds(self._socket, [frame[:1]], [fd])
            frame = frame[1:]
        self._socket.sendall(frame)

    def receive(self) -> tuple[int, bytes]:
        """Kind and payload of the next frame. ``EOFError``: the other end is gone."""
        kind, length = HEADER.unpack(self._exactly(HEADER.size))
        return kind, self._exactly(length) if length else b""

    def receive_with_fd(self) -> tuple[int, bytes, int]:
        """The next frame and the file descriptor beside it, -1 if there is none."""
        first, fd = self._first_byte()
        kind, length = HEADER.unpack(first + self._exactly(HEADER.size - 1))
        return kind, self._exactly(length), fd

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = self._receive(size)
        while len(data) < size:
            data += self._receive(size - len(data))
        return data

    def _receive(self, size: int) -> bytes:
        while True:
            try:
                part = self._socket.recv(size)
            except BlockingIOError:
                self._when_idle()
                continue
            if size and not part:
                raise EOFError
            return part

    def _first_byte(self) -> tuple[bytes, int]:
        while True:
            try:
                first, extra, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                self._when_idle()
                continue
            if not first:
                raise EOFError
            return first, int.from_bytes(extra[0][2][:4], "little") if extra else -1

    def _when_idle(self) -> None:
        if self._idle:
            self._idle()


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Any frame."""
    return HEADER.pack(kind, len(payload)) + payload


def call_frame(command: str, fields: Mapping[str, Any]) -> bytes:
    """Run a command of the worker."""
    return frame(Kind.CALL, to_json({"call": command, **fields}))


def execute_frame(binding: int) -> bytes:
    """Ask for an execute."""
    return frame(Kind.EXECUTE, _BINDING.pack(binding))


def rebind_frame(binding: int, sides: Iterable[Mapping[int, tuple[int, int]]]) -> bytes:
    """Ask for other regions: (memory, offset) by position, for inputs and outputs."""
    rows = (
        _REBOUND.pack(side, position, memory, offset)
        for side, regions in enumerate(sides)
        for position, (memory, offset) in regions.items()
    )
    return frame(Kind.REBIND, _BINDING.pack(binding) + b"".join(rows))


def unpack_binding(payload: bytes) -> int:
    """The binding an execute or a rebind is about."""
    return int(_BINDING.unpack_from(payload)[0])


def unpack_rebind(payload: bytes, memories: Mapping[int, Any]) -> tuple[dict[int, Region], dict[int, Region]]:
    """Regions by position, for inputs and outputs; their sizes are the tensors'."""
    sides: tuple[dict[int, Region], dict[int, Region]] = ({}, {})
    for side, position, memory, offset in _REBOUND.iter_unpack(payload[_BINDING.size :]):
        sides[side][position] = Region(memories[memory], offset, 0)
    return sides


def to_json(value: object) -> bytes:
    """Any value of ours as JSON."""
    return json.dumps(CONVERTER.unstructure(value)).encode()


def error_to_json(error: IsthmusError) -> bytes:
    """An error as JSON."""
    return json.dumps(error.as_dict()).encode()


def error_from_json(payload: bytes) -> IsthmusError:
    """The error again, of its class."""
    fields = json.loads(payload)
    status = VendorStatus(**fields["vendor"]) if fields["vendor"] else None
    kind: type[IsthmusError] = getattr(errors, fields["error"])
    return kind(fields["what"], why=fields["why"], fix=fields["fix"], status=status)
