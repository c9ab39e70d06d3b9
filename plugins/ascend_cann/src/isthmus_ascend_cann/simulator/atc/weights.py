"""Constants of a graph: where they are stored, and what the graph says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import prod
from pathlib import Path

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from .failure import AtcError
from .graph import element_size

ALIGNMENT = 512
INLINE = 1024
"""Constants up to this size are in the graph as well, where shape inference needs them."""
PARTITION = "weights"
"""File name under which the graph refers to the weights partition."""


@attrs.frozen
class Constant:
    """One constant: its source, the type it is stored in, and its place."""

    source: onnx.TensorProto
    directory: Path
    dtype: int
    offset: int
    size: int

    def data(self) -> bytes:
        """The bytes as stored. E16001 if the ONNX file's own external data are not there or too short."""
        try:
            array = numpy_helper.to_array(self.source, base_dir=str(self.directory))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise AtcError(
                "E16001", "Parse_Model", f"The data of [{self.source.name}] cannot be read: {error}"
            ) from error
        return np.ascontiguousarray(_convert(array, self.dtype)).tobytes()


def _convert(array: npt.NDArray[np.generic], dtype: int) -> npt.NDArray[np.generic]:
    if dtype == TensorProto.FLOAT16:
        with np.errstate(over="ignore"):  # too large for float16 is infinite, on the device too
            return array.astype(np.float16)
    return array.astype(ml_dtypes.bfloat16) if dtype == TensorProto.BFLOAT16 else array


@attrs.define
class Blob:
    """Constants one after the other: the weights partition, or a combined file."""

    constants: list[Constant] = attrs.field(factory=list)
    size: int = 0

    def place(self, source: onnx.TensorProto, directory: Path, dtype: int) -> Constant:
        """Give a constant its place at the end."""
        offset = -(-self.size // ALIGNMENT) * ALIGNMENT
        constant = Constant(source, directory, dtype, offset, prod(source.dims) * element_size(dtype))
        self.constants.append(constant)
        self.size = offset + constant.size
        return constant

    def pieces(self) -> Iterator[bytes]:
        """The bytes from the start to the end, in order."""
        at = 0
        for constant in self.constants:
            yield bytes(constant.offset - at)
            yield constant.data()
            at = constant.offset + constant.size


class Store:
    """All constants of one om. ``external`` is the value of ``--external_weight``."""

    def __init__(self, source: Path, om: Path, external: str) -> None:
        self._source = source
        self._directory = om.parent / "weight"
        self._mode = external
        self._combined = Blob()
        self._combined_name = f"{om.stem}_weight_combined"
        self._files: dict[str, int] = {}
        self.partition = Blob()

    def add(self, tensor: onnx.TensorProto, dtype: int, name: str) -> onnx.TensorProto:
        """Store ``tensor`` as ``dtype``; returns what the graph holds in its place, under ``name``."""
        if prod(tensor.dims) * element_size(dtype) <= INLINE:
            constant = self.partition.place(tensor, self._source, dtype)
            return helper.make_tensor(name, dtype, list(tensor.dims), constant.data(), raw=True)
        if self._mode == "1":
            constant = Blob().place(tensor, self._source, dtype)
            file = self._write_one(constant)
        else:
            blob, file = (self._combined, self._combined_name) if self._mode == "2" else (self.partition, PARTITION)
            constant = blob.place(tensor, self._source, dtype)
        return _reference(name, dtype, tensor, file, constant)

    def files(self) -> list[tuple[str, int]]:
        """Write what is left to write; names and sizes of the files beside the om."""
        if self._combined.constants:
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / self._combined_name).open("wb") as file:
                file.writelines(self._combined.pieces())
            self._files[self._combined_name] = self._combined.size
        return list(self._files.items())

    def _write_one(self, constant: Constant) -> str:
        data = constant.data()
        name = f"weight_{hashlib.sha256(data).hexdigest()}"
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / name).write_bytes(data)
        self._files[name] = len(data)
        return name


def _reference(name: str, dtype: int, tensor: onnx.TensorProto, file: str, constant: Constant) -> onnx.TensorProto:
    reference = onnx.TensorProto(name=name, data_type=dtype, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", file), ("offset", constant.offset), ("length", constant.size)):
        reference.external_data.add(key=key, value=str(value))
    return reference
