"""Reads an ``.om`` without CANN: header, partitions, inputs and outputs, gears, memory sizes, SoC.

Layout: GE's ``model_file_header`` and ``ModelPartitionTable`` (little-endian), ``MODEL_INOUT_INFO`` records, and two
protobuf messages of which only a few fields are looked at. Every length in the file is taken as hostile: nothing is
read outside of the partition that holds it, and nothing larger than the limits below is read at once. Weights and
kernels are never read, only measured.
"""

from __future__ import annotations

import enum
import hashlib
import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import attrs
from isthmus.errors import InputError
from isthmus.types import DType, TensorSpec

from . import _abi
from .gears import GearKind, Gears
from .om_parts import DamagedError, exactly, fields, limited

MAGIC = 0x444F4D49  # "IMOD"
HEADER = struct.Struct("<III64sIBBBB32sI32sII20sBxxxQBB62s")
_ZIP = b"PK\x03\x04"
_MAX_PARTITIONS = 64
_MAX_INOUT = 16 << 20
_MAX_STRING = 4096
_MAX_RANK = 128
_MAX_GEARS = 1024

DTYPES = {
    _abi.ACL_FLOAT: DType.FLOAT32,
    _abi.ACL_FLOAT16: DType.FLOAT16,
    _abi.ACL_INT8: DType.INT8,
    _abi.ACL_INT32: DType.INT32,
    _abi.ACL_UINT8: DType.UINT8,
    _abi.ACL_INT16: DType.INT16,
    _abi.ACL_UINT16: DType.UINT16,
    _abi.ACL_UINT32: DType.UINT32,
    _abi.ACL_INT64: DType.INT64,
    _abi.ACL_UINT64: DType.UINT64,
    _abi.ACL_DOUBLE: DType.FLOAT64,
    _abi.ACL_BOOL: DType.BOOL,
    _abi.ACL_BF16: DType.BFLOAT16,
    _abi.ACL_INT4: DType.INT4,
}
"""aclDataType -> element type; the ones without a counterpart are left out."""


class Partition(enum.IntEnum):
    """Partition types this reader names."""

    MODEL_DEF = 0
    WEIGHTS = 1
    TASK_INFO = 2
    TBE_KERNELS = 3
    AICPU_KERNELS = 4
    SO_BINS = 5
    INOUT_INFO = 8
    TILING = 12
    CUSTOM_OPS = 26


DEVICE_CODE = frozenset({Partition.TBE_KERNELS, Partition.AICPU_KERNELS, Partition.CUSTOM_OPS})
"""Partitions that GE copies to the device at load, beside weights and workspace."""


@attrs.frozen
class Tensor:
    """One input or output as the file states it. ``shape`` holds -1 where gears give the dimension."""

    name: str
    dtype: int
    """aclDataType."""
    format: int
    """aclFormat."""
    shape: tuple[int, ...]
    shape_v2: tuple[int, ...]
    """``aclmdlGetInputDimsV2``: differs from ``shape`` only with AIPP."""
    size: int
    """Bytes, of the largest gear; 0 if unknown."""

    def spec(self) -> TensorSpec:
        """As a tensor of an entry. ``InputError``: a dynamic dimension, or an element type that has no counterpart."""
        if self.dtype not in DTYPES:
            raise InputError(f"{self.name} has aclDataType {self.dtype}, which isthmus does not carry")
        specs = [
            TensorSpec(self.name, DTYPES[self.dtype], s) for s in (self.shape, self.shape_v2) if min(s, default=0) >= 0
        ]
        if not specs:
            raise InputError(f"{self.name} has the dynamic shape {list(self.shape)}")
        return next((s for s in specs if s.nbytes == self.size), specs[0])


