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
    if os.path.lexists(path):
        raise InputError(f"{path} already exists", fix="choose another output directory, or remove this one")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be made: {error}", fix="choose another output directory") from error
    try:
        work = private / path.name  # below the private one, so that its mode follows the umask
        work.mkdir()
        yield work
        try:
            for file in [*work.rglob("*"), work]:
                _sync(file)
            work.rename(path)
            _sync(path.parent)
        except OSError as error:
            raise InputError(f"{path} cannot be finished: {error}", fix="choose another output directory") from error
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def inside(root: Path, name: str) -> Path:
    """``root / name``, or ``InputError`` if that is absolute or leaves ``root``, by ``..`` or by a link."""
    path = root / name
    try:
        stays = bool(name) and not Path(name).is_absolute() and path.resolve().is_relative_to(root.resolve())
        path.is_file()  # raises for a name no file system takes
    except (OSError, ValueError) as error:
        raise InputError(f"{name!r:.200} is not a file name: {error}") from error
    if not stays:
        raise InputError(f"{name!r} leaves the directory {root}", why="the file that names it was damaged or forged")
    return path
