"""Which graph runs next, and from which slot."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..errors import IncompatibleError
from ..models.description import LlmEntry


@attrs.frozen
class Chunk:
    """``count`` tokens, starting with that of ``slot``, through graph number ``graph``."""

    graph: int
    slot: int
    count: int


def next_chunk(graphs: Sequence[LlmEntry], known: int, end: int) -> Chunk:
    """The best next execute when the cache holds ``known`` tokens and is to hold ``end``.

    Fewest executes first, then the fewest rows, then the smallest context. A graph whose past is too short for
    ``known`` may start earlier and compute a few tokens again: at the end of a context one such execute replaces many
    single steps, and a graph without a past (C = N) then computes everything each time.
    """
    best: tuple[int, int, int] | None = None
    for number, graph in enumerate(graphs):
        slot = min(known, graph.context - graph.tokens)
        if slot + graph.tokens <= known:
            continue  # its context ends before the new tokens
        cost = (-(-(end - slot) // graph.tokens), graph.tokens, graph.context)
        if best is None or cost < best:
            best, chunk = cost, Chunk(number, slot, min(graph.tokens, end - slot))
    if best is None:
        raise IncompatibleError(f"no graph of the model reaches token {end}", fix="export with larger --contexts")
    return chunk
