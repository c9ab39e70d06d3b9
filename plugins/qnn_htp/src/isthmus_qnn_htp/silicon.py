"""What a chip has and the x86 emulator refuses with status 1000: one seam, untested on silicon.

Registered buffers, a spill-fill buffer shared by contexts, asynchronous execution, a time limit by signal. Tests run it
against a fake function table; nothing here has run on a device.
"""

from __future__ import annotations

import threading
from typing import Any

import attrs

from . import _abi, _lib
from .binary import Tensor
from .memory import Memory


def spill_fill_group(first: _abi.Handle | None, size: int) -> list[Any]:
    """Context configs that make contexts share the spill-fill buffer of the ``first``; none for a ``size`` of 0 bytes."""
    if not size:
        return []
    custom = _abi.QnnHtpContext_CustomConfig_t(_abi.QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_MULTI_CONTEXTS)
    custom.u.groupRegistration.firstGroupHandle = first
    custom.u.groupRegistration.maxSpillFillBuffer = size
    config = _abi.QnnContext_Config_t(_abi.QNN_CONTEXT_CONFIG_OPTION_CUSTOM)
    config.u.customConfig = _lib.address_of(custom)
    config.kept = custom  # the config holds its address
    return [config]


def queue_depth(depth: int) -> list[Any]:
    """Context configs for asynchronous execution; none for a depth of 0."""
    if not depth:
        return []
    config = _abi.QnnContext_Config_t(_abi.QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH)
    config.u.asyncExeQueueDepth.type = _abi.QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_TYPE_NUMERIC
    config.u.asyncExeQueueDepth.depth = depth
    return [config]


class TimeoutSignal:
    """Makes the runtime abort calls that take longer than ``seconds``."""

    def __init__(self, core: _lib.Interface, backend: _abi.Handle, seconds: float) -> None:
        self._core = core
        self.handle = _abi.Handle()
        config = _abi.QnnSignal_Config_t(_abi.QNN_SIGNAL_CONFIG_OPTION_TIMEOUT)
        config.u.timeoutDurationUs = round(seconds * 1e6)
        pointers = _lib.pointers(_abi.QnnSignal_Config_t, [config])
        core.check("limit the time of an execute", "signalCreate", backend, pointers, _lib.ref(self.handle))

    def close(self) -> None:
        """Free the signal."""
        self._core.check("free a signal", "signalFree", self.handle)


class AsyncExecution:
    """Executes through the asynchronous queue and waits for the answer. Called like ``graphExecute``."""

    def __init__(self, core: _lib.Interface) -> None:
        self._execute = core.function("graphExecuteAsync")
        self._done = threading.Event()
        self._status = 0
        self._callback = _abi.Qnn_NotifyFn_t(self._notify)

    def __call__(self, *arguments: Any) -> int:
        """Status of the call, or of the execution once it is over."""
        self._done.clear()
        status = self._execute(*arguments, self._callback, None)
        if status:
            return status
        self._done.wait()
        return self._status

    def _notify(self, _parameter: int | None, status: _abi.Qnn_NotifyStatus_t) -> None:
        self._status = status.error
        self._done.set()


@attrs.frozen
class _Slot:
    memory: int
    offset: int
    tensor: int


class RegisteredBuffers:
    """Registers the regions that tensors of one context are bound to, each once.

    A region of an allocation is a shared buffer's file descriptor and an offset (HTP custom memory descriptor).
    """

    def __init__(self, core: _lib.Interface, context: _abi.Handle) -> None:
        self._core = core
        self._context = context
        self._handles: dict[_Slot, _abi.Handle] = {}

    def attach(self, slot: Any, tensor: Tensor, memory: Memory, offset: int) -> None:
        """Point a tensor struct at ``offset`` of ``memory``."""
        key = _Slot(id(memory), offset, tensor.id)
        if key not in self._handles:
            self._handles[key] = self._register(tensor, memory, offset)
        slot.u.v1.memType = _abi.QNN_TENSORMEMTYPE_MEMHANDLE
        slot.u.v1.mem.memHandle = self._handles[key]

    def forget(self, memory: Memory) -> None:
        """Deregister what lies in an allocation that is about to be freed."""
        for key in [key for key in self._handles if key.memory == id(memory)]:
            self._deregister(self._handles.pop(key))

    def close(self) -> None:
        """Deregister everything."""
        while self._handles:
            self._deregister(self._handles.popitem()[1])

    def _register(self, tensor: Tensor, memory: Memory, offset: int) -> _abi.Handle:
        dimensions = (_abi.u32 * len(tensor.shape))(*tensor.shape)
        custom = _abi.QnnMemHtp_Descriptor_t(_abi.QNN_HTP_MEM_SHARED_BUFFER, memory.length)
        custom.sharedBufferConfig.fd = memory.fd
        custom.sharedBufferConfig.offset = memory.offset + offset
        descriptor = _abi.Qnn_MemDescriptor_t(dataType=tensor.vendor_dtype, memType=_abi.QNN_MEM_TYPE_CUSTOM)
        descriptor.memShape = _abi.Qnn_MemShape_t(len(tensor.shape), dimensions)
        descriptor.u.customInfo = _lib.address_of(custom)
        handle = _abi.Handle()
        self._core.check(
            f"register memory of {tensor.name}", "memRegister", self._context, _lib.ref(descriptor), 1, _lib.ref(handle)
        )
        return handle

    def _deregister(self, handle: _abi.Handle) -> None:
        self._core.check("deregister memory", "memDeRegister", _lib.ref(handle), 1)


class ClientBuffers:
    """Hands the runtime plain addresses, which it copies from and to. What the emulator has."""

    def attach(self, slot: Any, tensor: Tensor, memory: Memory, offset: int) -> None:
        """Point a tensor struct at ``offset`` of ``memory``."""
        slot.u.v1.memType = _abi.QNN_TENSORMEMTYPE_RAW
        slot.u.v1.mem.clientBuf.data = memory.address + offset

    def forget(self, memory: Memory) -> None:
        """Nothing was registered."""

    def close(self) -> None:
        """Nothing was registered."""
