"""What the compiling process is asked, and what it answers: JSON files in its working directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from cattrs.preconf.json import make_converter

REQUEST = "request.json"
ANSWER = "answer.json"


@attrs.frozen
class EntryJob:
    """One graph to compile."""

    name: str
    model: str
    """ONNX file, relative to the working directory."""
    folder: str
    """Directory of its external weights, relative too; the compiler derives the graph's name in the binary from it."""


@attrs.frozen
class Job:
    """Entries for one binary. With more than one of them, their equal weights are shared."""

    entries: tuple[EntryJob, ...]
    provider_options: Mapping[str, str]


@attrs.frozen
class Compiled:
    """What came of one entry."""

    name: str
    nodes: int
    """Nodes placed on the HTP, after ONNX Runtime's optimisations: all there are."""
    seconds: float


@attrs.frozen
class Answer:
    """The end of a job that did not crash."""

    compiled: tuple[Compiled, ...] = ()
    binary: str = ""
    """File of the binary, relative to the working directory."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """Of the binary: ``binary.to_json``."""
    versions: Mapping[str, str] = attrs.field(factory=dict)
    peak_bytes: int = 0
    """Peak resident memory of the process."""
    failed: str = ""
    """The entry that failed; empty on success."""
    error: str = ""
    """The exception's text."""


def context_model(entry: str) -> str:
    """File that ONNX Runtime writes for an entry: one node, which names the binary and the graph in it."""
    return f"{entry}_ctx.onnx"


def write_json(path: Path, value: Job | Answer) -> None:
    """Write the file whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(_CONVERTER.dumps(value), "utf-8")
    part.rename(path)


def read_job(path: Path) -> Job:
    """Read what the parent wrote."""
    job: Job = _CONVERTER.loads(path.read_text("utf-8"), Job)
    return job


def read_answer(path: Path) -> Answer | None:
    """Read what the process wrote; ``None`` if it died before it could."""
    return _CONVERTER.loads(path.read_text("utf-8"), Answer) if path.exists() else None


_CONVERTER = make_converter()
