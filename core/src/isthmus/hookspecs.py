"""The plugin hook. There is one; a second needs an ADR."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .spi import Backend

hookspec = pluggy.HookspecMarker("isthmus")
hookimpl = pluggy.HookimplMarker("isthmus")


@hookspec
def isthmus_backends() -> Iterable[Backend]:  # type: ignore[empty-body]
    """Yield the plugin's backends. Cheap: no vendor library, no device.

    Example::

        @hookimpl
        def isthmus_backends():
            yield MyBackend()
    """
