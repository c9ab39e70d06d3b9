"""Backend plugin for Qualcomm QNN on Hexagon (HTP), and its x86 emulator."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.hookspecs import hookimpl
from isthmus.spi import Backend


@hookimpl
def isthmus_backends() -> Iterable[Backend]:
    """Yield ``qnn_htp``."""
    from .backend import QnnHtp

    yield QnnHtp()
