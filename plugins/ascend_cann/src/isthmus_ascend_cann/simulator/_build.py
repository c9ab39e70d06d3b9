"""Builds the simulated `libascendcl.so` with the C compiler of this machine, once, into the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
from isthmus.errors import UnavailableError
from isthmus.types import VendorStatus

NATIVE = Path(__file__).parent / "native"
OWN_HEADERS = NATIVE / "include"
NAME = "libascendcl.so"
_FLAGS = ("-std=gnu11", "-O2", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{NAME}")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


def library(headers: Path | None = None) -> Path:
    """Path of the simulated ``libascendcl.so``, built if this combination of sources and compiler is new.

    ``headers`` is an include directory with ``acl/acl.h``; by default those of an installed torch-npu wheel, so that a
    drift of the vendor's API does not compile, and our own declarations when there is none.
    ``UnavailableError``: no C compiler here, not Linux, or the sources do not compile against the headers.
    """
    if not sys.platform.startswith("linux"):
        raise UnavailableError(
            f"the Ascend simulator runs on Linux, not on {sys.platform}", fix="use a Linux machine or container"
        )
    chosen = headers if headers is not None else vendor_headers() or OWN_HEADERS
    command = compile_command(chosen)
    target = _cache() / _key(command, chosen) / NAME
    if not target.is_file():
        _build(command, target)
    return target


def compile_command(headers: Path) -> list[str]:
    """The compiler's arguments without ``-o``. The worker's interpreter and script are compiled in, so that consumers
    that are no Python programs find them.
    """
    worker = [f'-DSIM_PYTHON="{sys.executable}"', f'-DSIM_EXECUTOR="{Path(__file__).with_name("executor.py")}"']
    sources = map(str, sorted(NATIVE.glob("*.c")))
    return [find_compiler(), *_FLAGS, *_WARNINGS, *worker, f"-I{headers}", f"-I{NATIVE}", *sources]


def vendor_headers() -> Path | None:
    """Include directory of an installed torch-npu wheel that carries the ACL headers as C; it is not imported."""
    found = importlib.util.find_spec("torch_npu")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(root) / "include" / "acl" / "acl.h").is_file():
            return Path(root) / "include"
    return None


def find_compiler() -> str:
    """``$CC``, or ``cc``; ``UnavailableError`` if there is none."""
    name = os.environ.get("CC", "cc")
    found = shutil.which(name)
    if found is None:
        raise UnavailableError(
            f"the Ascend simulator needs a C compiler; {name} is not on the PATH",
            why="it is built from source on first use",
            fix="apt-get install gcc libc6-dev (or set CC)",
        )
    return found


def _cache() -> Path:
    return platformdirs.user_cache_path("isthmus") / "ascend-simulator"


def _key(command: list[str], headers: Path) -> str:
    digest = hashlib.sha256(repr(command).encode())
    digest.update(subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout)
    sources = [*NATIVE.glob("*.[ch]"), *(headers / "acl").rglob("*.h")]
    for file in sorted(sources):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _build(command: list[str], target: Path) -> None:
    """Compile beside the target and rename, so that a second process never loads half a library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        out = Path(directory) / NAME
        done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(
                "the Ascend simulator does not compile here",
                why="the compiler is too old, lacks the C library's headers, or the ACL headers have changed",
                fix="apt-get install gcc libc6-dev, or report this with the text above",
                status=VendorStatus(command[0], done.returncode, text=done.stderr.strip()[:2000]),
            )
        out.rename(target)
