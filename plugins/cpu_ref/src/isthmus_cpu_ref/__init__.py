"""Backend `cpu`: ONNX Runtime on the host CPU, and ``onnx.reference`` in float64 as the truth."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.hookspecs import hookimpl

from .backend import CpuBackend


@hookimpl
def isthmus_backends() -> Iterator[CpuBackend]:
    """Yield the backend with its devices ``cpu:0`` and ``cpu:reference``."""
    yield CpuBackend()
