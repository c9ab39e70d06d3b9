"""ONNX Runtime sessions: how they are set up, and what their failures mean."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime as ort
from isthmus.errors import IsthmusError, OutOfMemoryError
from isthmus.types import DType, TensorSpec, VendorStatus
from onnxruntime.capi import onnxruntime_pybind11_state as state

from .graph import ONNX_TYPES
from .memory import host_memory
from .options import Optimization
from .weights import WEIGHTS

LEVELS = {
    Optimization.NONE: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    Optimization.BASIC: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    Optimization.EXTENDED: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
FAILURES = (
    state.EPFail, state.EngineError, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf,
    state.NoModel, state.NoSuchFile, state.NotFound, state.NotImplemented, state.RuntimeException, MemoryError, RuntimeError,
    UnicodeDecodeError,
)  # fmt: skip
"""What ONNX Runtime raises; a message that quotes a name which is not UTF-8 comes as ``UnicodeDecodeError``."""
_FATAL = 4
_RENAMED = {"float": "float32", "double": "float64"}


def session_options(
    optimization: Optimization = Optimization.NONE, *, threads: int = 1, packed: bool = False, spinning: bool = False
) -> ort.SessionOptions:
    """Settings of every session: deterministic, no output of its own, no state shared with other sessions.

    Memory patterns are off: with fixed shapes the arena alone settles after one run, and a pattern would be allocated
    beside it, doubling the scratch.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[optimization]
    options.log_severity_level = _FATAL  # failures come as exceptions
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.enable_mem_pattern = False
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    options.add_session_config_entry("session.disable_prepacking", str(int(not packed)))
    return options


def use_weights(options: ort.SessionOptions, weights: mmap.mmap | memoryview | bytes) -> None:
    """Let sessions compute from ``weights`` (the contents of ``weights.data``) in place. They must outlive sessions."""
    if len(weights):
        options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
        options.add_external_initializers_from_files_in_memory([WEIGHTS], [weights], [len(weights)])


def open_session(model: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Make a session on the CPU. The built-in retry is off: it would print, and there is nothing to fall back to."""
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"], enable_fallback=0)


def bind_arguments(spec: TensorSpec) -> tuple[Any, ...]:
    """What ``io.bind_input`` and ``io.bind_output`` take for a tensor, before its address."""
    return spec.name, "cpu", 0, ONNX_TYPES[spec.dtype], list(spec.shape)


def tensor_spec(value: ort.NodeArg) -> TensorSpec | None:
    """The spec of an input or output of a session; ``None`` for anything but a tensor of fixed shape."""
    match = re.fullmatch(r"tensor\((\w+)\)", value.type)
    if match is None or match[1] == "string" or not all(isinstance(d, int) for d in value.shape):
        return None
    return TensorSpec(value.name, DType(_RENAMED.get(match[1], match[1])), tuple(value.shape))


@contextmanager
def failures_as(error: type[IsthmusError], what: str, *, call: str, fix: str | None = None) -> Iterator[None]:
    """Turn a failure of ONNX Runtime into ``error``, or into ``OutOfMemoryError`` if it is one."""
    try:
        yield
    except FAILURES as failure:
        raise failed(failure, error, what, call=call, fix=fix) from failure


def failed(
    failure: BaseException, error: type[IsthmusError], what: str, *, call: str, fix: str | None = None
) -> IsthmusError:
    """The error that says what a failure of ONNX Runtime means."""
    text = " ".join(str(failure).split())
    status = VendorStatus(call, symbol=type(failure).__name__, text=text)
    if not (isinstance(failure, MemoryError) or "bad_alloc" in text or "Failed to allocate memory" in text):
        return error(what, fix=fix, status=status)
    size = re.search(r"size (\d+)", text)
    return OutOfMemoryError(
        f"{what}: ONNX Runtime asked for {size[1] if size else 'more'} bytes; {host_memory().free} are free",
        fix="close other programs, or choose a smaller model, context or precision",
        status=status,
    )
