"""Device ``cpu:0``: ONNX Runtime over buffers of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import onnxruntime as ort
from isthmus.artifact import Artifact
from isthmus.errors import ExecutionError, IncompatibleError
from isthmus.spi import CallerMemory, Region
from isthmus.types import Capability, EntrySpec, MemoryRequirements, TensorSpec

from .compile import entry_file
from .graph import ONNX_TYPES
from .memory import HostDriver, view
from .session import failures_as, open_session, session_options
from .weights import WEIGHTS


@attrs.frozen
class DeviceOptions:
    """Options of ``open_device("cpu")``."""

    threads: int | None = attrs.field(default=None, metadata={"help": "threads per node; default: the CPUs allowed"})


@attrs.frozen(eq=False)
class LoadedProgram:
    """Sessions by entry, and the weights they all compute from."""

    sessions: Mapping[str, ort.InferenceSession]
    entries: Mapping[str, EntrySpec]
    weights: Any


@attrs.frozen(eq=False)
class BoundEntry:
    """A session with its buffers fixed."""

    session: ort.InferenceSession
    io: ort.IOBinding
    spec: EntrySpec


class CpuDriver(HostDriver):
    """ONNX Runtime on the CPUs of this process."""

    capabilities = frozenset(
        {Capability.CALLER_WEIGHTS, Capability.HUGE_PAGES, Capability.HOST_VISIBLE, Capability.ALIASED_IO}
    )

    def __init__(self, options: DeviceOptions) -> None:
        self._threads = options.threads or len(os.sched_getaffinity(0))

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return artifact.manifest.memory

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> LoadedProgram:
        lent = memory.weights if memory else None
        weights = _mapped(artifact) if lent is None else _filled(artifact, lent)
        sessions = {name: self._session(artifact, name, weights, packed=lent is None) for name in artifact.entries}
        return LoadedProgram(sessions, artifact.entries, weights)

    def _session(
        self, artifact: Artifact, entry: str, weights: np.ndarray[Any, Any], *, packed: bool
    ) -> ort.InferenceSession:
        options = session_options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL, self._threads)
        options.add_session_config_entry("session.disable_prepacking", str(int(not packed)))
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
        if weights.nbytes:
            options.add_external_initializers_from_files_in_memory([WEIGHTS], [weights], [weights.nbytes])
        with failures_as(
            IncompatibleError,
            f"entry {entry!r} of {artifact.path} cannot be loaded by ONNX Runtime {ort.__version__}",
            call="InferenceSession",
        ):
            return open_session(artifact.file(entry_file(entry)), options)

    def unload(self, program: LoadedProgram) -> None:
        pass

    def bind(
        self, program: LoadedProgram, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]
    ) -> BoundEntry:
        session, spec = program.sessions[entry], program.entries[entry]
        bound = BoundEntry(session, session.io_binding(), spec)
        self.rebind(bound, dict(enumerate(inputs)), dict(enumerate(outputs)))
        return bound

    def rebind(self, binding: BoundEntry, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        for position, region in inputs.items():
            _bind(binding.io.bind_input, binding.spec.inputs[position], region)
        for position, region in outputs.items():
            _bind(binding.io.bind_output, binding.spec.outputs[position], region)

    def unbind(self, binding: BoundEntry) -> None:
        pass

    def execute(self, binding: BoundEntry) -> None:
        with failures_as(ExecutionError, "the graph failed", call="Run"):
            binding.session.run_with_iobinding(binding.io)

    def close(self) -> None:
        pass


def _bind(call: Any, spec: TensorSpec, region: Region) -> None:
    address = region.handle.address + region.offset if region.size else 0
    call(spec.name, "cpu", 0, ONNX_TYPES[spec.dtype], list(spec.shape), address)


def _mapped(artifact: Artifact) -> np.ndarray[Any, Any]:
    file = artifact.file(WEIGHTS)
    return np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)


def _filled(artifact: Artifact, region: Region) -> np.ndarray[Any, Any]:
    """The caller's buffer as an array, with the weights read into it."""
    with artifact.file(WEIGHTS).open("rb") as file:
        file.readinto(view(region))
    return np.frombuffer(view(region), np.uint8)
