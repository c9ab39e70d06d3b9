"""The process that computes for the simulated device: `python executor.py SOCKET MEMORY`.

The library starts it, as a script so that nothing but numpy and ONNX Runtime is imported. It speaks over the socket in fixed little-endian records and reads and writes tensors in the
device memory file, which both map.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
from typing import Any

import numpy as np
import onnxruntime as ort

_NOWHERE = 2**64 - 1
_LOAD, _UNLOAD, _EXECUTE, _FETCH = 1, 2, 3, 4
_NUMPY = {
    "tensor(float)": "<f4",
    "tensor(float16)": "<f2",
    "tensor(double)": "<f8",
    "tensor(int8)": "i1",
    "tensor(uint8)": "u1",
    "tensor(int16)": "<i2",
    "tensor(uint16)": "<u2",
    "tensor(int32)": "<i4",
    "tensor(uint32)": "<u4",
    "tensor(int64)": "<i8",
    "tensor(uint64)": "<u8",
    "tensor(bool)": "?",
}


class Reader:
    """A cursor over one request."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """Unpack the next fields."""
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def take_bytes(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def rest(self) -> bytes:
        """All that is left."""
        return bytes(self._data[self._at :])


class Program:
    """One loaded model: a session and the outputs that wait to be fetched."""

    def __init__(self, onnx: bytes, files: dict[str, memoryview]) -> None:
        options = ort.SessionOptions()
        # Fusions would compute several operators in fp32 before the result is rounded to fp16.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.log_severity_level = 3
        if files:
            names = list(files)
            options.add_external_initializers_from_files_in_memory(
                names, [files[n] for n in names], [len(files[n]) for n in names]
            )
        self.session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        self.inputs = [(i.name, np.dtype(_NUMPY[i.type])) for i in self.session.get_inputs()]
        self.waiting: dict[int, np.ndarray[Any, Any]] = {}


class Executor:
    """Answers requests until the library closes its end."""

    def __init__(self, channel: socket.socket, memory: mmap.mmap) -> None:
        self._channel = channel
        self._memory = memory
        self._programs: dict[int, Program] = {}

    def run(self) -> None:
        """Serve until the other end closes."""
        while (head := self._receive(16)) is not None:
            operation, model, size = struct.unpack("<IIQ", head)
            body = self._receive(size)
            if body is None:
                return
            try:
                failed, answer = 0, self._answer(operation, model, Reader(body))
            except Exception as error:  # noqa: BLE001  whatever ONNX Runtime raises becomes the call's error text
                failed, answer = 1, f"{type(error).__name__}: {error}".encode()[:2000]
            self._channel.sendall(struct.pack("<II", failed, len(answer)) + answer)

    def _receive(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            piece = self._channel.recv(min(size - len(data), 1 << 20))
            if not piece:
                return None
            data += piece
        return bytes(data)

    def _answer(self, operation: int, model: int, body: Reader) -> bytes:
        if operation == _LOAD:
            self._programs[model] = self._load(body)
            return b""
        if operation == _UNLOAD:
            self._programs.pop(model, None)
            return b""
        if model not in self._programs:
            raise KeyError(f"model {model} was lost when the worker ended")
        if operation == _EXECUTE:
            return self._execute(self._programs[model], body)
        if operation == _FETCH:
            output, offset, size = body.take("IQQ")
            self._store(offset, size, self._programs[model].waiting.pop(output))
            return b""
        raise ValueError(f"operation {operation}")

    def _load(self, body: Reader) -> Program:
        (count,) = body.take("I")
        files: dict[str, memoryview] = {}
        for _ in range(count):
            offset, size, length = body.take("QQI")
            files[body.take_bytes(length).decode()] = memoryview(self._memory)[offset : offset + size]
        return Program(body.rest(), files)

    def _execute(self, program: Program, body: Reader) -> bytes:
        in_count, out_count = body.take("II")
        ins = [self._tensor(body) for _ in range(in_count)]
        outs = [self._tensor(body) for _ in range(out_count)]
        feeds = {
            name: np.frombuffer(self._memory, dtype, size // dtype.itemsize, offset).reshape(dims)
            for (name, dtype), (offset, size, dims) in zip(program.inputs, ins)
        }
        results = program.session.run(None, feeds)
        answer = b""
        for index, (result, (offset, size, _)) in enumerate(zip(results, outs)):
            if offset == _NOWHERE:
                program.waiting[index] = result
            else:
                self._store(offset, size, result)
            answer += struct.pack(f"<QI{result.ndim}q", result.nbytes, result.ndim, *result.shape)
        return answer

    @staticmethod
    def _tensor(body: Reader) -> tuple[int, int, tuple[int, ...]]:
        offset, size, rank = body.take("QQI")
        return offset, size, body.take(f"{rank}q")

    def _store(self, offset: int, size: int, result: np.ndarray[Any, Any]) -> None:
        if result.nbytes > size:
            raise ValueError(f"an output has {result.nbytes} bytes, its buffer {size}")
        target = np.frombuffer(self._memory, result.dtype, result.size, offset)
        target[:] = result.reshape(-1)


def main() -> None:
    """Serve on the two inherited descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C belongs to the process that owns the device
    channel = socket.socket(fileno=int(sys.argv[1]))
    memory = mmap.mmap(int(sys.argv[2]), os.fstat(int(sys.argv[2])).st_size)
    Executor(channel, memory).run()


if __name__ == "__main__":
    main()
