"""Bindings: the data sets of one entry, built once and re-pointed between steps, and its gear, set before each run.

AscendCL wants buffers of the largest gear whatever gear runs. Where a caller's region is smaller, the entry runs on a
buffer of ours, with copies on the device around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import attrs
from isthmus.spi import Region
from isthmus.types import Pages

from . import _abi, _lib, sizes
from ._lib import Acl
from .gears import GearKind
from .memory import Block, Memory
from .program import Model, Program


@attrs.define(eq=False)
class Slot:
    """One input or output: the caller's region, its aclDataBuffer, and our buffer if the region is too small."""

    region: Region
    buffer: int
    staging: Block | None

    @property
    def staged(self) -> Region:
        """The part of our buffer that the region fills."""
        return Region(self.staging, 0, self.region.size)


@attrs.define(eq=False)
class Binding:
    """Data sets of one entry; slots are in the order of its spec."""

    model: int
    input_set: int
    output_set: int
    inputs: list[Slot]
    outputs: list[Slot]
    handles: ExitStack
    """Destroys data sets and data buffers, which are host memory."""
    blocks: list[Block]
    """Device memory of the binding's own."""
    set_gear: Callable[[], None] | None
    """Chooses the entry's gear. Before every run: a model remembers the last choice, whichever binding made it."""


def bind(
    acl: Acl, memory: Memory, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]
) -> Binding:
    """Build the data sets of an entry. Within ``entered``."""
    gear = program.plan.entries[entry].gear
    model = program.models[program.plan.entries[entry].model]
    with ExitStack() as undo:
        handles = undo.enter_context(ExitStack())
        blocks: list[Block] = []
        undo.callback(release_blocks, memory, blocks)
        input_set, output_set = _dataset(acl, handles), _dataset(acl, handles)
        make = functools.partial(_slot, acl, memory, handles, blocks)
        sources = [make(region, size) for region, size in zip(inputs, model.input_sizes)]
        results = [make(region, size) for region, size in zip(outputs, model.output_sizes)]
        buffers = [slot.buffer for slot in sources]
        set_gear = None
        if gear is not None and model.gate is not None:
            block = _block(memory, blocks, model.gate.size)
            buffers.insert(model.gate.index, _buffer(acl, handles, Region(block, 0, model.gate.size)))
            set_gear = functools.partial(_set_gear, acl, model, model.gate.index, input_set, gear)
        for dataset, handle in [(input_set, b) for b in buffers] + [(output_set, s.buffer) for s in results]:
            acl.aclmdlAddDatasetBuffer(dataset, handle)
        undo.pop_all()
    return Binding(model.id, input_set, output_set, sources, results, handles, blocks, set_gear)


def rebind(acl: Acl, binding: Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
    """Point some slots elsewhere."""
    for slots, regions in ((binding.inputs, inputs), (binding.outputs, outputs)):
        for position, region in regions.items():
            slot = slots[position]
            slot.region = region
            if slot.staging is None:
                acl.aclUpdateDataBuffer(slot.buffer, region.handle.address + region.offset, region.size)


def submit(acl: Acl, memory: Memory, binding: Binding, stream: int) -> None:
    """Queue one run of the entry. Within ``entered``."""
    for slot in binding.inputs:
        if slot.staging is not None:
            memory.copy(slot.staged, slot.region)
    if binding.set_gear is not None:
        binding.set_gear()
    acl.aclmdlExecuteAsync(binding.model, binding.input_set, binding.output_set, stream)
    for slot in binding.outputs:
        if slot.staging is not None:
            memory.copy(slot.region, slot.staged)


def release_blocks(memory: Memory, blocks: list[Block]) -> None:
    """Free the device memory of a binding, all of it even if one fails."""
    with ExitStack() as steps:
        while blocks:
            steps.callback(memory.free, blocks.pop())


def _dataset(acl: Acl, handles: ExitStack) -> int:
    dataset: int = acl.aclmdlCreateDataset()
    handles.callback(acl.aclmdlDestroyDataset, dataset)
    return dataset


def _buffer(acl: Acl, handles: ExitStack, region: Region) -> int:
    buffer: int = acl.aclCreateDataBuffer(region.handle.address + region.offset, region.size)
    handles.callback(acl.aclDestroyDataBuffer, buffer)
    return buffer


def _block(memory: Memory, blocks: list[Block], size: int) -> Block:
    block = memory.allocate(size, Pages.NORMAL, sizes.ALIGNMENT, "bindings of gears")
    blocks.append(block)
    return block


def _slot(acl: Acl, memory: Memory, handles: ExitStack, blocks: list[Block], region: Region, size: int) -> Slot:
    staging = _block(memory, blocks, size) if region.size < size else None
    return Slot(region, _buffer(acl, handles, region if staging is None else Region(staging, 0, size)), staging)


def _set_gear(acl: Acl, model: Model, index: int, dataset: int, values: Sequence[int]) -> None:
    if model.plan.gear_kind is GearKind.BATCH:
        acl.aclmdlSetDynamicBatchSize(model.id, dataset, index, values[0])
    elif model.plan.gear_kind is GearKind.IMAGE:
        acl.aclmdlSetDynamicHWSize(model.id, dataset, index, *values)
    else:
        dims, address = _lib.new(_abi.aclmdlIODims)
        dims.dimCount = len(values)
        dims.dims[: len(values)] = values
        acl.aclmdlSetInputDynamicDims(model.id, dataset, index, address)
