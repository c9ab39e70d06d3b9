"""Facts for ``isthmus doctor``: what of CANN, driver, toolkit and torch_npu is here, and whether it fits together.

Reads files, the environment and package metadata; imports neither torch nor a vendor library, and never raises.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from . import _lib, soc, toolkit, torch_npu

_VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_OPP_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "TE_PARALLEL_COMPILER",
    "MAX_COMPILE_CORE_NUMBER",
    torch_npu.VARIABLE,
)
_PYTHON_PACKAGES = ("attrs", "cffi", "decorator", "numpy", "protobuf", "psutil", "PyYAML", "scipy", "sympy")
"""What ATC's operator compilers import; images without them fail with E40021 (cann-container-image #70)."""


UNTESTED = (
    "everything: this plugin has only met the simulator",
    "an .om of a real atc: its layout is known from GE's sources",
    "external weights, gears and AIPP with a real GE",
)
"""What no test could try."""


def facts() -> Mapping[str, str]:
    """The facts, by name."""
    versions = {str(root): v for root in toolkit.roots() if (v := toolkit.version_of(root))}
    cann = next(iter(versions.values()), None)
    libraries = toolkit.libraries(_lib.NAME)
    found = {
        "simulator": f"named by {_lib.SIMULATOR_VARIABLE}" if _lib.simulator_named() else "not named, so not used",
        "CANN": ", ".join(f"{v} in {p}" for p, v in versions.items()) or "none found",
        "searched": ", ".join(str(path) for _, path in toolkit.candidates()),
        "driver": toolkit.driver_version() or "no version file",
        "devices": _devices(),
        _lib.NAME: ", ".join(map(str, libraries)) or "none found in a toolkit",
        "atc": str(toolkit.atc() or "none found"),
        "npu-smi": shutil.which("npu-smi") or "none in PATH",
        "targets": f"{len(soc.names())}; of the installed toolkit: {', '.join(sorted(toolkit.platform_names())) or 'none'}",
        "Python packages of CANN": python_packages(_installed(), cann),
        "torch set": torch_npu.judge(_version("torch"), _version("torch_npu"), cann),
    }
    if npu := _version("torch_npu"):
        found["torch_npu allocator"] = "; ".join(torch_npu.check_environment(os.environ, npu)) or "no problem seen"
    found["untested on an NPU"] = "; ".join(UNTESTED)
    return {**found, **{name: os.environ.get(name, "not set") for name in _VARIABLES}}


def python_packages(installed: Mapping[str, str], cann: str | None) -> str:
    """What CANN's Python parts lack here, or have too new."""
    missing = [name for name in _PYTHON_PACKAGES if name.lower() not in installed]
    said = [f"missing: {', '.join(missing)}"] if missing else []
    numpy = installed.get("numpy", "")
    if cann is not None and numpy and int(numpy.split(".")[0]) >= 2 and _older_than_8_3(cann):
        said.append(f"numpy {numpy}: CANN {cann} needs numpy<2 and hides it behind error 500001")
    return "; ".join(said) or "all there"


def _older_than_8_3(cann: str) -> bool:
    numbers = [int(n) for n in re.findall(r"\d+", cann)[:2]]
    return numbers < [8, 3]


def _devices() -> str:
    found = sorted(p.name for p in Path("/dev").glob("davinci[0-9]*"))
    return ", ".join(found) or "no /dev/davinci*"


def _installed() -> dict[str, str]:
    return {name.lower(): version for name in _PYTHON_PACKAGES if (version := _version(name)) is not None}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