@attrs.frozen
class Om:
    """What one file says of itself."""

    version: int
    name: str
    platform: str
    models: int
    """Submodels; more than one only with range shapes."""
    range_shape: bool
    """GE then allocates workspace while it runs: ``work_size`` is 0 and says nothing."""
    encrypted: bool
    partitions: tuple[tuple[int, int, int], ...]
    """Type, offset in the file, bytes."""
    inputs: tuple[Tensor, ...]
    """Without the gear input."""
    outputs: tuple[Tensor, ...]
    gears: Gears | None
    work_size: int
    """Bytes of workspace, inputs and outputs included."""
    streams: int
    events: int
    soc_version: str | None

    @property
    def weight_size(self) -> int:
        """Bytes of the weights inside the file; external weights are not counted."""
        return sum(size for kind, _, size in self.partitions if kind == Partition.WEIGHTS)

    @property
    def device_code_size(self) -> int:
        """Bytes of kernels that load copies to the device."""
        return sum(size for kind, _, size in self.partitions if kind in DEVICE_CODE)

    def describe(self) -> dict[str, Any]:
        """JSON-ready data for ``isthmus inspect``."""
        return {
            "format": "om",
            "version": f"{self.version:#x}",
            "name": self.name,
            "soc_version": self.soc_version,
            "platform": self.platform,
            "shapes": "range" if self.range_shape else "gears" if self.gears else "static",
            "encrypted": self.encrypted,
            "work_size": self.work_size,
            "weight_size": self.weight_size,
            "device_code_size": self.device_code_size,
            "streams": self.streams,
            "events": self.events,
            "inputs": [_describe(t) for t in self.inputs],
            "outputs": [_describe(t) for t in self.outputs],
            "gears": None if self.gears is None else {"kind": self.gears.kind.value, "values": self.gears.values},
            "partitions": [
                {"type": Partition(k).name if k in set(Partition) else str(k), "offset": o, "size": s}
                for k, o, s in self.partitions
            ],
        }


class Kind(enum.Enum):
    """What a file is, by its first bytes."""

    OM = "om"
    OM2 = "om2"
    OTHER = "other"


def kind_of(path: Path) -> Kind:
    """An ``.om``, its successor OM2 (a zip that is called ``.om``), or something else."""
    with path.open("rb") as file:
        start = file.read(4)
    if start == struct.pack("<I", MAGIC):
        return Kind.OM
    return Kind.OM2 if start == _ZIP and path.suffix == ".om" else Kind.OTHER


def read_om(path: Path) -> Om:
    """Read a file. ``InputError`` if it is not an ``.om``, is damaged, or is an OM2."""
    with path.open("rb") as file:
        try:
            return _read(file, path.stat().st_size)
        except (DamagedError, struct.error, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} is not a valid .om: {error}",
                why="damaged, cut short, or another format",
                fix="compile it again",
            ) from error


