"""Options of ``open_device("qnn_htp", options=...)``."""

from __future__ import annotations

import enum

import attrs


class Isolation(enum.Enum):
    """Where the vendor library lives."""

    CHILD = "child"
    """In a process of its own: what kills it costs the device, not the program."""
    IN_PROCESS = "in_process"
    """In the caller's process: about 0.1 ms less per call, and a crash takes the program along."""


class Power(enum.Enum):
    """Vote for clocks and voltage. A no-op on the emulator."""

    DEFAULT = "default"
    """No vote."""
    BURST = "burst"
    SUSTAINED_HIGH = "sustained_high"
    HIGH = "high"
    BALANCED = "balanced"
    LOW_BALANCED = "low_balanced"
    HIGH_POWER_SAVER = "high_power_saver"
    POWER_SAVER = "power_saver"
    LOW_POWER_SAVER = "low_power_saver"


class Priority(enum.Enum):
    """Order among the contexts of all processes on the chip."""

    LOW = "low"
    NORMAL = "normal"
    NORMAL_HIGH = "normal_high"
    HIGH = "high"


class LogLevel(enum.Enum):
    """Least severity of vendor messages that reach the logger ``isthmus.qnn``."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    VERBOSE = "verbose"
    DEBUG = "debug"


class ProfileLevel(enum.Enum):
    """What ``Binding.profile`` measures."""

    BASIC = "basic"
    DETAILED = "detailed"
    """With a row per node."""


class IoMemory(enum.Enum):
    """How tensors reach the chip."""

    AUTO = "auto"
    """``registered`` on a chip that has libcdsprpc, else ``client``."""
    CLIENT = "client"
    """Host memory, which the runtime copies."""
    REGISTERED = "registered"
    """Memory shared with the DSP, registered once per tensor. Untested on silicon."""


def _positive(_: object, attribute: attrs.Attribute[float], value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value}")


@attrs.frozen
class DeviceOptions:
    """Options of a device."""

    isolation: Isolation = attrs.field(
        default=Isolation.CHILD, metadata={"help": "child: a crash costs the device; in_process: it costs the program"}
    )
    library_dir: str | None = attrs.field(
        default=None, metadata={"help": "directory of libQnnHtp.so; else ISTHMUS_QNN_LIB_DIR, the SDK, the package"}
    )
    soc: str | None = attrs.field(
        default=None,
        metadata={"help": "target the emulator plays, e.g. sm8650; by default whatever an artifact was compiled for"},
    )
    power: Power = attrs.field(default=Power.DEFAULT, metadata={"help": "vote for clocks and voltage"})
    priority: Priority = attrs.field(default=Priority.NORMAL, metadata={"help": "priority of loaded contexts"})
    log_level: LogLevel = attrs.field(
        default=LogLevel.ERROR, metadata={"help": "vendor messages that reach the logger isthmus.qnn"}
    )
    profile: ProfileLevel = attrs.field(default=ProfileLevel.DETAILED, metadata={"help": "what a profile measures"})
    watchdog_seconds: float | None = attrs.field(
        default=60.0,
        validator=_positive,
        metadata={"help": "child only: a call without answer and without CPU use for this long is a hang; none: never"},
    )
    io_memory: IoMemory = attrs.field(default=IoMemory.AUTO, metadata={"help": "how tensors reach the chip"})
    async_depth: int = attrs.field(
        default=0,
        validator=attrs.validators.ge(0),
        metadata={"help": "queue depth for asynchronous execution, 0: synchronous; untested on silicon"},
    )
    share_spill_fill: bool = attrs.field(
        default=False,
        metadata={"help": "one spill-fill buffer for all binaries of an artifact; untested on silicon"},
    )
    abort_seconds: float | None = attrs.field(
        default=None,
        validator=_positive,
        metadata={"help": "the runtime aborts an execute that takes longer; untested on silicon"},
    )
