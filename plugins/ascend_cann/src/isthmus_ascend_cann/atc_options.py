"""Compile options: ATC's flags as typed fields, one attrs class.

A field that is ``None`` leaves ATC's own default. Defaults that differ from ATC's, and what they cost, are said in
``notes``. What must hold between options, the chip and the graph is checked in ``atc_checks`` before ATC starts.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs

from .gears import GearKind, Gears, chosen_gears


class Precision(enum.Enum):
    """Values of ``--precision_mode``; the last two only exist as ``--precision_mode_v2``."""

    FORCE_FP16 = "force_fp16"
    MUST_KEEP_ORIGIN_DTYPE = "must_keep_origin_dtype"
    ALLOW_FP32_TO_FP16 = "allow_fp32_to_fp16"
    ALLOW_FP32_TO_BF16 = "allow_fp32_to_bf16"
    ALLOW_MIX_PRECISION_FP16 = "allow_mix_precision_fp16"
    ALLOW_MIX_PRECISION_BF16 = "allow_mix_precision_bf16"
    CUBE_FP16IN_FP32OUT = "cube_fp16in_fp32out"
    CUBE_HIF8 = "cube_hif8"
    MIXED_HIF8 = "mixed_hif8"

    @property
    def flag(self) -> str:
        """The flag that takes this value."""
        return "precision_mode_v2" if self in (Precision.CUBE_HIF8, Precision.MIXED_HIF8) else "precision_mode"

    @property
    def mixed(self) -> bool:
        """Whether ATC chooses per operator from a list, which ``modify_mixlist`` changes."""
        return "mix" in self.value

    @property
    def consequence(self) -> str:
        """What this mode does to the numbers."""
        return _CONSEQUENCES[self]


_CONSEQUENCES = {
    Precision.FORCE_FP16: "every operator that has a float16 kernel runs in float16: sums lose digits, "
    "values beyond 65504 become infinite",
    Precision.MUST_KEEP_ORIGIN_DTYPE: "operators keep the graph's element type; float32 is slower and unsupported "
    "by some operators of the cube unit",
    Precision.ALLOW_FP32_TO_FP16: "operators without a float32 kernel run in float16, all others in float32",
    Precision.ALLOW_FP32_TO_BF16: "operators without a float32 kernel run in bfloat16, all others in float32",
    Precision.ALLOW_MIX_PRECISION_FP16: "operators on the vendor's list run in float16, the others in float32",
    Precision.ALLOW_MIX_PRECISION_BF16: "operators on the vendor's list run in bfloat16, the others in float32",
    Precision.CUBE_FP16IN_FP32OUT: "matrix products take float16 and give float32 where the chip has such a kernel",
    Precision.CUBE_HIF8: "matrix products run in hifloat8",
    Precision.MIXED_HIF8: "operators on the vendor's list run in hifloat8",
}


class BufferOptimize(enum.Enum):
    """Values of ``--buffer_optimize``."""

    L2 = "l2_optimize"
    OFF = "off_optimize"


class ExternalWeight(enum.Enum):
    """Where ``--external_weight`` puts the weights."""

    INSIDE = "inside"
    FILES = "files"
    """One file per constant, named by its hash: entries with equal weights share one copy on disk and device."""
    COMBINED = "combined"

    @property
    def value_for_atc(self) -> str:
        """0, 1 or 2."""
        return {"inside": "0", "files": "1", "combined": "2"}[self.value]


class ImplMode(enum.Enum):
    """Values of ``--op_select_implmode``."""

    HIGH_PRECISION = "high_precision"
    HIGH_PERFORMANCE = "high_performance"
    HIGH_PRECISION_FOR_ALL = "high_precision_for_all"
    HIGH_PERFORMANCE_FOR_ALL = "high_performance_for_all"


class CacheMode(enum.Enum):
    """Values of ``--op_compiler_cache_mode``."""

    DISABLE = "disable"
    ENABLE = "enable"
    FORCE = "force"


class HostCpu(enum.Enum):
    """Values of ``--host_env_cpu``."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class LogLevel(enum.Enum):
    """Values of ``--log``."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    NULL = "null"


class OutputType(enum.Enum):
    """Values of ``--output_type``: element type of all float outputs."""

    FP32 = "FP32"
    FP16 = "FP16"


class InputFormat(enum.Enum):
    """Values of ``--input_format`` for ONNX."""

    NCHW = "NCHW"
    NCDHW = "NCDHW"
    ND = "ND"


def _about(text: str, flag: str | None = None, zero: str = "0", one: str = "1") -> dict[str, Any]:
    """Metadata of a field: help, ATC's flag if it is passed on as it is, and how it spells a bool."""
    return {"help": text, "flag": flag, "bool": (zero, one)}


