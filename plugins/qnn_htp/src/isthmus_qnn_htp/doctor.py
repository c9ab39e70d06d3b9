"""Facts for ``isthmus doctor``: versions, libraries, the chip, the DSP's search path, and one verdict.

Reads files, the environment and package metadata. A vendor library is loaded only on a Snapdragon, in a process of its
own, to ask which chip it is.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isthmus.errors import IsthmusError

from . import libraries, qairt, targets
from .isolated import probe
from .toolchain import ORT, QNN, installed, pair_problem

UNTESTED = (
    "registered memory (memRegister, rpcmem)",
    "shared spill-fill buffers",
    "asynchronous execution and abort signals",
    "weight sharing (compiled here, never loaded)",
    "power votes and priorities (accepted, without effect here)",
    "toolchain=qairt",
)
"""What exists in the code and has never run on a chip."""

_BUILD = re.compile(rb"v\d+\.\d+\.\d+\.\d{12}")
_VARIABLE = "ADSP_LIBRARY_PATH"
_SOC_FILES = Path("/sys/devices/soc0")


def facts() -> Mapping[str, str]:
    """The facts by name, ``verdict`` among them. Never raises."""
    found = {name: installed(name) or "not installed" for name in (ORT, QNN)}
    problem = pair_problem()
    found["onnxruntime pair"] = "fits" if problem is None else f"{problem[0]}; fix: {problem[1]}"
    found.update(_library_facts())
    found["device"] = "x86 emulator: the chip's arithmetic, not its speed" if libraries.emulated() else _chip()
    if not libraries.emulated():
        found.update(_device_facts())
    found["QAIRT SDK"] = _sdk()
    found["targets"] = f"{len(targets.names())}, default {targets.DEFAULT}"
    found["untested on silicon"] = "; ".join(UNTESTED)
    found["verdict"] = _verdict(found, problem)
    return found


def builds(files: Iterable[Path]) -> Mapping[str, str]:
    """File name -> QNN build id that the file contains, for those that contain one."""
    found = {}
    for file in files:
        try:
            with file.open("rb") as data, mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ) as content:
                match = _BUILD.search(content)
                if match:
                    found[file.name] = match[0].decode()
        except (OSError, ValueError):  # unreadable, or empty
            continue
    return found


def judge_search_path(text: str | None, arch: int | None) -> str:
    """What is wrong with ``ADSP_LIBRARY_PATH``, where the DSP looks for the skeleton library of its architecture.

    The DSP's loader splits at ``;`` only (qualcomm/fastrpc issue 379).
    """
    skel = f"libQnnHtpV{arch}Skel.so" if arch else "libQnnHtpV*Skel.so"
    if not text:
        return f"not set; the DSP must find {skel} in its default places"
    if ":" in text and ";" not in text:
        return f"{text}: joined by ':', which the DSP takes for one directory; fix: export {_VARIABLE}='{text.replace(':', ';')}'"
    parts = [Path(part) for part in text.split(";") if part]
    absent = [str(part) for part in parts if not part.is_dir()]
    skels = [str(file) for part in parts if part.is_dir() for file in part.glob(skel)]
    said = [f"not there: {', '.join(absent)}"] if absent else []
    said.append(f"{skel}: {', '.join(skels)}" if skels else f"no {skel} in {text}")
    return "; ".join(said)


def judge_stub(directory: Path, arch: int | None) -> str:
    """Whether the host's half of the DSP library is there."""
    stub = f"libQnnHtpV{arch}Stub.so" if arch else "libQnnHtpV*Stub.so"
    found = sorted(file.name for file in directory.glob(stub))
    return ", ".join(found) or f"no {stub} in {directory}; fix: copy it there from the QAIRT SDK of the same release"


def _library_facts() -> dict[str, str]:
    try:
        where = libraries.find()
    except IsthmusError as error:
        return {"libraries": f"{error.what}; fix: {error.fix}"}
    names = (libraries.CORE, "libHtpPrepare.so")
    ids = builds(where.directory / name for name in names if (where.directory / name).is_file())
    distinct = sorted(set(ids.values()))
    said = (
        distinct[0]
        if len(distinct) == 1
        else f"mixed: {', '.join(f'{k} {v}' for k, v in ids.items())}"
        if ids
        else "unknown"
    )
    return {"libraries": f"{where.directory} ({where.origin})", "QNN build": said}


def _device_facts(root: Path = _SOC_FILES) -> dict[str, str]:
    arch = None
    try:
        arch = probe().arch
        directory: Path | None = libraries.find().directory
    except IsthmusError:
        directory = None
    return {
        "soc0": _soc_files(root),
        _VARIABLE: judge_search_path(os.environ.get(_VARIABLE), arch),
        "stub": judge_stub(directory, arch) if directory else "unknown: no libraries",
    }


def _soc_files(root: Path) -> str:
    """What the kernel says of the chip. Its ``soc_id`` is not QNN's."""
    said = []
    for name in ("machine", "family", "soc_id"):
        try:
            said.append(f"{name} {(root / name).read_text().strip()}")
        except OSError:
            continue
    return ", ".join(said) or f"no {root}"


def _chip() -> str:
    try:
        chip = probe()
    except IsthmusError as error:
        return f"no HTP answers: {error.what}"
    known = next((t for t in map(targets.parse, targets.names()) if t.soc == chip.soc), None)
    return f"SoC {chip.soc} ({known.name if known else 'unknown to this version'}), Hexagon v{chip.arch}"


def _sdk() -> str:
    try:
        return str(qairt.find_sdk().root)
    except IsthmusError as error:
        return f"none: {error.what.partition(': ')[2]}"


def _verdict(found: Mapping[str, str], problem: Sequence[str] | None) -> str:
    if "fix:" in found["libraries"]:
        return f"cannot run: {found['libraries']}"
    if problem is not None:
        return f"runs artifacts, cannot compile: {problem[0]}; fix: {problem[1]}"
    if found.get("QNN build", "").startswith("mixed"):
        return "libraries of different releases are mixed; fix: pip install --force-reinstall onnxruntime-qnn"
    if not libraries.emulated():
        return f"compiles, and runs on {found['device']}; check its results: isthmus evaluate --backend qnn_htp"
    return "compiles for every target and runs on the x86 emulator: results are the chip's model, times are not"
