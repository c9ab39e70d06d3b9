"""Writes `.om` files in the vendor's layout, from facts on it; the real reader's structures are in GE's sources.

Little-endian. A 256-byte header, `{u32 count, u32 pad}` and 24-byte partition entries `{u32 type, u32 pad, u64 offset,
u64 size}`, then the partitions in the order of the entries. What the simulated device runs is in a partition of a type
that no vendor reader knows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

MAGIC = 0x444F4D49
HEADER_SIZE = 256
VERSION = 0x20000000
MODEL_DEF, WEIGHTS_DATA, TASK_INFO, MODEL_INOUT_INFO = 0, 1, 2, 8
PROGRAM = 0x4D534900
PROGRAM_VERSION = 1
INPUTS, OUTPUTS, BATCH_GEARS, IMAGE_GEARS, DIMS_GEARS, GEAR_OUTPUTS, NAME_ORDER = range(7)


@attrs.frozen
class IoTensor:
    """An input or output as the model file states it; ``dims`` may hold -1, ``ranges`` is for range shapes."""

    name: str
    size: int
    format: int
    dtype: int
    dims: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...] = ()
    dims_v2: tuple[int, ...] | None = None
    """What the graph itself takes, where AIPP makes it differ."""


@attrs.frozen
class IoBlock:
    """Inputs, outputs and gears. ``gear_kind`` is one of the ``*_GEARS`` records."""

    inputs: Sequence[IoTensor]
    outputs: Sequence[IoTensor]
    gear_kind: int | None = None
    gears: Sequence[tuple[int, ...]] = ()
    gear_outputs: Sequence[str] = ()
    """``gear,output,d0,d1,...``"""
    name_order: Sequence[str] = ()


@attrs.frozen
class Weights:
    """The weights partition: its size, and its bytes in pieces."""

    size: int
    pieces: Iterable[bytes]


@attrs.frozen
class OmModel:
    """All that goes into a file."""

    name: str
    soc: str
    operators: int
    work_size: int
    zero_copy_size: int
    io: IoBlock
    weights: Weights
    program: bytes
    """ONNX bytes for the simulated device."""
    external: Sequence[tuple[str, int]] = ()
    """Names and sizes of weight files beside the om."""
    range_shape: bool = False
    attributes: Mapping[str, str | int] = attrs.field(factory=dict)
    """More attributes of the model definition."""


def write_om(model: OmModel, path: Path) -> None:
    """Write ``model`` to ``path``; the weights pass through, they are never all in memory."""
    parts: list[tuple[int, int, Iterable[bytes]]] = [
        _whole(MODEL_DEF, _model_definition(model)),
        (WEIGHTS_DATA, model.weights.size, model.weights.pieces),
        _whole(TASK_INFO, _task_info(model)),
        _whole(MODEL_INOUT_INFO, _io_block(model.io)),
        _whole(PROGRAM, _program(model)),
    ]
    table = struct.pack("<I4x", len(parts))
    offset = 0
    for kind, size, _ in parts:
        table += struct.pack("<I4xQQ", kind, offset, size)
        offset += size
    with path.open("wb") as file:
        file.write(_header(model, len(table) + offset))
        file.write(table)
        for _, size, pieces in parts:
            _copy(pieces, size, file.write)


def _whole(kind: int, data: bytes) -> tuple[int, int, Iterable[bytes]]:
    return kind, len(data), (data,)


def _copy(pieces: Iterable[bytes], size: int, write: object) -> None:
    assert callable(write)
    written = sum(write(piece) for piece in pieces)
    if written != size:
        raise ValueError(f"a partition announced {size} bytes and has {written}")


def _header(model: OmModel, length: int) -> bytes:
    """256 bytes; the field at 76 holds what fits of the length, the one at 184 all of it."""
    return struct.pack(
        "<III64sIBBBB32sI32sII20sB3sQBB62s",
        MAGIC,
        HEADER_SIZE,
        VERSION,
        b"",
        length & 0xFFFFFFFF,
        *(0, 0, 0, 0),  # not encrypted, no checksum, IR model, generated whole
        model.name.encode()[:31],
        model.operators,
        b"",
        *(0, 1),  # IR version, number of models
        b"simulated",
        0,
        b"",
        length,
        *(0, int(model.range_shape)),
        b"",
    )


# ---- protobuf: GE's ModelDef and ModelTaskDef ----


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _attribute(name: str, value: str | int) -> bytes:
    """An entry of a ``map<string, AttrDef>``; AttrDef holds text in field 2 and integers in field 3."""
    definition = _integer(3, value) if isinstance(value, int) else _bytes(2, value.encode())
    return _bytes(11, _bytes(1, name.encode()) + _bytes(2, definition))


def _model_definition(model: OmModel) -> bytes:
    """ModelDef: name 1, version 2, custom_version 3, attr 11."""
    attributes: dict[str, str | int] = {
        "soc_version": model.soc,
        "memory_size": model.work_size,
        "weight_size": model.weights.size,
        "zero_copy_memory_size": model.zero_copy_size,
        "stream_num": 1,
        "event_num": 0,
        **model.attributes,
    }
    head = _bytes(1, model.name.encode()) + _integer(2, 1) + _bytes(3, b"simulated")
    return head + b"".join(_attribute(name, value) for name, value in attributes.items())


def _task_info(model: OmModel) -> bytes:
    """ModelTaskDef: memory_size 11, stream_num 12, event_num 13, weight_size 14."""
    return _integer(11, model.work_size) + _integer(12, 1) + _integer(13, 0) + _integer(14, model.weights.size)


# ---- MODEL_INOUT_INFO ----


def _io_block(io: IoBlock) -> bytes:
    records = [_record(INPUTS, _tensors(io.inputs)), _record(OUTPUTS, _tensors(io.outputs))]
    if io.gear_kind is not None:
        records.append(_record(io.gear_kind, _gears(io.gear_kind, io.gears)))
    for kind, texts in ((GEAR_OUTPUTS, io.gear_outputs), (NAME_ORDER, io.name_order)):
        if texts:
            records.append(_record(kind, _texts(texts)))
    return b"".join(records)


def _record(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body)) + body


def _tensors(tensors: Sequence[IoTensor]) -> bytes:
    return struct.pack("<I", len(tensors)) + b"".join(_tensor(t) for t in tensors)


def _tensor(tensor: IoTensor) -> bytes:
    """``{u64 size, i32 format, i32 dtype, u32 lengths of name, dims, dimsV2, ranges}`` and those, in bytes."""
    name = tensor.name.encode()
    dims, dims_v2 = (struct.pack(f"<{len(d)}q", *d) for d in (tensor.dims, tensor.dims_v2 or tensor.dims))
    ranges = b"".join(struct.pack("<qq", *r) for r in tensor.ranges)
    head = struct.pack(
        "<QiiIIII", tensor.size, tensor.format, tensor.dtype, len(name), len(dims), len(dims_v2), len(ranges)
    )
    return head + name + dims + dims_v2 + ranges


def _gears(kind: int, gears: Sequence[tuple[int, ...]]) -> bytes:
    """Batch: ``u32 n, i64[n]``. Image and dims: ``u32 n, u32 lengths[n]``, then the values."""
    lengths = b"" if kind == BATCH_GEARS else struct.pack(f"<{len(gears)}I", *map(len, gears))
    values = b"".join(struct.pack(f"<{len(g)}q", *g) for g in gears)
    return struct.pack("<I", len(gears)) + lengths + values


def _texts(texts: Sequence[str]) -> bytes:
    data = [t.encode() for t in texts]
    return struct.pack(f"<I{len(data)}I", len(data), *map(len, data)) + b"".join(data)


def _program(model: OmModel) -> bytes:
    """Our own: ``u32 version, u32 files, {u32 name length, u64 size, name}``, then ONNX."""

    def entries() -> Iterator[bytes]:
        for name, size in model.external:
            yield struct.pack("<IQ", len(name.encode()), size) + name.encode()

    return struct.pack("<II", PROGRAM_VERSION, len(model.external)) + b"".join(entries()) + model.program
