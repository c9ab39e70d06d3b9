"""ONNX graphs with fixed shapes, ready for a backend's compiler.

A graph set is a directory: one ``.onnx`` per entry, weights as external data shared by all of them, assets a pipeline
needs (tokenizer, embedding table), and ``graphset.json``. A single ``.onnx`` file counts as a graph set with the one
entry ``main``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ._files import inside, sha256_file
from ._json import DAMAGE, explain, read_json, strict_converter, write_json
from .errors import IncompatibleError, InputError, UnavailableError

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

    def __attrs_post_init__(self) -> None:
        if not self.graphs:
            raise InputError(f"{self.path} holds no graph")
        # Compilers name files after entries.
        if bad := [name for name in self.graphs if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII)]:
            raise InputError(f"entry name {bad[0]!r:.80}", fix="use letters, digits, '_', '-' and '.'")
        if len(set(self.assets)) != len(self.assets):
            raise InputError(f"{self.path} names an asset twice: {', '.join(sorted(self.assets))}")

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
            data = read_json(path / FILE)
        except FileNotFoundError as error:
            raise InputError(
                f"{path} is not a graph set: no {FILE} in it", fix="build one with: isthmus export CHECKPOINT -o DIR"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path / FILE} cannot be read: {error}") from error
        return cls._structure(path, data)

    @classmethod
    def _structure(cls, path: Path, data: Any) -> GraphSet:
        format = data.pop("format", None) if isinstance(data, dict) else None
        if type(format) is not int or format != FORMAT:
            raise IncompatibleError(
                f"{path / FILE} is not of format {FORMAT}", fix="build it again with this version: isthmus export"
            )
        try:
            if "path" in data:
                raise ValueError("extra fields found (path)")
            found = _CONVERTER.structure({**data, "path": path}, cls)
        except DAMAGE as error:
            raise InputError(f"{path / FILE} is damaged: {explain(error)}") from error
        for name in [*found.graphs.values(), *found.assets]:
            if not inside(path, name).is_file():
                raise InputError(f"{path / FILE} names {name}, which is not there")
        return found

    def save(self) -> None:
        """Write ``graphset.json`` into ``path``; the graphs and assets are there already."""
        write_json(self.path / FILE, self._fields())

    def digest(self) -> str:
        """Hex SHA-256 over all the set consists of, wherever it lies: for caches and manifests."""
        total = hashlib.sha256(json.dumps(self._fields(), sort_keys=True).encode())
        files = [self.path / name for name in self.assets]
        for name in self.graphs.values():
            files += _with_external_data(self.path, name)
        for file in sorted(set(files)):
            total.update(f"{file.relative_to(self.path).as_posix()}\0{sha256_file(file)}\n".encode())
        return total.hexdigest()

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"format": FORMAT, **_CONVERTER.unstructure(self)}
        del fields["path"]
        return fields


def _with_external_data(root: Path, name: str) -> list[Path]:
    """A graph's file and those its initializers live in: a change of weights is a change of the graph."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError as error:
        raise UnavailableError("reading ONNX files needs the onnx package", fix="pip install isthmus[graph]") from error
    try:
        model = onnx.load(root / name, load_external_data=False)
    except (DecodeError, OSError) as error:
        raise InputError(f"{root / name} is not an ONNX model: {error}") from error
    places = [e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"]
    files = [inside(root, place) for place in dict.fromkeys(places)]
    if missing := [f for f in files if not f.is_file()]:
        raise InputError(f"{root / name} keeps weights in {missing[0].name}, which is not there")
    return [root / name, *files]


_CONVERTER = strict_converter()
_CONVERTER.register_structure_hook(Path, lambda value, _: value)
_CONVERTER.register_unstructure_hook(Path, str)
