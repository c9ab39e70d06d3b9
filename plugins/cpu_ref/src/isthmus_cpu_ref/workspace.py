"""How much scratch a compiled graph takes: small ones by adding up their tensors, large ones by running them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import attrs
import onnx
from isthmus.types import EntrySpec

from .graph import io_bytes, read_model
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


def workspace_of(model: Path, spec: EntrySpec, *, packed: bool) -> Workspace:
    """Scratch of the compiled graph ``model``, whose ``weights.data`` lies beside it."""
    tensors = _intermediate_bytes(model)
    if tensors is not None and tensors + io_bytes(spec) < SMALL:
        return Workspace(tensors, "the sum of its intermediate tensors")
    command = [sys.executable, "-m", f"{__package__}.measure", str(model), *(["packed"] if packed else [])]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return Workspace(-(-int(child.stdout) // STEP) * STEP, "measured in a run on this machine")
    reason = (child.stderr.strip() or f"exit code {child.returncode}").splitlines()[-1]
    return Workspace(tensors or 0, f"not measured: a run with zeros failed ({reason})", certain=False)


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