def weights_sha256(path: Path, om: Om) -> str:
    """Hex SHA-256 of the weights inside the file; two models with the same one can share a copy on the device."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for kind, offset, size in om.partitions:
            if kind == Partition.WEIGHTS:
                file.seek(offset)
                for left in range(size, 0, -(1 << 20)):
                    digest.update(file.read(min(left, 1 << 20)))
    return digest.hexdigest()


def _read(file: BinaryIO, size: int) -> Om:
    start = file.read(HEADER.size)
    if start.startswith(_ZIP):
        raise InputError("an OM2 container (zip); only the older .om layout is known here", fix="inspect it with CANN")
    if len(start) < HEADER.size:
        raise DamagedError(f"{size} bytes are less than a header")
    header = HEADER.unpack(start)
    magic, head_size, version, _, short_length, encrypted = header[:6]
    if magic != MAGIC or head_size != HEADER.size:
        raise DamagedError("no IMOD header")
    name, models, platform, long_length, unknown = (header[i] for i in (9, 13, 14, 16, 18))
    if (length := long_length or short_length) != size - HEADER.size:
        raise DamagedError(f"the header announces {HEADER.size + length} bytes, the file has {size}")
    partitions = tuple(_partitions(file, size, wide=long_length != 0))
    inputs, outputs, gears = _inout(file, partitions)
    task = dict(_integers(file, partitions, Partition.TASK_INFO))
    return Om(
        version=version,
        name=_text(name),
        platform=_text(platform),
        models=models,
        range_shape=version >= 0x20000000 and (models > 1 or unknown == 1),
        encrypted=bool(encrypted),
        partitions=partitions,
        inputs=inputs,
        outputs=outputs,
        gears=gears,
        work_size=task.get(11, 0),
        streams=task.get(12, 0),
        events=task.get(13, 0),
        soc_version=_model_attribute(file, partitions, b"soc_version"),
    )


def _partitions(file: BinaryIO, size: int, wide: bool) -> Iterator[tuple[int, int, int]]:
    """Sizes accumulate from the end of the table; the offsets in it are not used by GE either."""
    head, entry = (
        (struct.Struct("<I4x"), struct.Struct("<I4xQQ")) if wide else (struct.Struct("<I"), struct.Struct("<III"))
    )
    (count,) = head.unpack(exactly(file, head.size))
    if count > _MAX_PARTITIONS:
        raise DamagedError(f"{count} partitions")
    table = exactly(file, count * entry.size)
    offset = HEADER.size + head.size + len(table)
    for kind, _, length in entry.iter_unpack(table):
        if length > size - offset:
            raise DamagedError(f"partition {kind} of {length} bytes at {offset} leaves the file of {size}")
        yield kind, offset, length
        offset += length


def _span(partitions: tuple[tuple[int, int, int], ...], kind: Partition) -> tuple[int, int]:
    return next(((o, s) for k, o, s in partitions if k == kind), (0, 0))


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", errors="replace")


def _describe(tensor: Tensor) -> dict[str, Any]:
    dtype = DTYPES[tensor.dtype].value if tensor.dtype in DTYPES else f"aclDataType {tensor.dtype}"
    return {"name": tensor.name, "dtype": dtype, "shape": list(tensor.shape), "size": tensor.size}


# ---- MODEL_INOUT_INFO: {u32 type, u32 length} records


def _inout(
    file: BinaryIO, partitions: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], Gears | None]:
    offset, size = _span(partitions, Partition.INOUT_INFO)
    if size > _MAX_INOUT:
        raise DamagedError(f"{size} bytes of input and output descriptions")
    file.seek(offset)
    stream = io.BytesIO(exactly(file, size))
    tensors: dict[int, tuple[Tensor, ...]] = {}
    gears: Gears | None = None
    while stream.tell() < size:
        kind, length = struct.unpack("<II", exactly(stream, 8))
        record = exactly(stream, length)
        if kind in (0, 1):
            tensors[kind] = tuple(_tensors(io.BytesIO(record)))
        elif kind in _GEAR_RECORDS and length > 4:
            gears = _gears(_GEAR_RECORDS[kind], io.BytesIO(record))
    hidden = _abi.ACL_DYNAMIC_TENSOR_NAME.decode()
    return tuple(t for t in tensors.get(0, ()) if t.name != hidden), tensors.get(1, ()), gears


_GEAR_RECORDS = {2: GearKind.BATCH, 3: GearKind.IMAGE, 4: GearKind.DIMS}


def _tensors(stream: BinaryIO) -> Iterator[Tensor]:
    (count,) = struct.unpack("<I", exactly(stream, 4))
    for _ in range(count):  # a count that lies runs into the end of the record
        size, layout, dtype, name, dims, dims_v2, ranges = struct.unpack("<QiiIIII", exactly(stream, 32))
        text = exactly(stream, limited(name, _MAX_STRING)).decode("utf-8", errors="replace")
        shape, shape_v2 = _dims(stream, dims), _dims(stream, dims_v2)
        exactly(stream, ranges)
        yield Tensor(text, dtype, layout, shape, shape_v2 or shape, size)


def _dims(stream: BinaryIO, length: int) -> tuple[int, ...]:
    if limited(length, 8 * _MAX_RANK) % 8:
        raise DamagedError(f"{length} bytes of dimensions")
    return struct.unpack(f"<{length // 8}q", exactly(stream, length))


def _gears(kind: GearKind, stream: io.BytesIO) -> Gears:
    """Batch: u32 n, i64 each. Image and dims: u32 n, u32 length of each group, then the i64 values of all groups."""
    (count,) = struct.unpack("<I", exactly(stream, 4))
    limited(count, _MAX_GEARS)
    lengths = [1] * count if kind is GearKind.BATCH else struct.unpack(f"<{count}I", exactly(stream, 4 * count))
    groups = [struct.unpack(f"<{n}q", exactly(stream, 8 * limited(n, _MAX_RANK))) for n in lengths]
    return Gears(kind, tuple(groups))


def _integers(
    file: BinaryIO, partitions: tuple[tuple[int, int, int], ...], kind: Partition
) -> Iterator[tuple[int, int]]:
    """The integer fields of a partition's message."""
    for number, wire, value in fields(file, *_span(partitions, kind)):
        if wire == 0:
            yield number, value


def _model_attribute(file: BinaryIO, partitions: tuple[tuple[int, int, int], ...], name: bytes) -> str | None:
    """A string in ``ModelDef.attr`` (field 11): map entries {1: key, 2: AttrDef}, of which field 2 is the string."""
    for number, wire, length in fields(file, *_span(partitions, Partition.MODEL_DEF)):
        if number == 11 and wire == 2 and length <= _MAX_STRING:
            entry = io.BytesIO(exactly(file, length))
            parts = {n: exactly(entry, size) for n, w, size in fields(entry, 0, length) if w == 2}
            if parts.get(1) == name:
                value = io.BytesIO(parts.get(2, b""))
                found = [
                    exactly(value, size) for n, w, size in fields(value, 0, len(parts.get(2, b""))) if (n, w) == (2, 2)
                ]
                return found[0].decode("utf-8", errors="replace") if found else None
    return None
