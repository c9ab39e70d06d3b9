"""What callers start with: ``compile`` and ``open_device``.

Everything closable is a context manager and ``close`` is idempotent. A device keeps a ledger of the handles it was
given; closing it releases them, newest first, all of them, and raises what failed as one ``ExceptionGroup``. The
garbage collector never calls a vendor library: a forgotten object warns and its handle waits in the ledger, because a
finaliser can run on any thread. Arguments are checked above the driver, once, before any vendor call.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from ._files import new_directory
from .artifact import Artifact, finish_artifact
from .buffer import Buffer, View
from .device import Device
from .errors import InputError, UnsupportedError
from .graphset import GraphSet
from .options import parse_options
from .program import Binding, Program
from .registry import registry

__all__ = ["Binding", "Buffer", "Device", "Program", "View", "compile", "open_device"]


def compile(
    backend: str,
    source: GraphSet | Path | str,
    out: Path | str,
    *,
    target: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Artifact:
    """Compile a graph set (or one ``.onnx`` file) into the new directory ``out``.

    ``target`` defaults to the backend's first. ``InputError``: unknown option or target, or ``out`` exists.
    ``CompileError``: the backend refuses the graph. On any failure ``out`` does not exist.
    """
    plugin = registry().backend(backend)
    parsed: Any = parse_options(plugin.compile_options, options or {}, f"compile option of {backend}")
    targets = plugin.targets()
    target = target or (targets[0] if targets else None)
    if target is None:
        raise UnsupportedError(f"backend {backend} has no compiler on this machine", fix="isthmus doctor")
    target = next((t for t in targets if t.lower() == target.lower()), target)  # the plugin's own spelling
    plugin.dialect(target)  # refuses an unknown target before any work is done
    graphs = source if isinstance(source, GraphSet) else GraphSet.open(source)
    with new_directory(Path(out)) as work:
        report = plugin.compile(graphs, target, work, parsed)
        artifact = finish_artifact(
            work,
            graphs,
            report,
            isthmus=version("isthmus"),
            backend=backend,
            plugin=plugin.info.plugin_version,
            target=target,
            options={k: str(v) for k, v in (options or {}).items()},
        )
    return attrs.evolve(artifact, path=Path(out))


def open_device(name: str, *, options: Mapping[str, object] | None = None) -> Device:
    """Open ``"backend"`` (its default device) or ``"backend:device"``, e.g. ``"cpu"`` or ``"cpu:reference"``."""
    backend_name, _, device_name = name.partition(":")
    backend = registry().backend(backend_name)
    parsed: Any = parse_options(backend.device_options, options or {}, f"device option of {backend_name}")
    devices = backend.devices()
    if not devices:
        raise UnsupportedError(f"backend {backend_name} lists no device here", fix="isthmus doctor")
    info = next((d for d in devices if d.name == device_name), None) if device_name else devices[0]
    if info is None:
        raise InputError(
            f"backend {backend_name} has no device {device_name!r}; it has: {', '.join(d.name for d in devices)}",
            fix="isthmus backends",
        )
    return Device(info, backend.open(info, parsed))
