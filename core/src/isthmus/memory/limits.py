"""A plan held against what there is: free memory, a budget, the limits of a vendor, the slots of the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from ..types import MemoryInfo, MemoryLimit, Scope
from .plan import MemoryPlan


@attrs.frozen
class Misfit:
    """Something that is too large. ``excess`` is the ratio of need to limit."""

    what: str
    need: int
    limit: int
    source: str
    unit: str = "bytes"
    hard: bool = True

    @property
    def excess(self) -> float:
        """How many times too large."""
        return self.need / self.limit if self.limit else float("inf")


@attrs.frozen
class Room:
    """What there is. ``None``: not known, not asked."""

    limits: Sequence[MemoryLimit] = ()
    device: MemoryInfo | None = None
    budget: int | None = None


def misfits(plan: MemoryPlan, room: Room) -> list[Misfit]:
    """All that does not fit, the binding limit first: hard before soft, the largest excess first."""
    found = [m for m in _checks(plan, room) if m.need > m.limit]
    return sorted(found, key=lambda m: (not m.hard, -m.excess))


def _checks(plan: MemoryPlan, room: Room) -> Iterator[Misfit]:
    peak = plan.run_peak
    if plan.context:
        yield Misfit("tokens of pictures and question", plan.context_tokens, plan.context, "the context", "tokens")
    if room.budget is not None:
        yield Misfit("peak", peak, room.budget, "the budget")
    free = room.device.free if room.device else None
    if free is not None:
        yield Misfit("peak", peak, free, "free memory of the device")
    for limit in room.limits:
        if limit.scope is Scope.DEVICE and free is not None:
            continue  # what is free now binds sooner
        for what, need in _needs(plan, limit.scope):
            unit = "files" if limit.scope is Scope.CONTEXTS else "bytes"
            yield Misfit(what, need, limit.value, limit.source, unit, limit.hard)


def _needs(plan: MemoryPlan, scope: Scope) -> Iterator[tuple[str, int]]:
    need = plan.need
    if scope is Scope.GRAPH and need.graphs:
        entry = max(need.graphs, key=need.graphs.__getitem__)
        yield f"graph {entry}", need.graphs[entry]
    elif scope in (Scope.CONTEXT, Scope.WEIGHTS_BUFFER) and need.contexts:
        file = max(need.contexts, key=need.contexts.__getitem__)
        yield f"{scope.value} of {file}", need.contexts[file]
    elif scope is Scope.CONTEXTS:
        yield "compiled files", len(need.contexts)
    elif scope in (Scope.PROCESS, Scope.DEVICE):
        yield "peak", plan.run_peak
