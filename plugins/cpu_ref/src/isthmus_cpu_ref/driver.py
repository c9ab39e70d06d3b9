"""Device ``cpu:0``: ONNX Runtime over buffers of this process."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import onnxruntime as ort
from isthmus.artifact import Artifact
from isthmus.errors import ExecutionError, IncompatibleError, OutOfMemoryError
from isthmus.spi import CallerMemory, Region
from isthmus.types import Capability, EntrySpec, MemoryRequirements, ProfileEvent

from .figures import Figures
from .graph import entry_file
from .memory import HostDriver, host_memory, view
from .options import DeviceOptions
from .profile import trace_events
from .session import (
    FAILURES,
    bind_arguments,
    failed,
    failures_as,
    open_session,
    session_options,
    tensor_spec,
    use_weights,
)
from .weights import fill_weights, map_weights

Tensors = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
"""Arguments of ``bind_arguments`` for the inputs and outputs of an entry: made once, bound often."""


@attrs.define(eq=False)
class LoadedProgram:
    """A session per entry, and the one block of weights they all compute from."""

    artifact: Artifact
    weights: mmap.mmap | memoryview | bytes
    packed: Mapping[str, bool]
    tensors: Mapping[str, Tensors]
    sessions: dict[str, ort.InferenceSession]


@attrs.define(eq=False)
class BoundEntry:
    """A session with its tensors at fixed addresses."""

    program: LoadedProgram
    entry: str
    session: ort.InferenceSession  # untyped in ONNX Runtime; None once unbound
    io: ort.IOBinding
    inputs: list[Region]
    outputs: list[Region]


class CpuDriver(HostDriver):
    """ONNX Runtime on the CPUs this process may use."""

    capabilities = frozenset(
        {
            Capability.CALLER_WEIGHTS,
            Capability.HUGE_PAGES,
            Capability.HOST_VISIBLE,
            Capability.ALIASED_IO,
            Capability.PROFILE,
        }
    )

    def __init__(self, options: DeviceOptions) -> None:
        self._options = options
        self._threads = options.threads or len(os.sched_getaffinity(0))

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return Figures.read(artifact).requirements(artifact.manifest.memory, self._options.prepack)

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> LoadedProgram:
        _check_version(artifact)
        self._check_arena(artifact.manifest.memory)
        lent = memory.weights if memory else None
        figures, prepack = Figures.read(artifact), self._options.prepack
        _check_free(figures.allocated(artifact.manifest.memory, prepack, lent=lent is not None), artifact)
        packed = {name: figures.is_packed(name, prepack, lent=lent is not None) for name in artifact.entries}
        weights = map_weights(artifact.path) if lent is None else fill_weights(artifact.path, view(lent))
        tensors = {name: _tensors(spec) for name, spec in artifact.entries.items()}
        program = LoadedProgram(artifact, weights, packed, tensors, {})
        for name, spec in artifact.entries.items():
            program.sessions[name] = session = self._session(program, name)
            _check_entry(artifact, name, spec, session)
        if isinstance(weights, mmap.mmap) and any(packed.values()):
            weights.madvise(mmap.MADV_DONTNEED)  # what was read to be packed is not read again
        return program

    def unload(self, program: LoadedProgram) -> None:
        program.sessions.clear()
        program.weights = b""

    def bind(
        self, program: LoadedProgram, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]
    ) -> BoundEntry:
        session = program.sessions[entry]
        io = session.io_binding()
        _bind_all(io, program.tensors[entry], dict(enumerate(inputs)), dict(enumerate(outputs)))
        return BoundEntry(program, entry, session, io, list(inputs), list(outputs))

    def rebind(self, binding: BoundEntry, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        _bind_all(binding.io, binding.program.tensors[binding.entry], inputs, outputs)
        for kept, changed in ((binding.inputs, inputs), (binding.outputs, outputs)):
            for position, region in changed.items():
                kept[position] = region

    def unbind(self, binding: BoundEntry) -> None:
        binding.session = binding.io = None

    def execute(self, binding: BoundEntry) -> None:
        try:
            binding.session.run_with_iobinding(binding.io)
        except FAILURES as failure:
            raise failed(failure, ExecutionError, f"entry {binding.entry!r} failed", call="Run") from failure

    def profile(self, binding: BoundEntry) -> Sequence[ProfileEvent]:
        """One run, the first of a session of its own: it includes what only a first run does."""
        tensors = binding.program.tensors[binding.entry]
        with tempfile.TemporaryDirectory() as directory:
            session = self._session(binding.program, binding.entry, trace=Path(directory) / "trace")
            io = session.io_binding()
            _bind_all(io, tensors, dict(enumerate(binding.inputs)), dict(enumerate(binding.outputs)))
            with failures_as(ExecutionError, f"entry {binding.entry!r} failed", call="Run"):
                session.run_with_iobinding(io)
            return list(trace_events(Path(session.end_profiling())))

    def close(self) -> None:
        """Nothing of its own to release: memory and sessions belong to the handles."""

    def _session(self, program: LoadedProgram, entry: str, trace: Path | None = None) -> ort.InferenceSession:
        packed, spinning = program.packed[entry], self._options.spinning
        options = session_options(threads=self._threads, packed=packed, spinning=spinning)
        use_weights(options, program.weights)
        if trace is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(trace)
        what = f"entry {entry!r} of {program.artifact.path} cannot be loaded by ONNX Runtime {ort.__version__}"
        with failures_as(IncompatibleError, what, call="InferenceSession", fix="compile the artifact again here"):
            return open_session(program.artifact.file(entry_file(entry)), options)

    def _check_arena(self, memory: MemoryRequirements) -> None:
        limit, needed = self._options.arena_limit, sum(memory.workspace.values())
        if limit is not None and needed > limit:
            raise OutOfMemoryError(
                f"the program needs {needed} bytes of scratch, arena_limit is {limit}",
                fix="raise arena_limit, or compile fewer or smaller entries into one artifact",
            )


def _tensors(spec: EntrySpec) -> Tensors:
    return [bind_arguments(s) for s in spec.inputs], [bind_arguments(s) for s in spec.outputs]


def _bind_all(io: ort.IOBinding, tensors: Tensors, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
    for bind, arguments, regions in ((io.bind_input, tensors[0], inputs), (io.bind_output, tensors[1], outputs)):
        for position, region in regions.items():
            bind(*arguments[position], region.handle.address + region.offset)


def _check_free(needed: int, artifact: Artifact) -> None:
    """The kernel would promise the memory, and kill the process when it is used."""
    free = host_memory().free
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"{artifact.path} needs {needed} bytes for packed weights and scratch; {free} bytes are free",
            fix="open the device with prepack=off, close other programs, or choose a smaller model or precision",
        )


def _check_version(artifact: Artifact) -> None:
    """A newer ONNX Runtime may have written operators this one reads differently."""
    theirs = artifact.manifest.toolchain.get("onnxruntime", "")
    if _release(theirs) > _release(ort.__version__):
        raise IncompatibleError(
            f"{artifact.path} was compiled by ONNX Runtime {theirs}, this is {ort.__version__}",
            fix=f"pip install 'onnxruntime>={theirs}', or compile the artifact again here",
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _check_entry(artifact: Artifact, entry: str, spec: EntrySpec, session: ort.InferenceSession) -> None:
    for kind, values, stated in (
        ("inputs", session.get_inputs(), spec.inputs),
        ("outputs", session.get_outputs(), spec.outputs),
    ):
        found = [tensor_spec(v) for v in values]
        if found != [attrs.evolve(s, quantization=None) for s in stated]:
            raise IncompatibleError(
                f"entry {entry!r} of {artifact.path} has {kind} {[str(f) for f in found]}, "
                f"the manifest states {[str(s) for s in stated]}",
                fix="compile the artifact again",
            )
