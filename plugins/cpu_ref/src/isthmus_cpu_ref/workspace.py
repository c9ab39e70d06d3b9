"""How much scratch compiled graphs take: small ones by adding up their tensors, large ones by running them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs
import onnx
from isthmus.types import EntrySpec

from .graph import entry_file, io_bytes, read_model
from .session import open_session, session_options, tensor_spec
from .weights import graphs

SMALL = 4 << 20
"""Below this many bytes of tensors, what a process does anyway drowns a measurement."""
STEP = 64 << 10
"""A measurement is rounded up to this, so that two compilations agree but for a real difference."""


@attrs.frozen
class Workspace:
    """Scratch of one entry in bytes, and how it is known."""

    size: int
    how: str
    certain: bool = True


def workspaces(directory: Path, entries: Mapping[str, EntrySpec], packed: Mapping[str, bool]) -> dict[str, Workspace]:
    """Scratch of each compiled graph in ``directory``. ``packed`` are those that only run packed at a fair speed."""
    tensors = {name: _intermediate_bytes(directory / entry_file(name)) for name in entries}
    small = {n: size for n, size in tensors.items() if size is not None and size + io_bytes(entries[n]) < SMALL}
    found = {name: Workspace(size, "the sum of its intermediate tensors") for name, size in small.items()}
    runs = _measure(directory, {name: packed[name] for name in entries if name not in small})
    for name, run in runs.items():
        if isinstance(run, int):
            found[name] = Workspace(-(-run // STEP) * STEP, "measured in a run on this machine")
        else:
            found[name] = Workspace(tensors[name] or 0, f"not measured: a run with zeros failed ({run})", certain=False)
    return {name: found[name] for name in entries}


def _measure(directory: Path, packed: Mapping[str, bool]) -> dict[str, int | str]:
    """Bytes that each entry was seen to take in a process of their own, or why that could not be seen."""
    if not packed:
        return {}
    command = [sys.executable, "-P", "-m", f"{__package__}.measure", str(directory), json.dumps(packed)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode:
        reason = (child.stderr.strip() or f"exit code {child.returncode}").splitlines()[-1]
        return dict.fromkeys(packed, reason)
    seen: dict[str, int | str] = json.loads(child.stdout)
    return seen


def _intermediate_bytes(model: Path) -> int | None:
    """Bytes of all tensors between nodes, with the shapes ONNX Runtime infers; ``None`` if one depends on data."""
    proto = read_model(model)
    if any(graph is not proto.graph for graph in graphs(proto.graph)):
        return None  # control flow: what its bodies keep is not seen from here
    outputs = {o.name for o in proto.graph.output}
    inner = [name for node in proto.graph.node for name in node.output if name and name not in outputs]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    with tempfile.NamedTemporaryFile(dir=model.parent, suffix=".onnx") as file:  # beside the weights it refers to
        onnx.save(proto, file.name)
        values = {v.name: v for v in open_session(Path(file.name), session_options()).get_outputs()}
    specs = [tensor_spec(values[name]) for name in inner]
    return None if None in specs else sum(s.nbytes for s in specs if s is not None)
