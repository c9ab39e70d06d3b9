"""Device memory: buffers, and views of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from . import spi
from ._lifetime import Child, overlap
from .errors import InputError
from .types import Capability, TensorSpec

if TYPE_CHECKING:
    from .device import Device


class Buffer(Child):
    """Device memory. Made by ``Device.allocate``. ``buffer[a:b]`` is a view of a part, without a copy."""

    def __init__(self, device: Device, size: int, alignment: int, grant: spi.Allocation) -> None:
        self.size = size
        self.alignment = alignment
        """As asked for."""
        self.allocated_size = grant.size
        self.granted = grant.granted
        self._region = spi.Region(grant.handle, 0, size)
        driver, handle = device._ledger.driver, grant.handle
        super().__init__(device, lambda: driver.free(handle))

    def __repr__(self) -> str:
        return f"<Buffer of {self.size} bytes on {self.device.info.id}>"

    @property
    def _base(self) -> Buffer:
        return self

    def __getitem__(self, part: slice) -> View:
        return View(self, 0, self.size)[part]

    def view(self, spec: TensorSpec | None = None, *, offset: int = 0) -> View:
        """A view from ``offset`` on: as long as ``spec``, and checked as such when bound; else to the end."""
        size = self.size - offset if spec is None else spec.nbytes
        return View(self, offset, size, spec)

    def write(self, data: Any, offset: int = 0) -> None:
        """Copy host bytes (anything with a C-contiguous buffer, such as an array) into the buffer."""
        self.view(offset=offset).write(data)

    def read_into(self, out: Any, offset: int = 0) -> None:
        """Copy bytes out of the buffer until ``out`` is full."""
        self.view(offset=offset).read_into(out)

    def read(self, size: int | None = None, offset: int = 0) -> bytearray:
        """Copy bytes out into new memory."""
        view = self.view(offset=offset)
        out = bytearray(view.size if size is None else view[:size].size)
        view.read_into(out)
        return out


class View:
    """A part of a buffer, optionally typed. Owns nothing; dead once its buffer is closed."""

    __slots__ = ("_base", "_region", "spec")

    def __init__(self, base: Buffer, offset: int, size: int, spec: TensorSpec | None = None) -> None:
        if offset < 0 or size < 0 or offset + size > base.size:
            raise InputError(f"bytes {offset}..{offset + size} of a buffer of {base.size}")
        self._base = base
        self._region = spi.Region(base._region.handle, offset, size)
        self.spec = spec

    def __repr__(self) -> str:
        return f"<View of bytes {self.offset}..{self.offset + self.size} of {self._base!r}>"

    @property
    def offset(self) -> int:
        """First byte within the buffer."""
        return self._region.offset

    @property
    def size(self) -> int:
        """Bytes."""
        return self._region.size

    def __getitem__(self, part: slice) -> View:
        if not isinstance(part, slice):
            raise InputError(f"a view is sliced, [start:stop], not indexed by {part!r}")
        start = 0 if part.start is None else part.start
        stop = self.size if part.stop is None else part.stop
        if part.step is not None or not 0 <= start <= stop <= self.size:
            raise InputError(f"slice [{part.start}:{part.stop}:{part.step}] of {self.size} bytes")
        return View(self._base, self.offset + start, stop - start)

    def write(self, data: Any) -> None:
        """Copy host bytes in, from the view's first byte on."""
        source = _bytes_of(data)
        with self._using(source.nbytes) as (driver, region):
            if region.size:
                driver.write(region, source)

    def read_into(self, out: Any) -> None:
        """Copy bytes out, from the view's first byte on, until ``out`` is full."""
        target = _bytes_of(out)
        if target.readonly and target.nbytes:
            raise InputError(f"cannot read into {type(out).__name__}: it is read-only")
        with self._using(target.nbytes) as (driver, region):
            if region.size:
                driver.read(region, target)

    def copy_from(self, source: Buffer | View) -> None:
        """Copy within the device. ``InputError``: sizes differ, ranges overlap, or the devices do."""
        theirs = source._region
        if source._base.device is not self._base.device:
            raise InputError("copy_from works within one device; read and write across devices")
        if theirs.size != self.size:
            raise InputError(f"cannot copy {theirs.size} bytes into {self.size}")
        if source._base is self._base and overlap(theirs, self._region):
            raise InputError("source and destination overlap")
        with self._using(self.size) as (driver, region):
            source._base._check_open()
            if region.size:
                driver.copy(region, theirs)

    def array(self, spec: TensorSpec | None = None) -> np.ndarray[Any, Any]:
        """The memory itself as a writable array, no copy; valid until the buffer is closed. Needs ``HOST_VISIBLE``.

        Without a ``spec``, and for the dtypes numpy lacks, the array is of bytes.
        """
        spec = spec or self.spec
        self._base.device._require(Capability.HOST_VISIBLE)
        with self._using(self.size if spec is None else spec.nbytes) as (driver, region):
            memory = driver.host_view(region.handle)[region.offset : region.offset + region.size]
        return as_array(memory, spec)

    @contextmanager
    def _using(self, size: int) -> Iterator[tuple[spi.DeviceDriver, spi.Region]]:
        with self._base._call() as driver:
            if size > self.size:
                raise InputError(f"{size} bytes do not fit into {self!r}")
            yield driver, spi.Region(self._region.handle, self.offset, size)


def as_array(memory: memoryview | bytearray, spec: TensorSpec | None) -> np.ndarray[Any, Any]:
    """Bytes as an array of ``spec``; as bytes without one, and for the dtypes numpy lacks."""
    try:
        dtype = np.dtype(np.uint8) if spec is None else spec.dtype.numpy
    except TypeError:
        spec, dtype = None, np.dtype(np.uint8)
    flat = np.frombuffer(memory, dtype)
    return flat if spec is None else flat.reshape(spec.shape)


def _bytes_of(data: Any) -> memoryview:
    try:
        if isinstance(data, np.ndarray) and data.flags.c_contiguous:
            view = data.reshape(-1).view(np.uint8).data  # memoryview itself refuses bfloat16 and the like
        else:
            view = memoryview(data)
        if view.c_contiguous:
            return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        raise InputError(f"{type(data).__name__} does not hold plain bytes: {error}") from error
    raise InputError("the data is not C-contiguous", fix="pass numpy.ascontiguousarray(data)")
