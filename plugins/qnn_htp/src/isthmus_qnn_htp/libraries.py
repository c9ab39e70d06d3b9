"""Find Qualcomm's libraries: by argument, by environment, in the package ``onnxruntime-qnn``, in that order.

Only paths here; nothing is loaded and no vendor package is imported.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
from isthmus.errors import UnavailableError

CORE = "libQnnHtp.so"
SYSTEM = "libQnnSystem.so"
DIRECTORY_VARIABLE = "ISTHMUS_QNN_LIB_DIR"
SDK_VARIABLES = ("QNN_SDK_ROOT", "QAIRT_SDK_ROOT")
PACKAGE = "onnxruntime_qnn"
_FIX = "pip install onnxruntime-qnn, or name the directory of libQnnHtp.so with the device option library_dir"


@attrs.frozen
class Libraries:
    """Where the two libraries are, and what named the place."""

    directory: Path
    origin: str

    @property
    def core(self) -> Path:
        """The HTP backend."""
        return self.directory / CORE

    @property
    def system(self) -> Path:
        """The reader of context binaries' metadata."""
        return self.directory / SYSTEM


def find(library_dir: str | None = None) -> Libraries:
    """The first directory that holds both libraries.

    A directory named by argument or by ``ISTHMUS_QNN_LIB_DIR`` is the only one looked at. ``UnavailableError`` says what
    was searched.
    """
    searched = []
    for origin, directory in _places(library_dir):
        if directory is None:
            searched.append(f"{origin}: not there")
            continue
        absent = [name for name in (CORE, SYSTEM) if not (directory / name).is_file()]
        if not absent:
            return Libraries(directory.resolve(), origin)
        searched.append(f"{origin}: no {' and no '.join(absent)} in {directory}")
    raise UnavailableError(f"Qualcomm's QNN libraries are not here; searched {'; '.join(searched)}", fix=_FIX)


def emulated() -> bool:
    """Whether the libraries of this machine are the x86 model of the chip, not the chip."""
    return platform.machine() in ("x86_64", "AMD64")


def _places(library_dir: str | None) -> Iterator[tuple[str, Path | None]]:
    if library_dir:
        yield "option library_dir", Path(library_dir)
        return
    if named := os.environ.get(DIRECTORY_VARIABLE):
        yield f"variable {DIRECTORY_VARIABLE}", Path(named)
        return
    yield f"variable {DIRECTORY_VARIABLE}", None
    for variable in SDK_VARIABLES:
        root = os.environ.get(variable)
        found = sorted(Path(root, "lib").glob(_sdk_pattern())) if root else []
        yield f"variable {variable}", found[-1] if found else None
    spec = importlib.util.find_spec(PACKAGE)
    locations = spec.submodule_search_locations if spec else None
    yield f"package {PACKAGE}", Path(next(iter(locations))) if locations else None


def _sdk_pattern() -> str:
    """Folder of an SDK's ``lib`` with the libraries of this machine; of several the last by name, the newest compiler."""
    if emulated():
        return "x86_64-linux-clang"
    return "aarch64-android" if hasattr(sys, "getandroidapilevel") else "aarch64-[ou]*"
