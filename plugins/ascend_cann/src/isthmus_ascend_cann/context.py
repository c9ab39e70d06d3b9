"""One device of one process: its context and its stream, entered around every call.

A context is current per thread, and calls may come from any thread; so each one makes ours current first, and gives
back a foreign one (of torch_npu, say) afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isthmus.errors import DeviceLostError, IsthmusError

from . import _abi, _lib
from ._lib import Acl

_ours: set[int] = set()
"""Every context this plugin made, also those gone: one of them is never given back to a thread."""


class Context:
    """A context and a stream on one device. ``timeout_ms`` limits every wait; -1 waits for ever."""

    def __init__(self, acl: Acl, device: int, timeout_ms: int) -> None:
        self.acl = acl
        self.device = device
        self.timeout_ms = timeout_ms
        self.lost = False
        self._pending = False
        before = _current(acl)
        acl.mark_messages()
        acl.aclrtSetDevice(device)
        undo: list[Callable[[], None]] = [lambda: acl.aclrtResetDevice(device)]
        try:
            context, out = _lib.new(_lib.POINTER)
            acl.aclrtCreateContext(out, device)
            undo.append(lambda: acl.aclrtDestroyContext(context.value))
            self._context: int = context.value
            _ours.add(self._context)
            stream, out = _lib.new(_lib.POINTER)
            acl.aclrtCreateStream(out)
            self.stream: int = stream.value
        except IsthmusError:
            _all(undo)
            raise
        finally:
            _give_back(acl, before)

    @contextmanager
    def entered(self) -> Iterator[Acl]:
        """Make the context current in this thread. Loss of the device is remembered."""
        acl = self.acl
        before = _current(acl)
        acl.mark_messages()
        if before != self._context:
            acl.aclrtSetCurrentContext(self._context)
        try:
            yield acl
        except DeviceLostError:
            self.lost = True
            raise
        finally:
            if before != self._context:
                _give_back(acl, before)

    def queued(self) -> None:
        """Say that the stream has work in it that nobody has waited for."""
        self._pending = True

    def drain(self) -> None:
        """Wait for what is queued. Within ``entered``. ``DeviceLostError``: it took longer than the limit."""
        if self._pending:
            self.wait()

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Wait for what is queued, then run the body, also if something queued had failed: that is raised in the end.

        Within ``entered``. The body is not run when the device is lost: what hangs may still use what it would release.
        """
        failed: IsthmusError | None = None
        try:
            self.drain()
        except DeviceLostError:
            raise
        except IsthmusError as error:
            failed = error
        yield
        if failed is not None:
            raise failed

    def wait(self) -> None:
        """Wait for the stream. Within ``entered``. A wait that failed has to be repeated before anything is released."""
        self._pending = True
        try:
            self.acl.aclrtSynchronizeStreamWithTimeout(self.stream, self.timeout_ms)
        except IsthmusError as error:
            if error.status is not None and error.status.code == _abi.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT:
                raise DeviceLostError(
                    f"the device did not finish within {self.timeout_ms} ms",
                    why="what runs there still uses the buffers, so nothing of this device can be freed one by one",
                    fix="close the device and open it again, with a larger device option timeout_ms if the model is slow",
                    status=error.status,
                ) from error
            raise
        self._pending = False

    def stop(self) -> None:
        """Release the stream; by force if the device is lost, since what hangs would make the ordinary way hang too."""
        force = self.lost and self.acl.has("aclrtDestroyStreamForce")
        with self.entered() as acl:
            (acl.aclrtDestroyStreamForce if force else acl.aclrtDestroyStream)(self.stream)

    def close(self) -> None:
        """Release context and device, both even if one fails. ``stop`` comes first."""
        acl, before = self.acl, _current(self.acl)
        acl.mark_messages()
        try:
            _all([lambda: acl.aclrtResetDevice(self.device), lambda: acl.aclrtDestroyContext(self._context)])
        finally:
            _give_back(acl, before)


def _current(acl: Acl) -> int | None:
    """The thread's context; a thread without one is an ordinary state, not an error."""
    context, out = _lib.new(_lib.POINTER)
    return context.value if acl.status("aclrtGetCurrentContext", out) == _abi.ACL_SUCCESS else None


def _give_back(acl: Acl, context: int | None) -> None:
    if context is not None and context not in _ours:
        acl.aclrtSetCurrentContext(context)


def _all(steps: list[Callable[[], None]]) -> None:
    """Run every step, newest first; the first error is raised in the end."""
    errors: list[IsthmusError] = []
    for step in reversed(steps):
        try:
            step()
        except IsthmusError as error:
            errors.append(error)
    if errors:
        raise errors[0]
