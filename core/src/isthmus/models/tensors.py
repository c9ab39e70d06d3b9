"""Weights on disk, read one at a time: nothing stays mapped or copied between two reads."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedError

Array = NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    **{f"{kind[0].upper()}{bits}": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
FLOATS = frozenset(_DTYPES[name] for name in ("F32", "F16", "BF16"))
"""Element types of weights."""
_INDEX = "model.safetensors.index.json"


@attrs.frozen
class Tensor:
    """A weight that has not been read: ``read()`` gives a fresh array of ``shape`` in ``dtype``."""

    name: str
    """Its name in the checkpoint, for messages."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], Array] = attrs.field(repr=False)

    def part(self, suffix: str, shape: tuple[int, ...], take: Callable[[Array], Array]) -> Tensor:
        """A tensor of ``shape`` computed from this one by ``take``, such as one block of a fused weight."""
        return Tensor(f"{self.name}{suffix}", shape, self.dtype, lambda: take(self.read()))


def open_safetensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, single file or sharded by ``model.safetensors.index.json``.

    ``InputError`` for a missing or truncated file, or an index that does not fit its shards;
    ``UnsupportedError`` for element types that numpy cannot hold, such as 8-bit floats.
    """
    if (directory / _INDEX).is_file():
        return _open_sharded(directory)
    single = directory / "model.safetensors"
    if not single.is_file():
        raise InputError(
            f"{directory} holds neither model.safetensors nor {_INDEX}",
            why="the weights were not downloaded, or are in another format",
            fix="download the safetensors files of the checkpoint into this directory",
        )
    return _open_file(single)


def _open_sharded(directory: Path) -> dict[str, Tensor]:
    index = directory / _INDEX
    try:
        shard_of: Mapping[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
        shards = sorted({str(name) for name in shard_of.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is not a safetensors index: {error!r}") from error
    missing = [name for name in shards if Path(name).name != name or not (directory / name).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(shards)} shards are missing in {directory}: {', '.join(missing[:4])}",
            why=f"{index.name} names them",
            fix="download the missing files",
        )
    tensors = {name: tensor for shard in shards for name, tensor in _open_file(directory / shard).items()}
    absent = sorted(set(shard_of) - set(tensors))
    if absent:
        raise InputError(
            f"{index.name} promises {absent[0]} in {shard_of[absent[0]]}, which does not hold it",
            why="index and shards are of different downloads",
        )
    return tensors


def _open_file(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            found = {name: (tuple(view.get_shape()), view.get_dtype()) for name, view in views.items()}
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is damaged: {error}",
            why=_truncation(path),
            fix="download the file again",
        ) from error
    return {name: _tensor(path, name, shape, dtype) for name, (shape, dtype) in found.items()}


def _tensor(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"{path.name} holds {name} as {dtype}", why="only float checkpoints are read", fix="use the bf16 checkpoint"
        )
    return Tensor(name, shape, _DTYPES[dtype], lambda: _read(path, name))


def _read(path: Path, name: str) -> Array:
    """The file is opened for each tensor, so that its mapped pages are given back after each."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            array: Array = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} changed while it was read: {error}") from error
    return array


def _truncation(path: Path) -> str | None:
    """Bytes the header promises against bytes there are, where the header can still be read."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        need = 8 + length + max(v["data_offsets"][1] for k, v in header.items() if k != "__metadata__")
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, MemoryError, OverflowError):
        return "its header cannot be read: it is empty, truncated or not a safetensors file"
    size = path.stat().st_size
    return f"its header promises {need} bytes and the file has {size}" if need != size else None
