"""A backend in numpy. Read `backend.py`, `compile.py`, `driver.py`, `operators.py` in this order."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus import hookimpl

from .backend import ExampleBackend


@hookimpl
def isthmus_backends() -> Iterator[ExampleBackend]:
    """The one backend of this plugin."""
    yield ExampleBackend()
