"""What a chip has and what a program takes on it, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from isthmus.spi import MemoryRules
from isthmus.types import GraphFigures, MemoryLimit, MemoryRequirements, Scope

from . import sizes, soc
from .atc_options import ExternalWeight

BLOCK = 512
"""GE's memory assigner works in blocks of this size."""


class AscendMemoryRules(MemoryRules):
    """Float graphs become float16. The workspace holds inputs and outputs too, until they are bound."""

    configurations: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "all off": {"buffer_optimize": "off_optimize", "disable_reuse_memory": True},
        "buffer_optimize only": {"buffer_optimize": "l2_optimize", "disable_reuse_memory": True},
        "all on": {"buffer_optimize": "l2_optimize", "disable_reuse_memory": False},
    }

    def limits(self, target: str) -> Sequence[MemoryLimit]:
        gib = soc.find(target).memory_gib
        if gib is None:
            return ()
        return (MemoryLimit(Scope.DEVICE, int(gib * 2**30), f"memory of {target}, platform_config of CANN 8.1.RC1"),)

    def predict(self, graphs: Mapping[str, GraphFigures], target: str, options: Any) -> MemoryRequirements:
        shared = options.external_weight is ExternalWeight.FILES
        weights = {
            name if shared else (entry, name): _half(w.nbytes, w.bits)
            for entry, g in graphs.items()
            for name, w in g.weights.items()
        }
        workspace = {entry: _workspace(g) for entry, g in graphs.items()}
        total, scratch = sum(weights.values()), max(workspace.values(), default=0)
        return MemoryRequirements(
            weights=total,
            workspace=workspace,
            io={entry: g.io_bytes for entry, g in graphs.items()},
            exact=False,
            own_load=sizes.charged(total) + sizes.charged(scratch),
            caller_load=0,
            alignment=sizes.ALIGNMENT,
            load_extra=max((_half(g.weight_bytes, g.float_bits) for g in graphs.values()), default=0),
            notes=(
                "equal weights once" if shared else "every entry is an .om with weights of its own",
                "one workspace serves all entries",
                "load_extra: a whole .om is in host memory while it is loaded",
            ),
        )

    def sharing(self, target: str) -> Mapping[str, str]:
        return {"external_weight": "files"}

    def charged(self, size: int) -> int:
        return sizes.charged(size, sizes.PAGE)


def _workspace(graph: GraphFigures) -> int:
    inside = (*graph.spec.inputs, *graph.spec.outputs)
    return _half(graph.activations, graph.float_bits) + sum(sizes.up(t.nbytes, BLOCK) for t in inside)


def _half(size: int, bits: float) -> int:
    return size // 2 if bits == 32 else size
