"""ONNX graphs with fixed shapes, ready for a backend's compiler.

A graph set is a directory: one ``.onnx`` per entry, weights as external data shared by all of them, assets a pipeline
needs (tokenizer, embedding table), and ``graphset.json``. A single ``.onnx`` file counts as a graph set with the one
entry ``main``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs

from ._files import inside, sha256_file
from .errors import IncompatibleError, InputError

FILE = "graphset.json"
FORMAT = 1


@attrs.frozen
class GraphSet:
    """Uncompiled graphs. ``path`` is the directory that every file name is relative to."""

    path: Path
    graphs: Mapping[str, str]
    """Entry name -> ONNX file."""
    assets: tuple[str, ...] = ()
    """Files the pipeline needs next to the compiled graphs."""
    model: Mapping[str, Any] = attrs.field(factory=dict)
    """``isthmus.models.description.ModelDescription`` as JSON data; empty for plain ONNX."""
    dialect: str = "canonical"
    source_sha256: str = ""
    """Identifies the checkpoint or file the graphs were built from."""

    @classmethod
    def open(cls, path: Path | str) -> GraphSet:
        """Read a graph set directory or an ``.onnx`` file. ``InputError`` says what is wrong with it."""
        path = Path(path)
        if path.is_file():
            if path.suffix != ".onnx":
                raise InputError(
                    f"{path} is not an .onnx file", fix="give an .onnx file or a directory from `isthmus export`"
                )
            return cls(path.parent, {"main": path.name}, source_sha256=sha256_file(path))
        try:
            data = json.loads((path / FILE).read_text("utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{path} is not a graph set: no {FILE} in it", fix="build one with: isthmus export CHECKPOINT -o DIR"
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path / FILE} cannot be read: {error}") from error
        return cls._structure(path, data)

    @classmethod
    def _structure(cls, path: Path, data: Any) -> GraphSet:
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise IncompatibleError(
                f"{path / FILE} is not of format {FORMAT}", fix="build it again with this version: isthmus export"
            )
        try:
            found = _CONVERTER.structure({"path": str(path), **data}, cls)
        except (cattrs.BaseValidationError, TypeError, ValueError) as error:
            raise InputError(f"{path / FILE} is damaged: {'; '.join(cattrs.transform_error(error))}") from error
        for name in [*found.graphs.values(), *found.assets]:
            if not inside(path, name).is_file():
                raise InputError(f"{path / FILE} names {name}, which is not there")
        return found

    def save(self) -> None:
        """Write ``graphset.json`` into ``path``; the graphs and assets are there already."""
        fields = {"format": FORMAT, **_CONVERTER.unstructure(attrs.evolve(self))}
        del fields["path"]
        (self.path / FILE).write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", "utf-8")

    def digest(self) -> str:
        """Hex SHA-256 over all files of the set, for caches and manifests."""
        total = hashlib.sha256()
        files = (
            sorted(f for f in self.path.rglob("*") if f.is_file())
            if (self.path / FILE).exists()
            else [self.path / name for name in self.graphs.values()]
        )
        for file in files:
            total.update(f"{file.relative_to(self.path).as_posix()}\0{sha256_file(file)}\n".encode())
        return total.hexdigest()


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
_CONVERTER.register_structure_hook(Path, lambda value, _: Path(value))
_CONVERTER.register_unstructure_hook(Path, str)
