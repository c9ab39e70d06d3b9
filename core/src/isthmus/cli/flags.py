"""Options that several commands share, so that they are spelled alike everywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .models import Build
from .output import json_mode

Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON on stdout.", callback=json_mode, is_eager=True)
]
Backend = Annotated[
    str, typer.Option("--backend", "-b", help="Backend: cpu, qnn_htp, ascend, or any installed plugin.")
]
Target = Annotated[
    str | None, typer.Option("--target", "-t", help="What to compile for, e.g. sm8650; see `isthmus backends`.")
]
Device = Annotated[
    str | None, typer.Option("--device", help="Device of the backend, e.g. 0 or reference; default: its first.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Directory to create.")]
CompileOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="KEY=VALUE for the compiler; `isthmus backends --options` lists them."),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option("--device-option", help="KEY=VALUE for the device; `isthmus backends --options` lists them."),
]
Simulator = Annotated[bool, typer.Option("--simulator", help="Use the backend's simulator. Every result says so.")]
Force = Annotated[bool, typer.Option("--force", help="Load even what does not seem to fit into free memory.")]
Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        help="Checkpoint directory or .gguf, graph set, .onnx, or compiled artifact. Default: the bundled tiny InternVL.",
    ),
]
ModelArgument = Annotated[
    Path | None,
    typer.Argument(
        help="Checkpoint directory or .gguf, graph set, .onnx, or compiled artifact. Default: the bundled one."
    ),
]
Contexts = Annotated[str | None, typer.Option("--contexts", help="Context lengths of the graphs, e.g. 512,2048.")]
Prefill = Annotated[str | None, typer.Option("--prefill", help="Prefill sizes of the graphs, e.g. 128.")]
DTypeName = Annotated[str, typer.Option("--dtype", help="Weights and I/O of the graphs: float32 or float16.")]


def pairs(options: list[str] | None) -> dict[str, object]:
    """``["k=v", ...]`` as a mapping. ``InputError`` for one without ``=`` or given twice."""
    found: dict[str, object] = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise InputError(f"option {option!r} is not KEY=VALUE")
        if key in found:
            raise InputError(f"option {key!r} is given twice")
        found[key] = value
    return found


def numbers(text: str | None, what: str) -> tuple[int, ...] | None:
    """``"512,2048"`` as integers; ``None`` stays ``None``."""
    if text is None:
        return None
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise InputError(f"{what} is {text!r}", fix="give positive whole numbers separated by commas, e.g. 512,2048")
    return found


def byte_size(text: str | None, what: str) -> int | None:
    """``"2GiB"``, ``"1.5 GB"`` or ``"4096"`` in bytes; ``None`` stays ``None``."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"{what} is {text!r}", fix="give a size such as 2GiB, 512MiB or a number of bytes")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower()) if unit else 0))


def build(
    backend: str, target: str | None, option: list[str] | None, contexts: str | None, prefill: str | None, dtype: str
) -> Build:
    """The shared flags as one value."""
    return Build(backend, target, pairs(option), numbers(contexts, "--contexts"), numbers(prefill, "--prefill"), dtype)


def device_id(backend: str, device: str | None) -> str:
    """What ``open_device`` takes."""
    return f"{backend}:{device}" if device else backend


def use_simulator(backend: str, wanted: bool) -> None:
    """Ask for a backend's simulator, by the one switch every plugin with a simulator reads."""
    if wanted:
        os.environ[f"ISTHMUS_{backend.upper()}_SIMULATOR"] = "1"