@attrs.frozen
class CompileOptions:
    """Options of ``isthmus compile --backend ascend``."""

    # numbers
    precision: Precision = attrs.field(
        default=Precision.FORCE_FP16, metadata=_about("how float32 is lowered; ATC's default is force_fp16 too")
    )
    keep_dtype: str | None = attrs.field(
        default=None, metadata=_about("file of operators that keep their element type", "keep_dtype")
    )
    customize_dtypes: str | None = attrs.field(
        default=None, metadata=_about("file of element types per operator", "customize_dtypes")
    )
    modify_mixlist: str | None = attrs.field(
        default=None, metadata=_about("JSON file that changes the list of a mixed mode", "modify_mixlist")
    )
    op_precision_mode: str | None = attrs.field(
        default=None, metadata=_about("file of precision modes per operator", "op_precision_mode")
    )
    op_select_implmode: ImplMode | None = attrs.field(
        default=None, metadata=_about("kernels preferred (older CANN)", "op_select_implmode")
    )
    optypelist_for_implmode: str | None = attrs.field(
        default=None, metadata=_about("operators it applies to", "optypelist_for_implmode")
    )
    allow_hf32: bool | None = attrs.field(
        default=None, metadata=_about("HF32 for float32 products", "allow_hf32", "false", "true")
    )
    output_type: OutputType | None = attrs.field(
        default=None, metadata=_about("element type of float outputs", "output_type")
    )
    input_fp16_nodes: str | None = attrs.field(
        default=None, metadata=_about("inputs taken as float16: name1;name2", "input_fp16_nodes")
    )
    deterministic: bool = attrs.field(default=False, metadata=_about("the same bits in every run", "deterministic"))
    # shapes
    input_shape: str | None = attrs.field(
        default=None, metadata=_about("fixes dynamic dimensions: name:1,3,448,448;name2:1; -1 with gears")
    )
    dynamic_batch_size: str | None = attrs.field(default=None, metadata=_about("gears of the batch: 1,2,4"))
    dynamic_image_size: str | None = attrs.field(
        default=None, metadata=_about("gears of height,width: 448,448;224,224")
    )
    dynamic_dims: str | None = attrs.field(default=None, metadata=_about("gears of all -1 in order: 1,128;1,256"))
    input_format: InputFormat | None = attrs.field(
        default=None, metadata=_about("layout of the inputs", "input_format")
    )
    # memory
    buffer_optimize: BufferOptimize = attrs.field(
        default=BufferOptimize.L2, metadata=_about("use of on-chip buffers", "buffer_optimize")
    )
    disable_reuse_memory: bool = attrs.field(
        default=False, metadata=_about("give every tensor memory of its own", "disable_reuse_memory")
    )
    enable_single_stream: bool | None = attrs.field(
        default=None, metadata=_about("one stream, less memory, no overlap", "enable_single_stream", "false", "true")
    )
    atomic_clean_policy: bool | None = attrs.field(
        default=None, metadata=_about("true: clear memory per operator, not all at once", "atomic_clean_policy")
    )
    # weights
    external_weight: ExternalWeight = attrs.field(
        default=ExternalWeight.INSIDE, metadata=_about("where the weights go")
    )
    is_weight_clip: bool | None = attrs.field(
        default=None, metadata=_about("clip weights to the range of float16", "is_weight_clip")
    )
    sparsity: bool = attrs.field(default=False, metadata=_about("4:2 structured sparsity", "sparsity"))
    enable_small_channel: bool | None = attrs.field(
        default=None, metadata=_about("for first convolutions of at most 4 channels", "enable_small_channel")
    )
    compression_optimize_conf: str | None = attrs.field(
        default=None, metadata=_about("file for quantisation by ATC", "compression_optimize_conf")
    )
    # AIPP
    insert_op_conf: str | None = attrs.field(
        default=None, metadata=_about("AIPP file: the device pre-processes the picture", "insert_op_conf")
    )
    # chip and host
    virtual_type: bool = attrs.field(default=False, metadata=_about("also run on vNPU slices", "virtual_type"))
    aicore_num: str | None = attrs.field(default=None, metadata=_about("limit of AI cores", "aicore_num"))
    host_env_os: str | None = attrs.field(
        default=None, metadata=_about("operating system the .om runs on", "host_env_os")
    )
    host_env_cpu: HostCpu | None = attrs.field(
        default=None, metadata=_about("CPU the .om runs beside, if not this one's", "host_env_cpu")
    )
    # ATC itself
    log: LogLevel = attrs.field(default=LogLevel.ERROR, metadata=_about("what ATC prints", "log"))
    op_debug_level: int = attrs.field(
        default=0, metadata=_about("0 to 4; above 0 the kernels can be debugged", "op_debug_level")
    )
    op_compiler_cache_mode: CacheMode | None = attrs.field(
        default=None, metadata=_about("cache of compiled operators", "op_compiler_cache_mode")
    )
    op_compiler_cache_dir: str | None = attrs.field(
        default=None, metadata=_about("where that cache is", "op_compiler_cache_dir")
    )
    fusion_switch_file: str | None = attrs.field(
        default=None, metadata=_about("file that turns fusions off", "fusion_switch_file")
    )
    compile_jobs: int | None = attrs.field(
        default=None, metadata=_about("operator compilations at once; chosen from free host memory if not given")
    )
    timeout_s: int | None = attrs.field(default=None, metadata=_about("stop ATC after so many seconds"))
    memory_limit_mib: int | None = attrs.field(
        default=None, metadata=_about("stop ATC when its processes hold more host memory")
    )

    @property
    def gears(self) -> Gears | None:
        """The gears asked for. ``InputError``: more than one gear option (E10009), or a broken rule."""
        return chosen_gears({kind: getattr(self, kind.value) for kind in GearKind})

    def flags(self) -> list[str]:
        """The options as arguments of ATC, without those of the model, the shapes and the output."""
        found = [f"--{self.precision.flag}={self.precision.value}"]
        for field in attrs.fields(type(self)):
            value, flag = getattr(self, field.name), field.metadata["flag"]
            if flag is not None and value is not None:
                found.append(f"--{flag}={_spelled(value, field.metadata['bool'])}")
        return [*found, f"--external_weight={self.external_weight.value_for_atc}"]

    def notes(self) -> list[str]:
        """What a reader of the artifact should know of these options."""
        said = [f"precision {self.precision.value}: {self.precision.consequence}"]
        if self.disable_reuse_memory:
            said.append("disable_reuse_memory: workspace is the sum of all tensors, not the peak of the live ones")
        return said


def _spelled(value: object, words: tuple[str, str]) -> str:
    if isinstance(value, bool):
        return words[value]
    return str(value.value) if isinstance(value, enum.Enum) else str(value)
