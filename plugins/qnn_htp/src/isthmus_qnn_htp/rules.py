"""What the HTP allows and takes, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.spi import MemoryRules
from isthmus.types import GraphFigures, MemoryLimit, MemoryRequirements, Scope

from . import targets

_LLM = "language model"
_GIB = 1 << 30
_LIMITS = (
    MemoryLimit(
        Scope.GRAPH,
        3670016 << 10,
        "compiler of QAIRT 2.51: 'graph requires estimated allocation of ... KB, limit is 3670016 KB'; seen here",
    ),
    MemoryLimit(
        Scope.GRAPH,
        2 * _GIB,
        "compilers of older SDKs: 'limit is 2097152 KB' (qualcomm/ai-hub-models#129, #274)",
        hard=False,
    ),
    MemoryLimit(Scope.CONTEXT, 4 * _GIB, "a context addresses 32 bits (ExecuTorch, QNN backend notes)"),
    MemoryLimit(
        Scope.PROCESS,
        7 * _GIB // 2,
        "address space of a protection domain, about 3.5 GB (onnxruntime PR 20930, ai-hub-models#100)",
        hard=False,
    ),
    MemoryLimit(
        Scope.WEIGHTS_BUFFER,
        440401920,
        "smallest buffer whose mapping failed on a phone (pytorch/executorch#6728; 467 MB #18862, 818 MB #4517)",
        hard=False,
    ),
    MemoryLimit(
        Scope.CONTEXTS, 50, "more contexts than about 50 exhaust a protection domain (pytorch/executorch#14985)"
    ),
)


class HtpMemoryRules(MemoryRules):
    """Float graphs run in 16 bits; every entry is a context with weights of its own unless they share."""

    def limits(self, target: str) -> Sequence[MemoryLimit]:
        targets.parse(target)
        return _LIMITS

    def predict(self, graphs: Mapping[str, GraphFigures], target: str, options: Any) -> MemoryRequirements:
        shared = bool(options.weight_sharing)
        context = {entry: _LLM if shared and _is_llm(g) else entry for entry, g in graphs.items()}
        weights = {
            (context[entry], name): _half(w.nbytes, w.bits)
            for entry, g in graphs.items()
            for name, w in g.weights.items()
        }
        workspace = {entry: _half(g.activations, g.float_bits) for entry, g in graphs.items()}
        spill_fill: dict[str, int] = {}
        for entry, size in workspace.items():
            spill_fill[context[entry]] = max(size, spill_fill.get(context[entry], 0))
        total = sum(weights.values())
        load = total + sum(spill_fill.values())
        return MemoryRequirements(
            weights=total,
            workspace=workspace,
            io={entry: g.io_bytes for entry, g in graphs.items()},
            exact=False,
            own_load=load,
            caller_load=load,
            load_extra=max((_half(g.weight_bytes, g.float_bits) for g in graphs.values()), default=0),
            notes=(
                "language-model entries share a context and its weights"
                if shared
                else "every entry is a context with weights of its own",
                "workspace is what lives at once outside the chip's own memory at worst; VTCM holds part of it",
                "load_extra: a compiled file is in host memory while its context is made",
            ),
        )

    def sharing(self, target: str) -> Mapping[str, str]:
        return {"weight_sharing": "true"} if targets.parse(target).weight_sharing else {}


def _is_llm(graph: GraphFigures) -> bool:
    return any(t.name == "inputs_embeds" for t in graph.spec.inputs)


def _half(size: int, bits: float) -> int:
    return size // 2 if bits == 32 else size
