"""From a QNN status code to one of our errors, with cause and next step."""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files

import attrs
from isthmus.errors import (
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    IntegrityError,
    IsthmusError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
)
from isthmus.explain import Cause
from isthmus.types import VendorStatus

_KINDS: dict[str, type[IsthmusError]] = {
    "memory": OutOfMemoryError,
    "incompatible": IncompatibleError,
    "integrity": IntegrityError,
    "unavailable": UnavailableError,
    "unsupported": UnsupportedError,
    "execution": ExecutionError,
    "lost": DeviceLostError,
}


@attrs.frozen
class Code:
    """What a status code says; the row of ``data/codes.toml``."""

    code: int
    symbol: str
    kind: str
    meaning: str
    causes: tuple[Cause, ...]
    catch_all: bool = False


@functools.cache
def codes() -> dict[int, Code]:
    """The table, by code."""
    text = files(__package__).joinpath("data", "codes.toml").read_text("utf-8")
    rows = [
        Code(**{**row, "causes": tuple(Cause(**cause) for cause in row["causes"])})
        for row in tomllib.loads(text)["code"]
    ]
    return {row.code: row for row in rows}


def vendor_error(call: str, code: int, text: str, doing: str) -> IsthmusError:
    """The error for ``code`` of ``call`` while ``doing`` something; ``text`` is what ``errorGetMessage`` says."""
    symbol, _, rest = text.partition(": ")
    row = codes().get(code)
    likeliest = row.causes[0] if row else Cause("see the log of isthmus.qnn (option log_level)")
    return (_KINDS[row.kind] if row else ExecutionError)(
        f"QNN refused to {doing}",
        why=likeliest.why,
        fix=likeliest.fix or None,
        status=VendorStatus(call, code, symbol if rest else "", rest or text),
    )
