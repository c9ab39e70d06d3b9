"""Compiled models on disk.

An artifact is a directory: the files a backend's compiler wrote, the assets of the model, and ``manifest.json`` with
the SHA-256 of every other file. It is verified before a vendor library sees one byte, because vendors' formats carry
no checksum: a flipped byte in a QNN context binary loads and computes something else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ._files import inside, sha256_file
from ._json import DAMAGE, explain, read_json, strict_converter, write_json
from .errors import CompileError, IncompatibleError, InputError, IntegrityError
from .graphset import GraphSet
from .spi import CompileReport
from .types import EntrySpec, MemoryRequirements, Reality, Tolerance

MANIFEST = "manifest.json"
FORMAT = 1
ASSETS = "assets"


@attrs.frozen
class FileRecord:
    """Size and hash of one file of an artifact."""

    size: int
    sha256: str


@attrs.frozen
class Manifest:
    """What an artifact says of itself. ``Artifact.open`` checks the files against it."""

    isthmus: str
    """Version of the core that wrote it."""
    backend: str
    plugin: str
    """Version of the plugin that compiled it."""
    target: str
    reality: Reality
    toolchain: Mapping[str, str]
    options: Mapping[str, Any]
    source_sha256: str
    """Of the checkpoint or file the graphs were built from."""
    graphs_sha256: str
    """Of the graph set that was compiled."""
    dialect: str
    entries: Mapping[str, EntrySpec]
    memory: MemoryRequirements
    tolerance: Tolerance
    placement: Mapping[str, str]
    notes: tuple[str, ...]
    model: Mapping[str, Any]
    """``isthmus.models.description.ModelDescription`` as JSON data; empty for plain ONNX."""
    files: Mapping[str, FileRecord]


@attrs.frozen
class Artifact:
    """A compiled model on disk, verified. Only the backend that made it can read its files."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str) -> Artifact:
        """Read and verify an artifact: every file is there, has its size, and hashes to what the manifest says.

        ``InputError``: not an artifact, or a manifest that is damaged. ``IncompatibleError``: written by a newer
        version. ``IntegrityError``: a file is missing, truncated or changed.
        """
        path = Path(path)
        manifest = _read_manifest(path)
        for name, record in manifest.files.items():
            _verify(inside(path, name), name, record)
        return cls(path, manifest)

    def file(self, name: str) -> Path:
        """Path of one of the artifact's files. ``IntegrityError`` if the manifest does not list it."""
        if name not in self.manifest.files:
            raise IntegrityError(f"{self.path} has no file {name!r}")
        return inside(self.path, name)

    @property
    def entries(self) -> Mapping[str, EntrySpec]:
        """Entries by name."""
        return self.manifest.entries

    @property
    def nbytes(self) -> int:
        """Size on disk without the manifest."""
        return sum(f.size for f in self.manifest.files.values())


def finish_artifact(
    out: Path,
    source: GraphSet,
    report: CompileReport,
    *,
    isthmus: str,
    backend: str,
    plugin: str,
    target: str,
    options: Mapping[str, Any],
) -> Artifact:
    """Copy the source's assets below ``out``, write the manifest over all that is there, and read it back."""
    if (out / MANIFEST).exists():
        raise CompileError(f"backend {backend} wrote a file named {MANIFEST}, which is the core's")
    for name in source.assets:
        copy = out / ASSETS / name
        if copy.exists():
            raise CompileError(f"backend {backend} wrote {ASSETS}/{name}, which is the place of the model's own {name}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(inside(source.path, name), copy)
    files = {
        f.relative_to(out).as_posix(): FileRecord(f.stat().st_size, sha256_file(f))
        for f in sorted(out.rglob("*"))
        if f.is_file()
    }
    manifest = Manifest(
        isthmus=isthmus,
        backend=backend,
        plugin=plugin,
        target=target,
        reality=report.reality,
        toolchain=dict(report.toolchain),
        options=options,
        source_sha256=source.source_sha256,
        graphs_sha256=source.digest(),
        dialect=source.dialect,
        entries=dict(report.entries),
        memory=report.memory,
        tolerance=report.tolerance,
        placement=dict(report.placement),
        notes=report.notes,
        model=source.model,
        files=files,
    )
    write_json(out / MANIFEST, {"format": FORMAT, **manifest_as_json(manifest)})
    return Artifact(out, _read_manifest(out))


def manifest_as_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON-ready data."""
    fields: dict[str, Any] = _CONVERTER.unstructure(manifest)
    return fields


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    again = "compile it again with: isthmus compile"
    try:
        data = read_json(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{path} is not an artifact: no {MANIFEST} in it",
            fix="make one with: isthmus compile GRAPHS --backend NAME -o DIR",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read: {error}", fix=again) from error
    version = data.pop("format", None) if isinstance(data, dict) else None
    if type(version) is not int or version < 1:
        raise InputError(f"{file} is not a manifest: it has no format number", fix=again)
    if version > FORMAT:
        raise IncompatibleError(
            f"{file} is of format {version}; this version reads up to {FORMAT}",
            why=f"it was written by isthmus {data.get('isthmus', '(unknown)')!s:.40}",
            fix="pip install --upgrade isthmus, or compile the artifact again with this version",
        )
    try:
        return _CONVERTER.structure(data, Manifest)
    except DAMAGE as error:
        raise InputError(f"{file} is damaged: {explain(error)}", fix=again) from error


def _verify(file: Path, name: str, record: FileRecord) -> None:
    again = "copy or compile the artifact again"
    if not file.is_file():
        raise IntegrityError(f"{name} is missing from the artifact {file.parent}", fix=again)
    size = file.stat().st_size
    if size != record.size:
        raise IntegrityError(
            f"{file} has {size} bytes, the manifest says {record.size}", why="an incomplete copy", fix=again
        )
    try:
        found = sha256_file(file)
    except OSError as error:
        raise IntegrityError(f"{file} cannot be read: {error}", fix=again) from error
    if found != record.sha256:
        raise IntegrityError(
            f"{file} has changed: SHA-256 {found[:16]}..., the manifest says {record.sha256[:16]}...", fix=again
        )


def _link_or_copy(source: Path, copy: Path) -> None:
    """Hard-link where the file system allows it: an embedding table can be gigabytes, and neither side is edited."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copyfile(source, copy)


_CONVERTER = strict_converter()
