"""Backend-neutral values: what callers and plugins say to each other.

Frozen attrs classes and enums only: no behaviour beyond arithmetic on their own fields, no I/O,
no imports from the rest of the package. Sizes are bytes everywhere.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np
from attrs.validators import deep_mapping, instance_of
from attrs.validators import ge as _ge

_each_ge_0 = deep_mapping(instance_of(str), _ge(0))


class DType(enum.Enum):
    """Element types. The value is the name used in manifests and on the command line."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    INT4 = "int4"
    UINT64 = "uint64"
    UINT32 = "uint32"
    UINT16 = "uint16"
    UINT8 = "uint8"
    UINT4 = "uint4"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        """Storage of one element; two 4-bit elements share a byte."""
        return _BITS[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of the same layout; ``TypeError`` for bfloat16 and the 4-bit types, which numpy lacks."""
        if self in _NOT_IN_NUMPY:
            raise TypeError(f"numpy has no dtype for {self.value}; read the bytes and convert")
        return np.dtype(self.value)

    @classmethod
    def of(cls, dtype: np.dtype[Any] | type) -> DType:
        """The element type of a numpy dtype; ``TypeError`` names a dtype no backend can hold."""
        name = np.dtype(dtype).name
        try:
            return cls(name)
        except ValueError:
            raise TypeError(f"no element type for numpy dtype {name!r}") from None


_BITS = {
    d: 4 if d.value.endswith("int4") else 8 if d is DType.BOOL else int("".join(c for c in d.value if c.isdigit()))
    for d in DType
}
_NOT_IN_NUMPY = frozenset({DType.BFLOAT16, DType.INT4, DType.UINT4})


class Pages(enum.Enum):
    """Page strategy asked of an allocation."""

    NORMAL = "normal"
    """Base pages only."""
    PREFER_HUGE = "prefer_huge"
    """Huge pages where there are some, else what the device has; the grant says which."""
    REQUIRE_HUGE = "require_huge"
    """Huge pages or ``OutOfMemoryError``; never a fallback."""


class Granted(enum.Enum):
    """Pages an allocation really got."""

    NORMAL = "normal"
    TRANSPARENT_HUGE = "transparent_huge"
    """Base pages on which transparent huge pages are advised; the kernel decides which become huge."""
    HUGE = "huge"
    UNKNOWN = "unknown"
    """The vendor does not say."""


class Capability(enum.Enum):
    """What a device can do beyond the mandatory surface."""

    CALLER_WEIGHTS = "caller_weights"
    """``load`` runs from a weights buffer the caller allocated."""
    CALLER_WORKSPACE = "caller_workspace"
    """``load`` runs in a workspace buffer the caller allocated."""
    HUGE_PAGES = "huge_pages"
    """Allocations can ask for huge pages."""
    HOST_VISIBLE = "host_visible"
    """Buffers can be viewed as host memory without a copy."""
    ALIASED_IO = "aliased_io"
    """An output may overlap an input; values read there during execute are unspecified."""
    PROFILE = "profile"
    """``profile`` reports where the time of an execute went."""


class Reality(enum.Enum):
    """How real a device is. Printed with every result made on it."""

    REAL = "real"
    EMULATED = "emulated"
    """The vendor's own software model of the chip: its arithmetic, not its speed."""
    SIMULATED = "simulated"
    """Our stand-in for a vendor library: its rules, not its arithmetic or speed."""


@attrs.frozen
class Quantization:
    """Affine quantisation: ``real = (stored - zero_point) * scale``, per tensor or along ``axis``.

    Source of the formula: ONNX DequantizeLinear.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __attrs_post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise ValueError(f"{len(self.scale)} scales but {len(self.zero_point)} zero points")
        if self.axis is None and len(self.scale) != 1:
            raise ValueError(f"{len(self.scale)} scales need an axis")


@attrs.frozen
class TensorSpec:
    """Name, element type, static shape and quantisation of one input or output of an entry."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    quantization: Quantization | None = None

    def __attrs_post_init__(self) -> None:
        if any(d < 0 for d in self.shape):
            raise ValueError(f"negative dimension in {self}")

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the dense, row-major tensor."""
        return (self.elements * self.dtype.bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.value}{list(self.shape)}"


@attrs.frozen
class EntrySpec:
    """Inputs and outputs of one entry, in call order. Names are unique on either side."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __attrs_post_init__(self) -> None:
        for side in (self.inputs, self.outputs):
            names = [spec.name for spec in side]
            if len(set(names)) != len(names):
                raise ValueError(f"two tensors of one name among {', '.join(names)}")


@attrs.frozen
class Tolerance:
    """How far a result may be from the reference: ``|got - want| <= atol + rtol * max|want|`` per tensor."""

    rtol: float
    atol: float


@attrs.frozen
class MemoryInfo:
    """Memory of a device now. ``None`` is unknown; it is never reported as 0."""

    total: int | None
    free: int | None
    huge_page_size: int | None = None
    huge_pages_total: int | None = None
    huge_pages_free: int | None = None


@attrs.frozen
class MemoryRequirements:
    """What an artifact needs, known before it is loaded."""

    weights: int = attrs.field(validator=_ge(0))
    """One block for all entries: the size of a caller-owned weights buffer."""
    workspace: Mapping[str, int] = attrs.field(validator=_each_ge_0)
    """Scratch per entry. Entries of one program never run at once, so one block of the largest serves all."""
    io: Mapping[str, int] = attrs.field(validator=_each_ge_0)
    """Inputs plus outputs per entry."""
    exact: bool
    """False: ``workspace`` is a lower bound."""
    own_load: int = attrs.field(validator=_ge(0))
    """Bytes the runtime allocates itself on ``load`` without caller memory, workspace included."""
    caller_load: int = attrs.field(validator=_ge(0))
    """Bytes the runtime still allocates itself on ``load`` with all the caller memory it accepts."""
    alignment: int = attrs.field(default=64, validator=_ge(1))
    """Alignment of a caller-owned weights or workspace buffer."""
    load_extra: int = attrs.field(default=0, validator=_ge(0))
    """Bytes that ``load`` takes besides for a moment and has given back when it returns."""
    notes: tuple[str, ...] = ()
    """What the figures leave out, and why two of them differ."""

    @property
    def peak_workspace(self) -> int:
        """Scratch for entries that never run at once."""
        return max(self.workspace.values(), default=0)


class Scope(enum.Enum):
    """What a limit of a vendor is on."""

    GRAPH = "graph"
    """Weights plus workspace of one entry, bytes."""
    CONTEXT = "context"
    """One compiled file: weights plus workspace of its entries, bytes."""
    CONTEXTS = "contexts"
    """How many compiled files are loaded at once."""
    WEIGHTS_BUFFER = "weights buffer"
    """The weights of one compiled file, mapped as one buffer, bytes."""
    PROCESS = "process"
    """Everything one process has on the device, bytes."""
    DEVICE = "device"
    """Memory of the chip, bytes."""


@attrs.frozen
class MemoryLimit:
    """The most a vendor allows of something, and who says so."""

    scope: Scope
    value: int
    source: str
    hard: bool = True
    """False: it has been seen to fail on some devices, and works on others."""


@attrs.frozen
class WeightFigure:
    """Size of a weight that nobody has read."""

    elements: int
    bits: float
    """Storage of one element, scales of a quantised weight included."""
    matrix: bool
    """It is the second operand of a matrix product: what runtimes pack, and quantisers quantise."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return math.ceil(self.elements * self.bits / 8)


@attrs.frozen
class GraphFigures:
    """What a graph takes, known without weights and without compiling it."""

    spec: EntrySpec
    weights: Mapping[str, WeightFigure]
    """By name; graphs of one set share the weights of one name."""
    activations: int
    """The most bytes of intermediate tensors alive at once, in the element types of the graph."""
    float_bits: int
    """Of the graph's floats: 32 or 16."""
    nodes: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(w.nbytes for w in self.weights.values())

    @property
    def io_bytes(self) -> int:
        """Bytes of inputs and outputs."""
        return sum(t.nbytes for t in (*self.spec.inputs, *self.spec.outputs))


@attrs.frozen
class DeviceInfo:
    """One device a backend can open on this machine."""

    backend: str
    name: str
    """Unique within the backend: ``0``, ``1``, ``reference``. The first device listed is the default."""
    targets: tuple[str, ...]
    """Targets whose artifacts it runs; the first is what ``compile`` takes by default."""
    reality: Reality
    description: str

    @property
    def id(self) -> str:
        """What ``open_device`` takes."""
        return f"{self.backend}:{self.name}"


@attrs.frozen
class BackendInfo:
    """Identity of a plugin.

    ``spi_version`` is the SPI version the plugin was written against, as a literal in the plugin: copying
    ``isthmus.spi.SPI_VERSION`` would make the check vacuous.
    """

    name: str
    spi_version: tuple[int, int]
    plugin_version: str


@attrs.frozen
class VendorStatus:
    """A failed vendor call, verbatim."""

    call: str
    code: int | None = None
    symbol: str = ""
    text: str = ""


@attrs.frozen
class ProfileEvent:
    """One measured item of an execute: the whole, a phase, or a node."""

    name: str
    value: float
    unit: str
    """``us``, ``cycles``, ``bytes`` or the vendor's own word."""
    node: bool = False


@attrs.frozen
class Dialect:
    """How a backend wants the named points of a graph spelled. The canonical dialect is standard ONNX 17.

    Every spelling computes the same function in exact arithmetic; they differ in range, speed and support.
    """

    name: str
    opset: int = 17
    rms_norm: str = "decomposed"
    """``decomposed``: x / sqrt(mean(x*x) + eps). ``l2``: LpNormalization over [x, sqrt(n*eps)], exact and safe in
    fp16. ``op``: RMSNormalization, opset 23."""
    gelu: str = "erf"
    """``erf``: Div, Erf, Add, Mul, Mul in the order converters match. ``op``: Gelu, opset 20."""
    silu: str = "sigmoid"
    """``sigmoid``: x * Sigmoid(x). ``op``: Swish, opset 24."""
    rope: str = "split"
    """``split``: halves by Split. ``slice``: halves by two Slices. ``op``: RotaryEmbedding, opset 23."""
    mask_value: float = -1e4
    """Additive value of a masked position: finite, and in range of float16."""

    _CHOICES: ClassVar[Mapping[str, Mapping[str, int]]] = {
        "rms_norm": {"decomposed": 1, "l2": 1, "op": 23},
        "gelu": {"erf": 9, "op": 20},
        "silu": {"sigmoid": 1, "op": 24},
        "rope": {"split": 1, "slice": 10, "op": 23},
    }

    def __attrs_post_init__(self) -> None:
        for point, choices in self._CHOICES.items():
            spelling = getattr(self, point)
            if spelling not in choices:
                raise ValueError(f"{point} is {spelling!r}; choose one of {', '.join(choices)}")
            if self.opset < choices[spelling]:
                raise ValueError(f"{point}={spelling} needs opset {choices[spelling]}, the dialect has {self.opset}")


CANONICAL = Dialect("canonical")


@attrs.frozen
class ConformanceProfile:
    """How a backend asks the conformance suite to treat it.

    Keys are ``module::test[parameter]``, where ``*`` is any text. ``unsupported`` is permanent: the hardware cannot do it.
    ``expected_failures`` is debt: the test still runs, and a pass is a failure of the entry.
    """

    unsupported: Mapping[str, str] = attrs.field(factory=dict)
    expected_failures: Mapping[str, str] = attrs.field(factory=dict)
