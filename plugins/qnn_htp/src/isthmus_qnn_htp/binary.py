"""What a QNN context binary says of itself, as records.

Source: ``QnnSystemContext_getMetadata``. The tree it returns is trusted for nothing: a damaged file can yield versions,
counts and ranks out of range.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import cattrs
import numpy as np
from isthmus.errors import IncompatibleError, IntegrityError
from isthmus.types import DType, Quantization, TensorSpec

from . import _abi, _lib

_MAX_TENSORS = 1 << 16
_MAX_GRAPHS = 1 << 12
_MAX_RANK = 8

_DTYPES = {
    0x0008: DType.INT8, 0x0016: DType.INT16, 0x0032: DType.INT32, 0x0064: DType.INT64,
    0x0108: DType.UINT8, 0x0116: DType.UINT16, 0x0132: DType.UINT32, 0x0164: DType.UINT64,
    0x0216: DType.FLOAT16, 0x0226: DType.BFLOAT16, 0x0232: DType.FLOAT32, 0x0264: DType.FLOAT64,
    0x0308: DType.INT8, 0x0316: DType.INT16, 0x0332: DType.INT32,
    0x0408: DType.UINT8, 0x0416: DType.UINT16, 0x0432: DType.UINT32,
    0x0508: DType.BOOL,
}  # fmt: skip


@attrs.frozen
class Tensor:
    """An input or output of a graph. Executing goes by ``id`` alone; the rest is for checks."""

    id: int
    name: str
    dtype: DType
    shape: tuple[int, ...]
    quantization: Quantization | None
    vendor_type: int
    """``Qnn_TensorType_t``."""
    vendor_dtype: int
    """``Qnn_DataType_t``."""
    vendor_format: int

    def spec(self) -> TensorSpec:
        """The tensor as the caller of an entry sees it."""
        return TensorSpec(self.name, self.dtype, self.shape, self.quantization)


@attrs.frozen
class Graph:
    """One graph. Sizes are bytes; ``None``: a binary of an older SDK, which does not say."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    spill_fill: int | None = None
    """DDR that takes what does not fit into VTCM."""
    vtcm: int | None = None
    optimization_level: int | None = None
    hvx_threads: int | None = None
    """0 is the default of the chip."""
    const: int | None = None
    """Weights of this graph alone."""
    shared_weights: int | None = None
    """Weights it shares with the other graphs of the binary."""
    io: int | None = None
    op_data: int | None = None
    ddr: int | None = None
    """Activations in DDR."""


@attrs.frozen
class ContextBinary:
    """A context binary."""

    backend_id: int
    """6 is HTP."""
    sdk: str
    """Build id of the SDK that wrote it, e.g. ``v2.51.0.260929181845``."""
    core_api: str
    backend_api: str
    blob_version: str
    blob_size: int
    soc: int | None
    arch: int | None
    graphs: tuple[Graph, ...]

    @property
    def shared_weights(self) -> int:
        """Bytes of weights that its graphs share."""
        return max((graph.shared_weights or 0 for graph in self.graphs), default=0)


def to_json(binary: ContextBinary | Graph) -> dict[str, Any]:
    """A record as JSON data."""
    fields: dict[str, Any] = _CONVERTER.unstructure(binary)
    return fields


def from_json(fields: Mapping[str, Any]) -> ContextBinary:
    """A record from its JSON data."""
    return _CONVERTER.structure(fields, ContextBinary)


def describe(binary: ContextBinary) -> dict[str, Any]:
    """A record for people and scripts: tensors as text, without what only the runtime needs."""
    graphs = [
        {
            **to_json(graph),
            "inputs": [_described(tensor) for tensor in graph.inputs],
            "outputs": [_described(tensor) for tensor in graph.outputs],
        }
        for graph in binary.graphs
    ]
    return {**to_json(binary), "graphs": graphs}


def _described(tensor: Tensor) -> str:
    if tensor.quantization is None:
        return str(tensor.spec())
    return f"{tensor.spec()} = (q - {tensor.quantization.zero_point[0]}) * {tensor.quantization.scale[0]:.6g}"


@contextmanager
def mapped(path: Path) -> Iterator[tuple[int, int]]:
    """Address and size of a file's bytes, read-only, while the context lasts."""
    with ExitStack() as closing:
        try:
            file = closing.enter_context(path.open("rb"))
            data = closing.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # ValueError: the file is empty
            raise IntegrityError(f"{path} cannot be read: {error}", fix="compile the artifact again") from error
        bytes_ = np.frombuffer(data, np.uint8)
        try:
            yield bytes_.ctypes.data, bytes_.size
        finally:
            del bytes_  # a mapping that is looked at cannot be closed


