"""What loading an artifact takes, from the metadata of its binaries."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.types import EntrySpec, MemoryRequirements

from .binary import ContextBinary, Graph
from .layout import ProgramRecord

_NOTES = (
    "figures of the compiler for the chip; the emulator's process takes about 100 MB more",
    "QNN allocates weights and workspace itself",
)
_OLD = "a binary of an old SDK states no weights: the size of its file is taken instead"


def requirements(
    binaries: Mapping[str, ContextBinary], record: ProgramRecord, entries: Mapping[str, EntrySpec]
) -> MemoryRequirements:
    """Memory of a program made of ``binaries`` (file name -> metadata), whose graphs ``record`` maps to ``entries``."""
    graphs = {
        entry: next(g for g in binaries[file].graphs if g.name == name)
        for file, held in record.binaries.items()
        for name, entry in held.graphs.items()
    }
    weights = sum(map(_weights, binaries.values()))
    op_data = sum(graph.op_data or 0 for binary in binaries.values() for graph in binary.graphs)
    # One spill-fill buffer per context, as large as its largest graph needs.
    workspaces = sum(max(map(_workspace, binary.graphs), default=0) for binary in binaries.values())
    load = weights + op_data + workspaces
    old = any(graph.const is None for graph in graphs.values())
    return MemoryRequirements(
        weights=weights,
        workspace={entry: _workspace(graph) for entry, graph in graphs.items()},
        io={entry: sum(s.nbytes for s in (*spec.inputs, *spec.outputs)) for entry, spec in entries.items()},
        exact=False,
        own_load=load,
        caller_load=load,
        notes=(*_NOTES, _OLD) if old else _NOTES,
    )


def _weights(binary: ContextBinary) -> int:
    if any(graph.const is None for graph in binary.graphs):
        return binary.blob_size
    return sum(graph.const or 0 for graph in binary.graphs) + binary.shared_weights


def _workspace(graph: Graph) -> int:
    return (graph.spill_fill or 0) + (graph.ddr or 0)
