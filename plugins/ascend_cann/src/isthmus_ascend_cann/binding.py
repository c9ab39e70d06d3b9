"""Bindings: the data sets of one entry, built once and re-pointed between steps, and its gear, set before each run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import attrs
from isthmus.spi import Region

from . import _abi, _lib
from ._lib import Acl
from .gears import GearKind
from .memory import Block
from .program import Gate, Model, Program


@attrs.define(eq=False)
class Binding:
    """Data sets of one entry. ``inputs`` and ``outputs`` are aclDataBuffers in the order of the entry's spec."""

    model: int
    input_set: int
    output_set: int
    inputs: list[int]
    outputs: list[int]
    release: ExitStack
    """Destroys them all."""
    set_gear: Callable[[], None] | None = None
    """Chooses the entry's gear. Before every execute: a model remembers the last choice, whichever binding made it."""
    gear: Block | None = None
    """Memory of the gear input."""


def bind(
    acl: Acl, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region], gear: Region | None
) -> Binding:
    """Build the data sets of an entry. ``gear`` is memory for the gear input, if its model has one."""
    plan = program.plan.entries[entry]
    model = program.models[plan.model]
    with ExitStack() as release:
        input_set, output_set = _dataset(acl, release), _dataset(acl, release)
        regions = list(inputs)
        if gear is not None and model.gate is not None:
            regions.insert(model.gate.index, gear)
        in_buffers = [_add(acl, release, input_set, r) for r in regions]
        out_buffers = [_add(acl, release, output_set, r) for r in outputs]
        made = Binding(model.id, input_set, output_set, in_buffers, out_buffers, release)
        if plan.gear is not None and model.gate is not None:
            made.set_gear = functools.partial(_set_gear, acl, model, model.gate, input_set, plan.gear)
            del in_buffers[model.gate.index]
        made.release = release.pop_all()
    return made


def submit(acl: Acl, binding: Binding, stream: int) -> None:
    """Queue one run of the entry."""
    if binding.set_gear is not None:
        binding.set_gear()
    acl.aclmdlExecuteAsync(binding.model, binding.input_set, binding.output_set, stream)


def rebind(acl: Acl, binding: Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
    """Point some data buffers elsewhere."""
    for buffers, regions in ((binding.inputs, inputs), (binding.outputs, outputs)):
        for position, region in regions.items():
            acl.aclUpdateDataBuffer(buffers[position], region.handle.address + region.offset, region.size)


def _dataset(acl: Acl, release: ExitStack) -> int:
    return _owned(release, acl.aclmdlCreateDataset(), acl.aclmdlDestroyDataset)


def _owned(release: ExitStack, handle: int, destroy: Callable[[int], None]) -> int:
    release.callback(destroy, handle)
    return handle


def _add(acl: Acl, release: ExitStack, dataset: int, region: Region) -> int:
    made = acl.aclCreateDataBuffer(region.handle.address + region.offset, region.size)
    buffer = _owned(release, made, acl.aclDestroyDataBuffer)
    acl.aclmdlAddDatasetBuffer(dataset, buffer)
    return buffer


def _set_gear(acl: Acl, model: Model, gate: Gate, dataset: int, values: Sequence[int]) -> None:
    if model.plan.gear_kind is GearKind.BATCH:
        acl.aclmdlSetDynamicBatchSize(model.id, dataset, gate.index, values[0])
    elif model.plan.gear_kind is GearKind.IMAGE:
        acl.aclmdlSetDynamicHWSize(model.id, dataset, gate.index, *values)
    else:
        dims, address = _lib.new(_abi.aclmdlIODims)
        dims.dimCount = len(values)
        dims.dims[: len(values)] = values
        acl.aclmdlSetInputDynamicDims(model.id, dataset, gate.index, address)
