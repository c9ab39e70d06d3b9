"""Profile one execute: the runtime's events as ``ProfileEvent``.

On the x86 emulator the microseconds are the host's and the cycles those of a model of the chip's instructions on the
host: they say nothing about a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isthmus.types import ProfileEvent

from . import _abi, _lib
from .device_options import ProfileLevel
from .session import Session

_LEVELS = {ProfileLevel.BASIC: 1, ProfileLevel.DETAILED: 2}
_UNITS = {1: "us", 2: "bytes", 3: "cycles", 4: "count"}
_NODE = 404
_NAMES = {
    400: "execute", 404: "node", 3002: "rpc", 3003: "accelerator", 3004: "accelerator", 3005: "accelerator wait",
    3010: "vtcm acquire", 3011: "power up", 8001: "hvx threads",
}  # fmt: skip


class Profiler:
    """A profile handle; each execute that uses it starts afresh."""

    def __init__(self, session: Session) -> None:
        """``UnsupportedError``: this runtime has no profiles."""
        self._core = session.core
        self._handle = _abi.Handle()
        level = _LEVELS[session.options.profile]
        self._core.check("open a profile", "profileCreate", session.backend, level, _lib.ref(self._handle))

    @property
    def handle(self) -> _abi.Handle:
        """For ``graphExecute``."""
        return self._handle

    def events(self) -> tuple[ProfileEvent, ...]:
        """What the last execute left, outer events before their parts."""
        return tuple(self._events("profileGetEvents", self._handle))

    def close(self) -> None:
        """Free the handle."""
        self._core.check("close a profile", "profileFree", self._handle)

    def _events(self, call: str, parent: Any) -> Iterator[ProfileEvent]:
        found, count = _lib.pointer_to(_abi.u64), _abi.u32()
        self._core.check("list its profile", call, parent, _lib.ref(found), _lib.ref(count))
        for event in found[: count.value] if count.value else ():
            data = _abi.QnnProfile_EventData_t()
            self._core.check("describe an event", "profileGetEventData", event, _lib.ref(data))
            yield _event(data)
            yield from self._events("profileGetSubEvents", event)


def _event(data: Any) -> ProfileEvent:
    given = (data.identifier or b"").decode(errors="replace").strip()
    unit, node = _UNITS.get(data.unit, f"unit {data.unit}"), data.type == _NODE
    name = given or _NAMES.get(data.type, f"event {data.type}")
    return ProfileEvent(name.removesuffix(f" ({unit})") if node else name, data.value, unit, node)
