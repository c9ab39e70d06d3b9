"""The one tree of errors. Nothing else leaves a plugin or the public API.

A message has three parts: what happened with its figures, why it probably did, and the next step.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from .types import VendorStatus


class IsthmusError(Exception):
    """Base class.

    ``what`` happened, ``why`` it probably did, ``fix`` is the next step (a command where there is one), ``status``
    holds the vendor's own report where a vendor call failed. ``exit_code`` is what the CLI returns.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self, what: str, *, why: str | None = None, fix: str | None = None, status: VendorStatus | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.status = status

    def __str__(self) -> str:
        lines = [self.what]
        if self.status is not None:
            code = "" if self.status.code is None else f" -> {self.status.code}"
            lines.append(f"  vendor: {self.status.call}{code} {self.status.symbol} {self.status.text}".rstrip())
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: ``error``, ``what``, ``why``, ``fix``, ``vendor``."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "vendor": None if self.status is None else attrs.asdict(self.status),
        }


class InputError(IsthmusError, ValueError):
    """What the caller gave cannot be used: an argument, an option, a file."""


class UnavailableError(IsthmusError):
    """The vendor library, the compiler or the hardware is not here."""

    exit_code: ClassVar[int] = 3


class IncompatibleError(IsthmusError):
    """Versions or targets disagree: plugin and core, artifact and device, artifact and SDK."""


class IntegrityError(IncompatibleError):
    """A file is not the one that was written: missing, truncated or changed."""


class UnsupportedError(IsthmusError):
    """The device, the backend or this version does not have the ability asked for."""


class CompileError(IsthmusError):
    """The model cannot be compiled for this target."""


class OutOfMemoryError(IsthmusError, MemoryError):
    """Not enough memory of the kind asked for."""

    exit_code: ClassVar[int] = 1


class ExecutionError(IsthmusError):
    """The device failed while running; its other programs may still be good."""

    exit_code: ClassVar[int] = 3


class DeviceLostError(ExecutionError):
    """The device is gone: only ``close`` is still allowed, then open it again."""


class ClosedError(IsthmusError, RuntimeError):
    """The object, or the device that owns it, has been closed."""


class InUseError(IsthmusError):
    """The object cannot be closed while another one needs it."""
