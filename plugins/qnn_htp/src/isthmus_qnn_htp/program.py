"""Loaded context binaries, and graphs with their tensors bound."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import attrs
from isthmus.spi import Region

from . import _abi, _lib
from .binary import Tensor, mapped
from .checks import MatchedGraph
from .device_options import Priority
from .memory import Memory
from .session import Session
from .silicon import AsyncExecution, ClientBuffers, RegisteredBuffers, TimeoutSignal, queue_depth, spill_fill_group
from .status import vendor_error

_PRIORITIES = {Priority.LOW: 0, Priority.NORMAL_HIGH: 150, Priority.HIGH: 200}


@attrs.frozen
class LoadedGraph:
    """One entry, ready to be bound."""

    handle: _abi.Handle
    graph: MatchedGraph
    buffers: ClientBuffers | RegisteredBuffers


class Program:
    """The contexts of one artifact, and its entries."""

    def __init__(
        self,
        session: Session,
        device: _abi.Handle,
        directory: Path,
        matched: Mapping[str, Sequence[MatchedGraph]],
        *,
        registered: bool,
        spill_fill: int,
        held: AbstractContextManager[None] | None = None,
    ) -> None:
        """Load the files named by ``matched``, or none.

        ``spill_fill``: bytes of the buffer they share; 0: they do not. ``held`` is entered before and left after.
        """
        self._session = session
        self.entries: dict[str, LoadedGraph] = {}
        first: _abi.Handle | None = None
        with ExitStack() as closing:
            closing.enter_context(held or nullcontext())
            for file, graphs in matched.items():
                context = self._load(device, directory / file, spill_fill_group(first, spill_fill))
                closing.callback(session.core.check, f"unload {file}", "contextFree", context, None)
                first = first or context
                buffers = RegisteredBuffers(session.core, context) if registered else ClientBuffers()
                closing.callback(buffers.close)
                for graph in graphs:
                    self.entries[graph.entry] = LoadedGraph(self._retrieve(context, graph), graph, buffers)
            self._closing = closing.pop_all()

    def unload(self) -> None:
        """Free the contexts."""
        self._closing.close()

    def forget(self, memory: Memory) -> None:
        """Forget memory that is about to be freed."""
        for loaded in self.entries.values():
            loaded.buffers.forget(memory)

    def _load(self, device: _abi.Handle, path: Path, group: Sequence[Any]) -> _abi.Handle:
        session, context = self._session, _abi.Handle()
        configs = [*_priority(session.options.priority), *queue_depth(session.options.async_depth), *group]
        pointers = _lib.pointers(_abi.QnnContext_Config_t, configs)
        with mapped(path) as (address, size):
            session.core.check(
                f"load {path.name}", "contextCreateFromBinary",
                session.backend, device, pointers, address, size, _lib.ref(context), None,
            )  # fmt: skip
        return context

    def _retrieve(self, context: _abi.Handle, graph: MatchedGraph) -> _abi.Handle:
        handle = _abi.Handle()
        self._session.core.check(
            f"find graph {graph.name}", "graphRetrieve", context, graph.name.encode(), _lib.ref(handle)
        )
        return handle


class Binding:
    """A graph with its tensors pointed at memory. ``execute`` is one call."""

    def __init__(
        self,
        session: Session,
        loaded: LoadedGraph,
        inputs: Sequence[Region],
        outputs: Sequence[Region],
        signal: TimeoutSignal | None,
    ) -> None:
        self._core = session.core
        self._graph, self._buffers = loaded.graph, loaded.buffers
        self._kept: list[Any] = []
        self._inputs, self._outputs = self._tensors(loaded.graph.inputs), self._tensors(loaded.graph.outputs)
        self.rebind(dict(enumerate(inputs)), dict(enumerate(outputs)))
        asynchronous = session.options.async_depth > 0
        run = AsyncExecution(session.core) if asynchronous else session.core.function("graphExecute")
        self._name = "graphExecuteAsync" if asynchronous else "graphExecute"
        self._call: Callable[..., int] = functools.partial(
            run, loaded.handle, self._inputs, len(inputs), self._outputs, len(outputs)
        )
        self._signal = signal.handle if signal else None
        self._plain: Callable[[], int] = functools.partial(self._call, None, self._signal)

    def rebind(self, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        """Point some tensors, by position, at other memory."""
        attach = self._buffers.attach
        for slots, tensors, regions in (
            (self._inputs, self._graph.inputs, inputs),
            (self._outputs, self._graph.outputs, outputs),
        ):
            for position, region in regions.items():
                attach(slots[position], tensors[position], region.handle, region.offset)

    def execute(self) -> None:
        """Run to completion."""
        if status := self._plain():
            self._fail(status)

    def execute_profiled(self, profile: _abi.Handle) -> None:
        """Run to completion, measured."""
        if status := self._call(profile, self._signal):
            self._fail(status)

    def _fail(self, status: int) -> None:
        code = status & 0xFFFF
        raise vendor_error(self._name, code, self._core.message(code), f"execute {self._graph.entry!r}")

    def _tensors(self, tensors: Sequence[Tensor]) -> Any:
        array = (_abi.Qnn_Tensor_t * len(tensors))()
        for slot, tensor in zip(array, tensors):
            name, dimensions = tensor.name.encode(), (_abi.u32 * len(tensor.shape))(*tensor.shape)
            self._kept += [name, dimensions]  # ctypes does not keep what is reached through an array
            slot.version = 1
            body = slot.u.v1
            body.id, body.name, body.type = tensor.id, name, tensor.vendor_type
            body.dataFormat, body.dataType = tensor.vendor_format, tensor.vendor_dtype
            body.rank, body.dimensions = len(tensor.shape), dimensions
            body.mem.clientBuf.dataSize = tensor.spec().nbytes
            _quantize(body.quantizeParams, tensor)
        return array


def _priority(priority: Priority) -> list[Any]:
    if priority is Priority.NORMAL:
        return []
    config = _abi.QnnContext_Config_t(_abi.QNN_CONTEXT_CONFIG_OPTION_PRIORITY)
    config.u.priority = _PRIORITIES[priority]
    return [config]


def _quantize(params: Any, tensor: Tensor) -> None:
    if tensor.quantization is None:
        params.encodingDefinition = params.quantizationEncoding = _abi.QNN_DEFINITION_UNDEFINED
        return
    params.encodingDefinition = _abi.QNN_DEFINITION_DEFINED
    params.quantizationEncoding = _abi.QNN_QUANTIZATION_ENCODING_SCALE_OFFSET
    params.u.scaleOffsetEncoding.scale = tensor.quantization.scale[0]
    params.u.scaleOffsetEncoding.offset = -tensor.quantization.zero_point[0]
