"""Compile options of ``qnn_htp``: typed, and checked by us, because the compiler silently accepts nonsense."""

from __future__ import annotations

import enum

import attrs
from isthmus.errors import InputError, UnsupportedError

from .targets import Target


class Toolchain(enum.Enum):
    """Which compiler does the work."""

    ORT = "ort"
    """ONNX Runtime's QNN execution provider, in the package onnxruntime-qnn."""
    QAIRT = "qairt"
    """The converter tools of an installed QAIRT SDK."""


class Precision(enum.Enum):
    """Arithmetic of the float parts of a graph. Quantised parts keep what their QDQ nodes say."""

    FP16 = "fp16"
    BF16 = "bf16"


class IoDtype(enum.Enum):
    """Element type of a compiled entry's inputs and outputs."""

    AS_GRAPH = "as_graph"
    """As in the ONNX graph."""
    FLOAT16 = "float16"
    """float32 inputs and outputs become float16; half the bytes to move, and no conversion on the device."""
    QUANTIZED = "quantized"
    """Inputs behind a QuantizeLinear and outputs of a DequantizeLinear become integers; the caller converts."""


@attrs.frozen
class CompileOptions:
    """Options of ``isthmus compile --backend qnn_htp``."""

    toolchain: Toolchain = attrs.field(
        default=Toolchain.ORT, metadata={"help": "compiler: ONNX Runtime's QNN EP, or the tools of a QAIRT SDK"}
    )
    precision: Precision = attrs.field(
        default=Precision.FP16, metadata={"help": "arithmetic of float graphs; the chip must have it"}
    )
    io_dtype: IoDtype = attrs.field(
        default=IoDtype.AS_GRAPH,
        metadata={"help": "inputs and outputs: as in the graph, float16, or quantised as the graph's QDQ nodes say"},
    )
    optimization: int = attrs.field(
        default=3, metadata={"help": "how long to optimise: 1 (20-30 % less time), 2, or 3 (best graph)"}
    )
    vtcm_mb: int | None = attrs.field(
        default=None, metadata={"help": "VTCM a graph may use, MiB, 1 to the chip's; default: what the compiler takes"}
    )
    hvx_threads: int | None = attrs.field(
        default=None, metadata={"help": "HVX threads a graph may use, 1 to 8; only with toolchain=qairt"}
    )
    weight_sharing: bool = attrs.field(
        default=False,
        metadata={"help": "language-model entries in one binary, weights stored once; loads on devices only"},
    )
    calibration: str | None = attrs.field(
        default=None,
        metadata={"help": "directory with ENTRY.txt input lists: quantise with them; only with toolchain=qairt"},
    )
    activation_bits: int | None = attrs.field(
        default=None, metadata={"help": "activations with calibration: 8 or 16 bits; default 16"}
    )
    weight_bits: int | None = attrs.field(
        default=None, metadata={"help": "weights with calibration: 4, 8 or 16 bits; default 8"}
    )
    log: str | None = attrs.field(default=None, metadata={"help": "append the compiler's whole log to this file"})
    allow_cpu_nodes: bool = attrs.field(
        default=False, metadata={"help": "run nodes the HTP refuses on the CPU (not available yet)"}
    )

    def __attrs_post_init__(self) -> None:
        for name, highest in (("optimization", 3), ("hvx_threads", 8), ("vtcm_mb", 16)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= highest:
                raise ValueError(f"{name} is {value}; it is 1 to {highest}")
        for name, known in (("activation_bits", (8, 16)), ("weight_bits", (4, 8, 16))):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"{name} is {value}; it is one of {', '.join(map(str, known))}")
            if value is not None and self.calibration is None:
                raise ValueError(f"{name} needs calibration")


def check_options(options: CompileOptions, target: Target) -> None:
    """Refuse what the chip or the toolchain cannot do: ``InputError`` or ``UnsupportedError``, before any work."""
    if options.allow_cpu_nodes:
        raise UnsupportedError(
            "allow_cpu_nodes: splitting a graph between HTP and CPU is not available",
            why="an artifact of qnn_htp holds HTP binaries only; the split comes with the preflight feature",
            fix="change the nodes the compile error names, or cut them off the graph",
        )
    if options.vtcm_mb is not None and options.vtcm_mb > target.vtcm_mb:
        raise InputError(
            f"vtcm_mb is {options.vtcm_mb}, and {target} has {target.vtcm_mb} MiB", fix=f"give 1 to {target.vtcm_mb}"
        )
    if options.precision is Precision.BF16 and not target.bf16:
        raise UnsupportedError(f"{target} has no bfloat16", fix="use precision=fp16, or target sc8480xp")
    if options.weight_sharing and not target.weight_sharing:
        raise UnsupportedError(f"{target} cannot share weights between graphs", why="that exists from v73 on")
    if options.toolchain is Toolchain.ORT:
        _refuse_if_given(options, ("hvx_threads", "calibration"))
    elif options.precision is Precision.BF16:
        raise UnsupportedError("precision=bf16 needs toolchain=ort", fix="use precision=fp16")


def _refuse_if_given(options: CompileOptions, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise UnsupportedError(
                f"{name} needs toolchain=qairt",
                why="ONNX Runtime's QNN EP has nothing of the kind",
                fix=f"leave {name} out, or install a QAIRT SDK and use toolchain=qairt",
            )
