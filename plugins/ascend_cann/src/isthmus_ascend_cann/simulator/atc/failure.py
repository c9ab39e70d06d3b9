"""How `atc` says that it failed."""

from __future__ import annotations

import os
from datetime import datetime


class AtcError(Exception):
    """A failure with the vendor's message code."""

    def __init__(self, code: str, title: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.title = title
        self.text = text

    def block(self) -> str:
        """The message in the layout of current CANN releases."""
        now = datetime.now().strftime("%Y-%m-%d-%H:%M:%S.%f")
        stamp = f"{now[:-3]}.{now[-3:]}"
        return f"[PID: {os.getpid()}] {stamp} {self.title}({self.code}): {self.text}"


def bad_value(flag: str, value: object, reason: str) -> AtcError:
    """E10001: a flag has a value that it cannot have."""
    return AtcError(
        "E10001", "Config_Error_Invalid_Argument", f"Value [{value}] for parameter [--{flag}] is invalid. {reason}"
    )
