"""Bytes of an ``.om`` that may be hostile: nothing is read past its end, and no length is believed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO


class DamagedError(Exception):
    """The bytes are not what they should be; says where."""


def exactly(file: BinaryIO, size: int) -> bytes:
    """The next ``size`` bytes, or ``DamagedError``."""
    data = file.read(size)
    if len(data) != size:
        raise DamagedError(f"{size} bytes expected, {len(data)} left")
    return data


def limited(value: int, limit: int) -> int:
    """A length, or ``DamagedError`` if it is absurd."""
    if value > limit:
        raise DamagedError(f"a length of {value} where at most {limit} makes sense")
    return value


def fields(file: BinaryIO, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Top-level fields of a protobuf message: number, wire type, and value (varint) or length of each field; the file stands at its content."""
    file.seek(offset)
    end = offset + size
    while file.tell() < end:
        key = varint(file, end)
        number, wire = key >> 3, key & 7
        value = varint(file, end) if wire in (0, 2) else {1: 8, 5: 4}.get(wire)
        if value is None:
            raise DamagedError(f"protobuf wire type {wire}")
        content = file.tell()
        length = 0 if wire == 0 else value
        if length > end - content:
            raise DamagedError(f"protobuf field {number} of {length} bytes leaves its partition")
        yield number, wire, value
        file.seek(content + length)


def varint(file: BinaryIO, end: int) -> int:
    """A protobuf integer that ends before ``end``."""
    value = 0
    for shift in range(0, 70, 7):
        if file.tell() >= end:
            break
        byte = exactly(file, 1)[0]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
    raise DamagedError("a protobuf integer that does not end")
