"""Which language-model entries a graph set gets, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from .description import LlmEntry

_CONTEXT = 2048
_PREFILL = 128
_SHORT = 1024


def plan_entries(
    max_positions: int, contexts: Sequence[int] | None = None, prefill: Sequence[int] | None = None
) -> tuple[LlmEntry, ...]:
    """Prefill entries, then a decode entry, for each context length.

    By default one context of ``min(max_positions, 2048)`` slots; prefill of 128 tokens, a quarter of the context if
    that is below 1024. One context and one prefill size give ``prefill`` and ``decode``; more give
    ``prefill_{N}_{C}`` and ``decode_{C}``.
    """
    contexts = sorted(set(contexts or [min(max_positions, _CONTEXT)]))
    sizes = {c: sorted(set(prefill or [_default_prefill(c)])) for c in contexts}
    single = len(contexts) == 1 and len(sizes[contexts[0]]) == 1
    entries = []
    for context in contexts:
        for tokens in sizes[context]:
            _check(tokens, context, max_positions)
            entries.append(LlmEntry("prefill" if single else f"prefill_{tokens}_{context}", tokens, context))
        entries.append(LlmEntry("decode" if single else f"decode_{context}", 1, context))
    return tuple(entries)


def _default_prefill(context: int) -> int:
    return _PREFILL if context >= _SHORT else max(2, context // 4)


def _check(tokens: int, context: int, max_positions: int) -> None:
    if not 2 <= context <= max_positions:
        raise InputError(
            f"a context of {context} slots: the model has 2 to {max_positions} positions",
            fix="choose --contexts within that range",
        )
    if not 2 <= tokens <= context:
        raise InputError(
            f"prefill of {tokens} tokens in a context of {context} slots",
            why="a chunk has at least 2 tokens (1 is decode) and at most the whole context",
            fix="choose --prefill within that range",
        )
