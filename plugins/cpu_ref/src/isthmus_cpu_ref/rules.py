"""What loading will take, before anything is compiled: the sums of ``figures`` over graphs that are only planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.spi import MemoryRules
from isthmus.types import GraphFigures, MemoryRequirements, WeightFigure

_PAGE = 4096


class CpuMemoryRules(MemoryRules):
    """No limits but the memory of the machine. Each entry packs its matrices for itself; the rest is mapped once."""

    aliased_io = True
    no_copies = "--device-option prepack=off"

    def predict(self, graphs: Mapping[str, GraphFigures], target: str, options: Any) -> MemoryRequirements:
        from .figures import NODE  # imports onnx

        weights = {name: w for g in graphs.values() for name, w in g.weights.items()}
        total = sum(map(_stored, weights.values()))
        packed = sum(_stored(w) for g in graphs.values() for w in g.weights.values() if w.matrix)
        mapped = sum(_stored(w) for w in weights.values() if not w.matrix)
        workspace = {entry: g.activations * 32 // g.float_bits for entry, g in graphs.items()}
        runtime = sum(workspace.values()) + NODE * sum(g.nodes for g in graphs.values())
        return MemoryRequirements(
            weights=total,
            workspace=workspace,
            io={entry: g.io_bytes for entry, g in graphs.items()},
            exact=False,
            own_load=packed + mapped + runtime,
            caller_load=runtime,
            load_extra=total - mapped,
            notes=(
                f"load by default: {packed} bytes of matrices packed (each entry packs for itself), {mapped} mapped",
                f"load from caller weights or with prepack=off: {total} bytes, no copy",
                "load_extra: the file is read through the page cache while it is packed; the kernel can take that back",
            ),
        )

    def charged(self, size: int) -> int:
        return -(-size // _PAGE) * _PAGE


def _stored(weight: WeightFigure) -> int:
    """Float16 weights become float32 (compile.WIDENED)."""
    return weight.nbytes * 2 if weight.bits == 16 else weight.nbytes