def read_binary(system: _lib.Interface, path: Path) -> ContextBinary:
    """Read the metadata of ``path`` in this process; ``inspect.inspect`` does so in a child.

    ``IntegrityError``: not a context binary. ``IncompatibleError``: metadata out of range, or of an unknown version.
    """
    handle = _abi.Handle()
    system.check("read context binaries", "systemContextCreate", _lib.ref(handle))
    try:
        with mapped(path) as (address, size):
            info = _lib.pointer_to(_abi.QnnSystemContext_BinaryInfo_t)
            system.check(f"read {path}", "systemContextGetMetaData", handle, address, size, _lib.ref(info))
            try:
                return _binary(info.contents)
            except (ValueError, UnicodeDecodeError) as error:
                raise IncompatibleError(f"the metadata of {path} cannot be used: {error}", why="damaged") from error
    finally:
        system.check("release metadata", "systemContextFree", handle)


def _binary(info: Any) -> ContextBinary:
    body = _variant(info, "binary info")
    graphs = body.graphs[: _bounded(body.numGraphs, _MAX_GRAPHS, "graphs")]
    known = info.version >= 3
    metadata = (
        _lib.struct_at(_abi.QnnHtpSystemContext_ContextBlobInfo_t, body.contextMetadata, body.contextMetadataSize)
        if known
        else None
    )
    return ContextBinary(
        backend_id=body.backendId,
        sdk=_text(body.buildId),
        core_api=_version(body.coreApiVersion),
        backend_api=_version(body.backendApiVersion),
        blob_version=_version(body.contextBlobVersion),
        blob_size=body.contextBlobSize,
        soc=body.socModel if known else None,
        arch=metadata.dspArch if metadata else None,
        graphs=tuple(map(_graph, graphs)),
    )


def _graph(info: Any) -> Graph:
    body = _variant(info, "graph info")
    inputs = body.graphInputs[: _bounded(body.numGraphInputs, _MAX_TENSORS, "inputs")]
    outputs = body.graphOutputs[: _bounded(body.numGraphOutputs, _MAX_TENSORS, "outputs")]
    sizes = _sizes(body) if info.version >= 3 else {}
    return Graph(_text(body.graphName), tuple(map(_tensor, inputs)), tuple(map(_tensor, outputs)), **sizes)


def _sizes(body: Any) -> dict[str, int]:
    first = _lib.struct_at(_abi.QnnHtpSystemContext_GraphBlobInfo_t, body.graphBlobInfo, body.graphBlobInfoSize)
    if first is None:
        return {}
    sizes = {
        "spill_fill": first.v1.spillFillBufferSize,
        "vtcm": first.v1.vtcmSize,
        "optimization_level": first.v1.optimizationLevel,
        "hvx_threads": first.v1.numHvxThreads,
    }
    skip = _lib.size_of(_abi.QnnHtpSystemContext_GraphBlobInfo_t)
    second = _lib.struct_at(
        _abi.QnnHtpSystemContext_GraphBlobInfoV2_t, body.graphBlobInfo + skip, body.graphBlobInfoSize - skip
    )
    if second is not None and second.version == 2:
        sizes |= {
            "const": second.constSize,
            "shared_weights": second.sharedWeightsSize,
            "io": second.ioTensorSize,
            "op_data": second.opDataSize,
            "ddr": second.ddrTensorSize,
        }
    return sizes


def _tensor(tensor: Any) -> Tensor:
    if tensor.version not in (1, 2):
        raise ValueError(f"tensor of version {tensor.version}")
    body, name = tensor.u.v1, _text(tensor.u.v1.name)  # version 2 begins like version 1
    if body.dataType not in _DTYPES:
        raise ValueError(f"tensor {name!r} has data type {body.dataType:#x}")
    return Tensor(
        id=body.id,
        name=name,
        dtype=_DTYPES[body.dataType],
        shape=tuple(body.dimensions[: _bounded(body.rank, _MAX_RANK, f"dimensions of {name!r}")]),
        quantization=_quantization(body.quantizeParams, name),
        vendor_type=body.type,
        vendor_dtype=body.dataType,
        vendor_format=body.dataFormat,
    )


def _quantization(params: Any, name: str) -> Quantization | None:
    """QNN has real = (stored + offset) * scale, so its offset is minus the zero point."""
    if params.encodingDefinition != _abi.QNN_DEFINITION_DEFINED:
        return None
    if params.quantizationEncoding != _abi.QNN_QUANTIZATION_ENCODING_SCALE_OFFSET:
        raise ValueError(f"{name!r} is quantised by encoding {params.quantizationEncoding}; I/O is per tensor")
    encoding = params.u.scaleOffsetEncoding
    return Quantization((encoding.scale,), (-encoding.offset,))


def _variant(info: Any, what: str) -> Any:
    if info.version not in (1, 2, 3):
        raise ValueError(f"{what} of version {info.version}")
    return getattr(info.u, f"v{info.version}")


def _bounded(count: int, limit: int, what: str) -> int:
    if count > limit:
        raise ValueError(f"{count} {what}")
    return count


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _version(version: Any) -> str:
    return f"{version.major}.{version.minor}.{version.patch}"


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
