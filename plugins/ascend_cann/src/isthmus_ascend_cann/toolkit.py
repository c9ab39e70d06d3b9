"""Where CANN is installed: found from the environment, then in the default places. Reads files only."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

ENVIRONMENT = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Set by the ``set_env.sh`` of newer and older toolkits."""
DEFAULTS = (
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/ascend-toolkit/latest",
    "/usr/local/Ascend/latest",
    "/usr/local/Ascend/nnrt/latest",
    "~/Ascend/cann",
    "~/Ascend/ascend-toolkit/latest",
    "~/Ascend/latest",
    "~/Ascend/nnrt/latest",
)
"""The vendor's own defaults, as root and as a user."""


def candidates() -> list[tuple[str, Path]]:
    """Every place CANN may be, with where the idea came from, in the order they are tried."""
    named = [(name, Path(os.environ[name])) for name in ENVIRONMENT if os.environ.get(name)]
    return named + [("default", Path(p).expanduser()) for p in DEFAULTS]


def roots() -> list[Path]:
    """The candidates that exist."""
    return [path for _, path in candidates() if path.is_dir()]


def searched(what: str) -> str:
    """One sentence for errors: where ``what`` was looked for."""
    unset = [name for name in ENVIRONMENT if not os.environ.get(name)]
    places = ", ".join(str(path) for _, path in candidates())
    return f"searched for {what} in {places}" + (f"; not set: {', '.join(unset)}" if unset else "")


def libraries(name: str) -> list[Path]:
    """Absolute paths of a library of CANN, in search order. Link-time stubs (``devlib``) are not listed."""
    return [p for root in roots() for sub in ("lib64", "runtime/lib64") if (p := root / sub / name).is_file()]


def atc() -> Path | None:
    """The ``atc`` program: from PATH, else from a toolkit."""
    if found := shutil.which("atc"):
        return Path(found)
    places = (root / sub / "atc" for root in roots() for sub in ("bin", "compiler/bin", "atc/bin"))
    return next((p for p in places if os.access(p, os.X_OK) and p.is_file()), None)


def version_of(root: Path) -> str | None:
    """Version of the CANN below ``root``, from whichever of its version files is there; ``None`` if none is."""
    arch = f"{platform.machine()}-linux"
    places = [
        root / arch / "ascend_toolkit_install.info",
        root / arch / "ascend_nnrt_install.info",
        *(root / part / "version.info" for part in ("compiler", "runtime", "opp", ".")),
        root / "version.cfg",
    ]
    return next((v for p in places if (v := read_version(p))), None)


def driver_version() -> str | None:
    """Version of the NPU driver on this host."""
    places = ("/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/version.info")
    return next((v for p in places if (v := read_version(Path(p)))), None)


def platform_names() -> set[str]:
    """Chips the installed toolkits can compile for."""
    return {f.stem for root in roots() for f in root.glob("*/data/platform_config/Ascend*.ini")} | {
        f.stem for root in roots() for f in root.glob("data/platform_config/Ascend*.ini")
    }


def read_version(path: Path) -> str | None:
    """The version a vendor's version file states: ``Version=7.6.0:8.1.RC1`` (the second is CANN's) or ``=8.5.0``."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(
        r"^\s*(?:\w+_running_)?version\s*=\s*\[?([\w.\-]+)(?::([\w.\-]+))?", text, re.MULTILINE | re.IGNORECASE
    )
    return (match.group(2) or match.group(1)) if match else None
