"""Options of the backend. Imports no runtime, so that listing them costs nothing."""

from __future__ import annotations

import enum

import attrs


class Optimization(enum.Enum):
    """Graph optimisations of ONNX Runtime. The levels that depend on the compiling machine's CPU are not offered."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"


class Prepack(enum.Enum):
    """Whether ``load`` packs the weights of matrix products into the CPU's own layout: faster, and a second copy."""

    AUTO = "auto"
    """Packed, unless the caller lends the weights memory; then computed from where they lie."""
    ON = "on"
    """Packed, caller memory or not."""
    OFF = "off"
    """Computed from where they lie."""


@attrs.frozen
class CompileOptions:
    """Options of ``isthmus compile --backend cpu``."""

    optimization: Optimization = attrs.field(
        default=Optimization.EXTENDED, metadata={"help": "graph optimisations applied off line (target host)"}
    )


@attrs.frozen
class DeviceOptions:
    """Options of ``open_device("cpu")``."""

    threads: int | None = attrs.field(default=None, metadata={"help": "threads per node; default: the CPUs allowed"})
    spinning: bool = attrs.field(
        default=False, metadata={"help": "let idle threads spin: faster on CPUs of your own, slower on shared ones"}
    )
    prepack: Prepack = attrs.field(
        default=Prepack.AUTO, metadata={"help": "auto: pack weights unless the caller lends memory for them"}
    )
    arena_limit: int | None = attrs.field(
        default=None, metadata={"help": "bytes of scratch a program may keep; load refuses one that needs more"}
    )

    def __attrs_post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1: {self.threads}")
        if self.arena_limit is not None and self.arena_limit < 0:
            raise ValueError(f"arena_limit must not be negative: {self.arena_limit}")
