"""ONNX Runtime sessions: how they are set up, and what their failures mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnxruntime as ort
from isthmus.errors import IsthmusError, OutOfMemoryError
from isthmus.types import VendorStatus
from onnxruntime.capi import onnxruntime_pybind11_state as state

from .memory import host_memory

PROVIDERS = ["CPUExecutionProvider"]
FATAL = 4
FAILURES = (
    state.EPFail, state.EngineError, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf,
    state.NoModel, state.NoSuchFile, state.NotFound, state.NotImplemented, state.RuntimeException,
)  # fmt: skip


def session_options(level: ort.GraphOptimizationLevel, threads: int) -> ort.SessionOptions:
    """Settings every session has: deterministic, quiet (failures come as errors), no spinning, nothing global."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = FATAL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def open_session(model: Path | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    """Make a session on the CPU."""
    source = str(model) if isinstance(model, Path) else model
    return ort.InferenceSession(source, options, providers=PROVIDERS)


@contextmanager
def failures_as(error: type[IsthmusError], what: str, *, call: str, fix: str | None = None) -> Iterator[None]:
    """Turn a failure of ONNX Runtime into ``error``, or into ``OutOfMemoryError`` if it is one."""
    try:
        yield
    except (*FAILURES, MemoryError) as failure:
        text = " ".join(str(failure).split())
        status = VendorStatus(call, symbol=type(failure).__name__, text=text)
        if isinstance(failure, MemoryError) or "bad_alloc" in text or "Failed to allocate" in text:
            raise _out_of_memory(what, text, status) from failure
        raise error(what, fix=fix, status=status) from failure


def _out_of_memory(what: str, text: str, status: VendorStatus) -> OutOfMemoryError:
    size = re.search(r"size (\d+)", text)
    asked = f"asked for {size[1]} bytes" if size else "asked for more than there is"
    return OutOfMemoryError(
        f"{what}: ONNX Runtime {asked}; {host_memory().free} bytes are free",
        fix="close other programs, or choose a smaller model, context or precision",
        status=status,
    )
