"""How much workspace a graph takes: lifetimes of tensors packed into one block.

The figures follow the rules of GE's memory assigner as far as they are documented (512-byte blocks, reuse by lifetime,
inputs and outputs in the same block until they are bound); a real compiler fuses operators and gets other numbers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

import attrs
import onnx

from . import tables

BLOCK = 512
_VIEWS = tables.words("memory", "views")
_IN_PLACE = tables.words("memory", "in_place")


@attrs.frozen
class MemoryPlan:
    """Bytes of workspace, and how much of it holds inputs and outputs."""

    work: int
    zero_copy: int


def plan(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    sizes: Mapping[str, int],
    *,
    reuse: bool,
    in_place: bool,
) -> MemoryPlan:
    """Pack the tensors of ``nodes``, whose sizes in bytes are ``sizes``; constants are not among them.

    ``reuse``: tensors that do not live at the same time share memory. ``in_place``: an element-wise operator may write
    over an input that dies with it. Inputs and outputs have memory of their own, which callers replace by theirs.
    """
    io = dict.fromkeys([*inputs, *outputs])
    blocks = _lifetimes(nodes, frozenset(io), sizes, reuse and in_place)
    zero_copy = sum(_align(sizes.get(name, 0)) for name in io)
    rest = _pack(blocks) if reuse else sum(_align(b.size) for b in blocks)
    return MemoryPlan(max(zero_copy + rest, BLOCK), zero_copy)


@attrs.define
class _Life:
    """A block of memory, and the first and last operator that need it."""

    size: int
    first: int
    last: int


def _align(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _lifetimes(
    nodes: Sequence[onnx.NodeProto], io: frozenset[str], sizes: Mapping[str, int], in_place: bool
) -> list[_Life]:
    """The blocks that the tensors between inputs and outputs need."""
    last_use = {name: index for index, node in enumerate(nodes) for name in node.input}
    lives: list[_Life] = []
    homes: dict[str, _Life] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            size, end = sizes.get(name, 0), last_use.get(name, index)
            if name in io or (node.op_type in _VIEWS and node.input[0] in io):
                continue
            home = _host(node, index, size, homes, in_place)
            if home is None:
                home = _Life(size, index, end)
                lives.append(home)
            home.last = max(home.last, end)
            homes[name] = home
    return [life for life in lives if life.size > 0]


def _host(node: onnx.NodeProto, index: int, size: int, homes: Mapping[str, _Life], in_place: bool) -> _Life | None:
    """The block of an input that the output uses too."""
    if node.op_type in _VIEWS:
        return homes.get(node.input[0])
    found = [homes[n] for n in node.input if n in homes] if in_place and node.op_type in _IN_PLACE else []
    return next((h for h in found if h.last == index and h.size == size), None)


def _pack(blocks: Sequence[_Life]) -> int:
    """Largest first, each at the lowest offset that is free during its life. Returns the height."""
    placed: list[tuple[int, int, _Life]] = []  # (start, end, life), by start
    height = 0
    for block in sorted(blocks, key=lambda b: -b.size):
        size, offset = _align(block.size), 0
        for start, end, other in placed:
            if other.first > block.last or other.last < block.first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        insort(placed, (offset, offset + size, block), key=lambda p: p[0])
        height = max(height, offset + size)
    return height
