"""The .om reader: on files written here to the layout's description, and on hostile ones."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import isthmus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.types import DType
from isthmus_ascend_cann import om
from isthmus_ascend_cann.gears import GearKind

Tensor = tuple[str, int, int, Sequence[int]]  # name, size, dtype, dims


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content


def tensors(kind: int, all_of_them: Sequence[Tensor]) -> bytes:
    content = struct.pack("<I", len(all_of_them))
    for name, size, dtype, dims in all_of_them:
        raw = struct.pack(f"<{len(dims)}q", *dims)
        content += struct.pack("<QiiIIII", size, 2, dtype, len(name), len(raw), len(raw), 0) + name.encode() + raw + raw
    return record(kind, content)


INPUTS = (("x", 1024, 0, (4, 64)), ("ids", 8, 3, (2,)))
OUTPUTS = (("last:0:y", 512, 1, (4, 64)),)


def written(
    *,
    wide: bool = True,
    work: int = 4096,
    weights: bytes = b"w" * 100,
    gears: bytes = b"",
    soc: str = "Ascend910B4",
    inputs: Sequence[Tensor] = INPUTS,
    models: int = 1,
    unknown: int = 0,
) -> bytes:
    attribute = field(1, b"soc_version") + field(2, field(2, soc.encode()))
    parts = [
        (0, field(1, b"name") + field(7, b"\xff" * 300) + field(11, field(1, b"other") + field(2, field(3, 1))) + field(11, attribute)),
        (1, weights),
        (2, field(2, b"task" * 10) + field(11, work) + field(12, 3) + field(13, 7)),
        (3, b"k" * 50),
        (8, tensors(0, inputs) + tensors(1, OUTPUTS) + gears),
    ]  # fmt: skip
    table = struct.pack("<I4x" if wide else "<I", len(parts))
    for kind, content in parts:
        table += struct.pack("<I4xQQ" if wide else "<III", kind, 0, len(content))
    body = table + b"".join(content for _, content in parts)
    header = om.HEADER.pack(
        om.MAGIC, 256, 0x20000000, bytes(64), 0 if wide else len(body), 0, 1, 0, 0, b"graph", 0, b"", 0, models,
        b"8.5.0", 0, len(body) if wide else 0, 0, unknown, b"",
    )  # fmt: skip
    return header + body


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.om"


@pytest.mark.parametrize("wide", [True, False])
def test_a_file_is_read_without_cann(file: Path, wide: bool) -> None:
    file.write_bytes(written(wide=wide))
    found = om.read_om(file)
    assert (found.work_size, found.weight_size, found.device_code_size) == (4096, 100, 50)
    assert (found.streams, found.events) == (3, 7)
    assert (found.soc_version, found.name, found.platform) == ("Ascend910B4", "graph", "8.5.0")
    assert [str(t.spec()) for t in found.inputs] == ["x: float32[4, 64]", "ids: int32[2]"]
    assert found.outputs[0].spec().dtype is DType.FLOAT16
    assert not found.range_shape
    assert found.gears is None


def test_weights_are_found_where_the_sizes_put_them(file: Path) -> None:
    file.write_bytes(written(weights=b"abc" * 7))
    found = om.read_om(file)
    ((offset, size),) = [(o, s) for kind, o, s in found.partitions if kind == om.Partition.WEIGHTS]
    assert file.read_bytes()[offset : offset + size] == b"abc" * 7
    file.with_name("other.om").write_bytes(written(work=5, weights=b"abc" * 7))
    other = file.with_name("other.om")
    assert om.weights_sha256(file, found) == om.weights_sha256(other, om.read_om(other))


def packed(kind: int, groups: Sequence[Sequence[int]]) -> bytes:
    flat = [v for g in groups for v in g]
    lengths = b"" if kind == 2 else struct.pack(f"<{len(groups)}I", *map(len, groups))
    return record(kind, struct.pack("<I", len(groups)) + lengths + struct.pack(f"<{len(flat)}q", *flat))


@pytest.mark.parametrize(
    ("number", "kind", "groups"),
    [
        (2, GearKind.BATCH, [(1,), (8,)]),
        (3, GearKind.IMAGE, [(224, 224), (448, 448)]),
        (4, GearKind.DIMS, [(1, 128, 7), (1, 256, 7)]),
    ],
)
def test_gears_are_read_and_their_input_is_hidden(
    file: Path, number: int, kind: GearKind, groups: Sequence[tuple[int, ...]]
) -> None:
    inputs = [("x", 0, 0, (-1, 64)), ("ascend_mbatch_shape_data", 8, 9, (1,))]
    file.write_bytes(written(gears=packed(number, groups), inputs=inputs))
    found = om.read_om(file)
    assert found.gears is not None
    assert (found.gears.kind, list(found.gears.values)) == (kind, groups)
    assert [t.name for t in found.inputs] == ["x"]
    with pytest.raises(InputError, match="dynamic shape"):
        found.inputs[0].spec()


@pytest.mark.parametrize(("models", "unknown"), [(2, 0), (1, 1)])
def test_a_range_shape_model_is_told_apart(file: Path, models: int, unknown: int) -> None:
    file.write_bytes(written(models=models, unknown=unknown))
    assert om.read_om(file).range_shape


def test_an_input_behind_aipp_has_the_shape_that_fits_its_size(file: Path) -> None:
    tensor = om.Tensor("x", 4, 0, (1, 3, 8, 8), (1, 8, 8, 3), 192)
    assert tensor.spec().nbytes == 192


def test_inspect_describes_an_om(file: Path) -> None:
    file.write_bytes(written())
    found = isthmus.registry().backend("ascend").inspect(file)
    assert found is not None
    assert found["soc_version"] == "Ascend910B4"
    assert found["inputs"][1] == {"name": "ids", "dtype": "int32", "shape": [2], "size": 8}
    assert found["partitions"][1] == {"type": "WEIGHTS", "offset": found["partitions"][1]["offset"], "size": 100}


def test_inspect_says_that_om2_is_unknown(file: Path) -> None:
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    assert isthmus.registry().backend("ascend").inspect(file) == {
        "format": "om2",
        "known": False,
        "why": "a zip container of newer CANN, which is not parsed here",
    }
    with pytest.raises(InputError, match="OM2"):
        om.read_om(file)


def test_inspect_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"\x08\x08")
    (tmp_path / "other.zip").write_bytes(b"PK\x03\x04")
    backend = isthmus.registry().backend("ascend")
    assert backend.inspect(tmp_path / "other.onnx") is None
    assert backend.inspect(tmp_path / "other.zip") is None


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda d: b"",
        "short": lambda d: d[:100],
        "cut": lambda d: d[:-1],
        "longer": lambda d: d + b"x",
        "magic": lambda d: b"X" + d[1:],
        "partition count": lambda d: d[:256] + struct.pack("<I", 1 << 30) + d[260:],
        "partition size": lambda d: d[: 256 + 8 + 16] + struct.pack("<Q", 1 << 63) + d[256 + 8 + 24 :],
        "tensor count": lambda d: d.replace(struct.pack("<IIIQ", 0, len(tensors(0, INPUTS)) - 8, 2, 1024), struct.pack("<IIIQ", 0, len(tensors(0, INPUTS)) - 8, 1 << 31, 1024)),
        "name length": lambda d: d.replace(struct.pack("<QiiI", 1024, 2, 0, 1), struct.pack("<QiiI", 1024, 2, 0, 1 << 31)),
        "odd dims": lambda d: d.replace(struct.pack("<QiiIII", 1024, 2, 0, 1, 16, 16), struct.pack("<QiiIII", 1024, 2, 0, 1, 15, 16)),
    }.items(),
    ids=lambda d: d[0],
)  # fmt: skip
def test_a_damaged_file_is_an_input_error(file: Path, damage: tuple[str, object]) -> None:
    whole = written()
    broken = damage[1](whole)  # type: ignore[operator]
    assert broken != whole
    file.write_bytes(broken)
    with pytest.raises(InputError):
        om.read_om(file)


WHOLE = written(gears=packed(4, [(1, 128), (1, 256)]))


def mutate(data: bytes, places: Sequence[tuple[int, int]], cut: int, insert: bytes, honest: bool) -> bytes:
    """Change bytes, cut the end, insert some; ``honest`` keeps the header's length right, to get past it."""
    out = bytearray(data)
    for where, value in places:
        out[where % len(out)] = value
    del out[len(out) - cut % 40 :]
    at = cut % (len(out) + 1)
    out[at:at] = insert
    if honest and len(out) > om.HEADER.size:
        out[184:192] = struct.pack("<Q", len(out) - om.HEADER.size)
    return bytes(out)


MUTATIONS = {
    "places": st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=12),
    "cut": st.one_of(st.just(0), st.integers(0, 100_000)),
    "insert": st.binary(max_size=16),
    "honest": st.booleans(),
}


def survive(directory: Path, *change: Any) -> None:
    """Read, or an InputError; never anything else."""
    file = directory / "mutant.om"
    file.write_bytes(mutate(WHOLE, *change))
    with contextlib.suppress(InputError):
        om.read_om(file).describe()


@given(**MUTATIONS)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_files_are_read_or_refused(
    tmp_path: Path, places: Sequence[tuple[int, int]], cut: int, insert: bytes, honest: bool
) -> None:
    survive(tmp_path, places, cut, insert, honest)


@pytest.mark.slow
@given(**MUTATIONS)
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_ten_thousand_mutated_files_are_read_or_refused(
    tmp_path: Path, places: Sequence[tuple[int, int]], cut: int, insert: bytes, honest: bool
) -> None:
    survive(tmp_path, places, cut, insert, honest)
