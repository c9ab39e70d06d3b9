"""Isthmus backend ``ascend``: Huawei Ascend through ATC and AscendCL, and a simulator that must be named."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.hookspecs import hookimpl
from isthmus.spi import Backend


@hookimpl
def isthmus_backends() -> Iterable[Backend]:
    """Yield the backend."""
    from .backend import AscendBackend

    yield AscendBackend()
