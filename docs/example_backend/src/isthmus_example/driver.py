"""The device: memory, programs and bindings. Arguments are valid already and calls come one at a time."""

from __future__ import annotations

import json
import math
import mmap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from isthmus.artifact import Artifact
from isthmus.errors import ExecutionError, IncompatibleError, OutOfMemoryError
from isthmus.spi import Allocation, CallerMemory, DeviceDriver, Region
from isthmus.types import (
    Capability,
    EntrySpec,
    Granted,
    MemoryInfo,
    MemoryRequirements,
    Pages,
    ProfileEvent,
    TensorSpec,
)
from numpy.typing import NDArray

from .operators import evaluate

PROGRAM, WEIGHTS = "program.json", "weights.bin"
"""Files of an artifact."""
Array = NDArray[Any]


class Memory:
    """One allocation."""

    def __init__(self, size: int, alignment: int) -> None:
        whole = np.frombuffer(mmap.mmap(-1, size + alignment), np.uint8)
        start = -whole.__array_interface__["data"][0] % alignment
        self.bytes: memoryview = whole[start : start + size].data

    def part(self, region: Region) -> memoryview:
        """The bytes of a region, without a copy."""
        return self.bytes[region.offset : region.offset + region.size]


class Program:
    """Steps and constants of all entries."""

    def __init__(self, text: Mapping[str, Any], entries: Mapping[str, EntrySpec], block: memoryview) -> None:
        self.entries = entries
        self.steps = {name: entry["steps"] for name, entry in text.items()}
        self.constants = {name: constants(entry["constants"], block) for name, entry in text.items()}


class Binding:
    """An entry and the arrays it reads and writes: views of the caller's buffers."""

    def __init__(self, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> None:
        spec = program.entries[entry]
        self.program, self.entry, self.specs = program, entry, (spec.inputs, spec.outputs)
        self.arrays = (
            [array(s, r) for s, r in zip(spec.inputs, inputs)],
            [array(s, r) for s, r in zip(spec.outputs, outputs)],
        )


class ExampleDriver(DeviceDriver):
    """An open device."""

    capabilities = frozenset(
        {Capability.ALIASED_IO, Capability.CALLER_WEIGHTS, Capability.HOST_VISIBLE, Capability.PROFILE}
    )

    def __init__(self, check_finite: bool = False) -> None:
        self._check_finite = check_finite

    def memory_info(self) -> MemoryInfo:
        """Unknown, which is not 0."""
        return MemoryInfo(total=None, free=None)

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        """Normal pages. Huge ones can be preferred: the grant says they were not given."""
        try:
            return Allocation(Memory(size, alignment), size, Granted.NORMAL)
        except (OSError, OverflowError, ValueError) as error:
            raise OutOfMemoryError(f"cannot allocate {size} bytes: {error}", fix="use a smaller model") from error

    def free(self, handle: Memory) -> None:
        """Unmapped when the last view goes, which may be the caller's."""
        handle.bytes = memoryview(b"")

    def write(self, region: Region, data: memoryview) -> None:
        """Copy in."""
        region.handle.part(region)[:] = data

    def read(self, region: Region, out: memoryview) -> None:
        """Copy out."""
        out[:] = region.handle.part(region)

    def copy(self, dst: Region, src: Region) -> None:
        """Copy within the device."""
        dst.handle.part(dst)[:] = src.handle.part(src)

    def host_view(self, handle: Memory) -> memoryview:
        """The memory itself."""
        return handle.bytes

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        """As the compiler computed them: numpy is the same everywhere."""
        return artifact.manifest.memory

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> Program:
        """Read the steps; put the weights where the caller wants them."""
        text = json.loads(artifact.file(PROGRAM).read_text())
        stated = {n: [[str(s) for s in e.inputs], [str(s) for s in e.outputs]] for n, e in artifact.entries.items()}
        if stated != {name: entry["spec"] for name, entry in text.items()}:
            raise IncompatibleError(
                f"{artifact.path} does not hold the entries its manifest states", fix="compile it again"
            )
        data = artifact.file(WEIGHTS).read_bytes()
        if memory is None or memory.weights is None:
            return Program(text, artifact.entries, memoryview(data))
        block = memory.weights.handle.part(memory.weights)
        block[:] = data
        return Program(text, artifact.entries, block)

    def unload(self, program: Program) -> None:
        """Let go of the weights; lent memory stays as it is."""
        program.constants.clear()

    def bind(self, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> Binding:
        """Nothing runs yet."""
        return Binding(program, entry, inputs, outputs)

    def rebind(self, binding: Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        """Take other buffers for some tensors."""
        for arrays, specs, regions in zip(binding.arrays, binding.specs, (inputs, outputs)):
            for position, region in regions.items():
                arrays[position] = array(specs[position], region)

    def unbind(self, binding: Binding) -> None:
        """Let go of the buffers."""
        binding.arrays = ([], [])

    def execute(self, binding: Binding) -> None:
        """Run every step; then, and not before, write the outputs: they may overlap inputs."""
        self._run(binding)

    def profile(self, binding: Binding) -> Sequence[ProfileEvent]:
        """Microseconds per node."""
        return self._run(binding)

    def close(self) -> None:
        """Nothing to release."""

    def _run(self, binding: Binding) -> list[ProfileEvent]:
        names = [s.name for s in binding.specs[0]]
        values: dict[str, Array] = {**binding.program.constants[binding.entry], **dict(zip(names, binding.arrays[0]))}
        times = []
        for step in binding.program.steps[binding.entry]:
            start = time.perf_counter()
            results = evaluate(step["op"], [values[name] for name in step["in"]], step["attributes"])
            values.update(zip(step["out"], results))
            times.append(ProfileEvent(step["out"][0], (time.perf_counter() - start) * 1e6, "us", node=True))
        for spec, out in zip(binding.specs[1], binding.arrays[1]):
            if self._check_finite and not np.isfinite(values[spec.name]).all():
                raise ExecutionError(f"output {spec.name!r} of entry {binding.entry!r} is not finite")
            out[...] = values[spec.name]
        return times


def array(spec: TensorSpec, region: Region) -> Array:
    """A region as an array of its tensor, without a copy."""
    return np.frombuffer(region.handle.part(region), spec.dtype.numpy).reshape(spec.shape)


def constants(table: Mapping[str, Any], block: memoryview) -> dict[str, Array]:
    """The constants of one entry: views of the block of weights."""
    return {
        name: np.frombuffer(block, place["dtype"], math.prod(place["shape"]), place["offset"]).reshape(place["shape"])
        for name, place in table.items()
    }
