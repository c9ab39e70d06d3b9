"""What the two compilers are given, and what they give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
import onnx
from isthmus.types import EntrySpec

from .binary import ContextBinary
from .options import CompileOptions
from .targets import Target


@attrs.frozen
class Prepared:
    """One entry, checked and edited for the compiler."""

    name: str
    model: onnx.ModelProto
    """Without its external weights."""
    folder: Path
    """What the locations of the external weights are relative to."""
    spec: EntrySpec
    """Its scales, if it has quantised inputs or outputs, come from the binary."""


@attrs.frozen
class Built:
    """One binary, below the output directory."""

    file: str
    graphs: Mapping[str, str]
    """Graph name in the binary -> entry."""
    metadata: ContextBinary
    toolchain: Mapping[str, str]
    """Tools and versions, without the SDK's, which is in the metadata."""
    notes: tuple[str, ...]


Compiler = Callable[[Sequence[Prepared], Target, Path, Path, CompileOptions], Built]
"""Compiles entries into one binary: entries, chip, working directory, output directory, options."""


def binary_file(entries: Sequence[Prepared]) -> str:
    """File name of the binary of some entries. No entry has a ``+`` in its name."""
    return "+".join(entry.name for entry in entries) + ".bin"
