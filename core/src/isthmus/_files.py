"""Files that are either whole or absent: write beside, fsync, rename."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, in constant memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling directory; on success sync it and rename it to ``path``, else remove it.

    ``InputError`` if ``path`` exists: nothing is ever overwritten.
    """
    path = path.absolute()
    if path.exists():
        raise InputError(f"{path} already exists", fix="choose another output directory, or remove this one")
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield work
        work.chmod(0o755)  # mkdtemp makes it private
        for file in [*work.rglob("*"), work]:
            _sync(file)
        try:
            work.rename(path)
        except OSError as error:
            raise InputError(f"{path} appeared while it was being written: {error}") from error
        _sync(path.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def inside(root: Path, name: str) -> Path:
    """``root / name``, or ``InputError`` if that leaves ``root`` or passes through a link."""
    path = root / name
    if not name or Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{name!r} leaves the directory {root}", why="the file that names it was damaged or forged")
    return path
