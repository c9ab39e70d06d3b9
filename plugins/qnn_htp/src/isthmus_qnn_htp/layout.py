"""What is inside an artifact of ``qnn_htp``: context binaries, and ``program.json`` that says what they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs
from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError, InputError

PROGRAM = "program.json"
CONTEXT = "context.bin"
FORMAT = 1


@attrs.frozen
class BinaryRecord:
    """One context binary. All its graphs are loaded together."""

    graphs: Mapping[str, str]
    """Graph name inside the binary -> entry name of the artifact."""


@attrs.frozen
class ProgramRecord:
    """Contents of ``program.json``. Tensors of a graph carry the names of the entry's spec."""

    binaries: Mapping[str, BinaryRecord]
    """File name below the artifact -> what it holds. Every entry is in exactly one of them."""
    soc: int
    """SoC model id the binaries were compiled for, e.g. 57."""
    arch: int
    """Hexagon architecture they were compiled for, e.g. 75."""
    sdk: str
    """Version of the SDK that compiled them, e.g. ``2.51.0.260929181845``; a runtime must be as new."""
    vtcm_mb: int | None = None
    """VTCM their graphs were compiled to use, MiB; ``None``: all the chip has."""

    def write(self, directory: Path) -> None:
        """Write ``program.json`` into ``directory``."""
        fields = {"format": FORMAT, **_CONVERTER.unstructure(self)}
        (directory / PROGRAM).write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", "utf-8")

    def locate(self, entry: str) -> tuple[str, str]:
        """File and graph name of an entry."""
        for file, record in self.binaries.items():
            for graph, name in record.graphs.items():
                if name == entry:
                    return file, graph
        raise InputError(f"{PROGRAM} holds no graph for entry {entry!r}", fix="compile the artifact again")


def read_program(artifact: Artifact) -> ProgramRecord:
    """Read and check an artifact's ``program.json``.

    ``InputError``: it is damaged. ``IncompatibleError``: of another format, or its graphs are not the manifest's entries.
    """
    path = artifact.file(PROGRAM)
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", fix="compile the artifact again") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise IncompatibleError(f"{path} is not of format {FORMAT}", fix="compile the artifact again with this version")
    try:
        record = _CONVERTER.structure(data, ProgramRecord)
    except (cattrs.BaseValidationError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {'; '.join(cattrs.transform_error(error))[:400]}") from error
    for file in record.binaries:
        artifact.file(file)  # in the manifest, so its hash was checked
    held = sorted(entry for binary in record.binaries.values() for entry in binary.graphs.values())
    if held != sorted(artifact.entries):
        raise IncompatibleError(f"{path} holds entries {held}, the manifest states {sorted(artifact.entries)}")
    return record


def _exactly(kind: type) -> Any:
    def check(value: Any, _: type) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not of type {kind.__name__}")
        return value

    return check


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_CONVERTER.register_structure_hook(int, _exactly(int))
_CONVERTER.register_structure_hook(str, _exactly(str))
