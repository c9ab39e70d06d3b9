"""How much memory loading takes, known when a graph is compiled: ``cpu.json``, and the sums over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import onnx
from isthmus._json import DAMAGE, explain, read_json, strict_converter, write_json
from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError
from isthmus.types import MemoryRequirements

from .options import Prepack
from .packing import QUANTIZED, packed_bytes, packed_inputs, place
from .weights import graphs

FILE = "cpu.json"
FORMAT = 1

NODE = 5500
"""Bytes of ONNX Runtime's own objects per node, as measured with 1.32 on graphs of 100 to 1000 nodes."""


@attrs.frozen
class EntryFigures:
    """Bytes of one entry."""

    packed: int
    """Of the packed copies of its weights, if they are packed."""
    always_packed: bool
    """It has a kernel that is many times slower without (MatMulNBits)."""
    session: int
    """Of ONNX Runtime's own objects."""


@attrs.frozen
class Figures:
    """Contents of ``cpu.json``."""

    entries: Mapping[str, EntryFigures]
    unpacked: int
    """Bytes of ``weights.data`` still read when everything is packed."""

    @classmethod
    def of(cls, models: Mapping[str, onnx.ModelProto]) -> Figures:
        """Add up the figures of compiled graphs, one per entry."""
        entries = {name: _entry_figures(model) for name, model in models.items()}
        still_read = {place for model in models.values() for place in _places_read(model)}
        return cls(entries, sum(length for _, length in still_read))

    def write(self, directory: Path) -> None:
        """Write ``cpu.json``."""
        write_json(directory / FILE, {"format": FORMAT, **_CONVERTER.unstructure(self)})

    @classmethod
    def read(cls, artifact: Artifact) -> Figures:
        """Read ``cpu.json``. ``IncompatibleError``: of another format, or it has not the entries of the manifest."""
        path, again = artifact.file(FILE), "compile the artifact again"
        try:
            data = read_json(path)
            if data.pop("format") != FORMAT:
                raise IncompatibleError(f"{path} is not of format {FORMAT}", fix=again)
            figures: Figures = _CONVERTER.structure(data, cls)
        except DAMAGE as error:
            raise IncompatibleError(f"{path} is damaged: {explain(error)}", fix=again) from error
        if figures.entries.keys() != artifact.entries.keys():
            held, stated = sorted(figures.entries), sorted(artifact.entries)
            raise IncompatibleError(f"{path} holds entries {held}, the manifest states {stated}", fix=again)
        return figures

    def is_packed(self, entry: str, prepack: Prepack, *, lent: bool) -> bool:
        """Whether an entry's weights are packed when loaded, into memory of its own."""
        wanted = prepack is Prepack.ON or (prepack is Prepack.AUTO and not lent)
        return wanted or self.entries[entry].always_packed

    def requirements(self, base: MemoryRequirements, prepack: Prepack) -> MemoryRequirements:
        """``base`` with ``own_load``, ``caller_load`` and ``load_extra`` for a prepack choice."""
        all_packed = all(self.is_packed(name, prepack, lent=False) for name in self.entries)
        mapped = self.unpacked if all_packed else base.weights
        return attrs.evolve(
            base,
            own_load=self.allocated(base, prepack, lent=False) + mapped,
            caller_load=self.allocated(base, prepack, lent=True),
            load_extra=base.weights - mapped,
        )

    def allocated(self, base: MemoryRequirements, prepack: Prepack, *, lent: bool) -> int:
        """Bytes that a program allocates: packed weights, scratch and runtime objects. Mapped files are not."""
        runtime = sum(base.workspace.values()) + sum(f.session for f in self.entries.values())
        return self._packed_bytes(prepack, lent=lent) + runtime

    def explain(self, weights: int) -> tuple[str, ...]:
        """What each way of loading costs."""
        packed, always = self._packed_bytes(Prepack.ON, lent=False), self._packed_bytes(Prepack.OFF, lent=False)
        but = f", but for {always} bytes packed for MatMulNBits" if always else ""
        return (
            f"load by default: {packed} bytes of weights packed (each entry packs for itself), {self.unpacked} mapped",
            f"load with prepack=off: {weights} bytes of weights mapped, no copy{but}",
            f"load from caller weights: no copy{but}; with prepack=on, {packed} bytes packed besides",
            "load_extra: pages of the weights file while they are packed, which the kernel can take back",
        )

    def _packed_bytes(self, prepack: Prepack, *, lent: bool) -> int:
        return sum(f.packed for name, f in self.entries.items() if self.is_packed(name, prepack, lent=lent))


def _entry_figures(model: onnx.ModelProto) -> EntryFigures:
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    weights = _weights(model)
    packed = sum(packed_bytes(node, weights) for node in nodes)
    return EntryFigures(packed, any(n.op_type == QUANTIZED for n in nodes), NODE * len(nodes))


def _places_read(model: onnx.ModelProto) -> Iterator[tuple[int, int]]:
    """Places in ``weights.data`` that some node reads unpacked."""
    weights = _weights(model)
    for graph in graphs(model.graph):
        for node in graph.node:
            packed = packed_inputs(node, weights)
            yield from (place(weights[n]) for i, n in enumerate(node.input) if n in weights and i not in packed)


def _weights(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {t.name: t for t in model.graph.initializer if t.external_data}


_CONVERTER = strict_converter()
