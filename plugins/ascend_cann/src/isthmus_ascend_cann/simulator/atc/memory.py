"""How much workspace a graph takes: lifetimes of tensors packed into one block.

The figures follow the rules of GE's memory assigner as far as they are documented (512-byte blocks, reuse by lifetime,
inputs and outputs in the same block until they are bound); a real compiler fuses operators and gets other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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


@attrs.define
class _Life:
    size: int
    first: int
    last: int


def plan(
    nodes: Sequence[onnx.NodeProto],
    inputs: Iterable[str],
    outputs: Iterable[str],
    sizes: Mapping[str, int],
    *,
    reuse: bool,
    in_place: bool,
) -> MemoryPlan:
    """Pack the tensors of ``nodes``, whose sizes in bytes are ``sizes``; constants are not among them.

    ``reuse``: tensors that do not live at the same time share memory. ``in_place``: an element-wise operator may write
    over an input that dies with it.
    """
    owners, lives = _lifetimes(nodes, list(inputs), list(outputs), sizes, reuse and in_place)
    io = {owners[n] for n in [*inputs, *outputs] if n in owners}
    zero_copy = sum(_align(lives[n].size) for n in io)
    blocks = [life for life in lives.values() if life.size > 0]
    work = _pack(blocks) if reuse else sum(_align(b.size) for b in blocks)
    return MemoryPlan(max(work, zero_copy, BLOCK), zero_copy)


def _align(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _lifetimes(
    nodes: Sequence[onnx.NodeProto], inputs: list[str], outputs: list[str], sizes: Mapping[str, int], in_place: bool
) -> tuple[dict[str, str], dict[str, _Life]]:
    """Which tensor owns the memory of each tensor, and from where to where an owner lives."""
    last_use = {name: index for index, node in enumerate(nodes) for name in node.input}
    last_use.update(dict.fromkeys(outputs, len(nodes)))
    owners = {name: name for name in inputs}
    lives = {name: _Life(sizes.get(name, 0), 0, last_use.get(name, 0)) for name in inputs}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            end = last_use.get(name, index)
            host = _host(node, name, index, owners, lives, sizes, in_place)
            owners[name] = host or name
            if host is None:
                lives[name] = _Life(sizes.get(name, 0), index, end)
            else:
                lives[host].last = max(lives[host].last, end)
    return owners, lives


def _host(
    node: onnx.NodeProto,
    name: str,
    index: int,
    owners: Mapping[str, str],
    lives: Mapping[str, _Life],
    sizes: Mapping[str, int],
    in_place: bool,
) -> str | None:
    """The owner whose memory an output uses, if it needs none of its own."""
    if node.op_type in _VIEWS:
        return owners.get(node.input[0])
    if not in_place or node.op_type not in _IN_PLACE:
        return None
    for source in node.input:
        owner = owners.get(source)
        if owner is not None and lives[owner].last == index and lives[owner].size == sizes.get(name, 0):
            return owner
    return None


def _pack(blocks: list[_Life]) -> int:
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
        placed.append((offset, offset + size, block))
        placed.sort(key=lambda p: p[0])
        height = max(height, offset + size)
    return height
