"""Who is open, who needs whom, and in which order things go away."""

from __future__ import annotations

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from . import spi
from .errors import ClosedError, DeviceLostError, InUseError
from .memory.ledger import MemoryLedger

if TYPE_CHECKING:
    from .device import Device


class Closing:
    """What every closable object shares. The garbage collector only warns: a finaliser can run on any thread."""

    _closed = True  # until __init__ succeeds

    @property
    def closed(self) -> bool:
        """Whether the resource is gone."""
        return self._closed

    def close(self) -> None:
        """Release the resource. Safe to call twice."""
        raise NotImplementedError  # pragma: no cover - every subclass has its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)


class Ledger:
    """The handles of one driver, and the lock that lends the driver to one thread at a time.

    A forked child inherits neither: the vendor's threads and the lock's holder stayed in the parent.
    """

    def __init__(self, driver: spi.DeviceDriver, name: str) -> None:
        self.driver = driver
        self.lock = threading.RLock()
        self.closed = False
        self.lost = False
        self.memory = MemoryLedger(name)
        self._name = name
        self._pid = os.getpid()
        self._releases: dict[int, Callable[[], None]] = {}
        self._weights: dict[int, tuple[Child, spi.Region]] = {}
        self._tickets = itertools.count()

    @property
    def foreign(self) -> bool:
        """Whether this is a forked child of the process that opened the device."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """``ClosedError`` says why the driver cannot be called. Under the lock, unless in a forked child."""
        if self.foreign or self.closed or self.lost:
            why = "owned by the parent process" if self.foreign else "closed" if self.closed else "lost"
            raise ClosedError(f"device {self._name} is {why}", fix="open it here with open_device")

    @contextmanager
    def call(self) -> Iterator[spi.DeviceDriver]:
        """Lend the driver, in the process that opened it. A lost device is lost for good."""
        if self.foreign:
            self.check()
        with self.lock:
            self.check()
            try:
                yield self.driver
            except DeviceLostError:
                self.lost = True
                raise

    def enter(self, release: Callable[[], None]) -> int:
        """Note how a handle is released. Under the lock."""
        ticket = next(self._tickets)
        self._releases[ticket] = release
        return ticket

    def lend_weights(self, ticket: int, base: Child, region: spi.Region) -> None:
        """Note that the program behind ``ticket`` has its weights in ``region`` of ``base``. Under the lock."""
        self._weights[ticket] = (base, region)

    def check_no_weights(self, base: Child, region: spi.Region) -> None:
        """``InUseError``: nothing else may be put where a loaded program has its weights. Under the lock."""
        if any(base is holder and overlap(region, weights) for holder, weights in self._weights.values()):
            raise InUseError(
                f"bytes {region.offset}..{region.offset + region.size} of {base!r} hold the weights of a loaded program",
                fix="close that program first, or use other memory",
            )

    def settle(self, ticket: int) -> None:
        """Release a handle, once; a lost device took its handles with it. Under the lock."""
        release = self._releases.pop(ticket, None)
        self._weights.pop(ticket, None)
        self.memory.remove(ticket)
        if release and not self.lost:
            try:
                release()
            except DeviceLostError:
                self.lost = True
                raise

    def close(self) -> None:
        """Release every handle, newest first, then the device; what failed comes out as one ``ExceptionGroup``."""
        if self.foreign:
            self.closed = True
            return
        with self.lock:
            if self.closed:
                return
            errors: list[Exception] = []
            self.memory.warn_live()
            for ticket in sorted(self._releases, reverse=True):
                _collect(errors, lambda ticket=ticket: self.settle(ticket))  # type: ignore[misc]
            _collect(errors, self.driver.close)
            self.closed = True
        if errors:
            raise ExceptionGroup(f"while closing device {self._name}", errors)


def overlap(a: spi.Region, b: spi.Region) -> bool:
    """Whether two regions of one buffer share a byte."""
    return max(a.offset, b.offset) < min(a.offset + a.size, b.offset + b.size)


def _collect(errors: list[Exception], step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - raised in the group, after the other steps
        errors.append(error)


class Child(Closing):
    """A buffer, program or binding: pins what it uses, and is closed with its device at the latest."""

    def __init__(self, device: Device, release: Callable[[], None], uses: Sequence[Child] = ()) -> None:
        self.device = device
        self._ledger = device._ledger
        self._ticket = self._ledger.enter(release)
        self._users = 0
        self._uses: Sequence[Child] = ()
        self._use(uses)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the resource, or the device that owns it, is gone."""
        return self._closed or self._ledger.closed or self._ledger.foreign

    def close(self) -> None:
        """Release it. Safe to call twice. ``InUseError`` while something else needs it."""
        if self.closed:
            return
        with self._ledger.lock:
            if self.closed:
                return
            if self._users:
                raise InUseError(
                    f"{self!r} is used by {self._users} open program(s) or binding(s)",
                    fix="close those first; closing the device closes all of them",
                )
            self._closed = True
            try:
                self._ledger.settle(self._ticket)
            finally:
                self._use(())

    def _use(self, uses: Sequence[Child]) -> None:
        """Pin these instead of those pinned so far."""
        for child in uses:
            child._users += 1
        for child in self._uses:
            child._users -= 1
        self._uses = uses

    @contextmanager
    def _call(self) -> Iterator[spi.DeviceDriver]:
        """Lend the driver while this is open: nothing can close it meanwhile."""
        with self._ledger.call() as driver:
            self._check_open()
            yield driver

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{type(self).__name__} is closed")
