"""Who the backend is: its devices, targets, options and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import attrs
import numpy as np
from isthmus.errors import InputError
from isthmus.graphset import GraphSet
from isthmus.spi import Backend, CompileReport, DeviceDriver
from isthmus.types import CANONICAL, BackendInfo, ConformanceProfile, DeviceInfo, Dialect, Reality

TARGET = "numpy"


@attrs.frozen
class DeviceOptions:
    """Options of ``isthmus.open_device("example", options=...)``."""

    check_finite: bool = attrs.field(default=False, metadata={"help": "fail when an output is not finite"})


class ExampleBackend(Backend):
    """Evaluates graphs node by node in numpy."""

    # The SPI version is a literal: what this was written against, whatever is installed.
    info = BackendInfo("example", spi_version=(1, 0), plugin_version="0.1.0")
    device_options = DeviceOptions
    conformance: ClassVar[ConformanceProfile] = ConformanceProfile(
        unsupported={"test_programs::*[patches]": "no convolution"}
    )

    def devices(self) -> Sequence[DeviceInfo]:
        """The interpreter itself. A vendor's device would be looked for here, and ``UnavailableError`` say what lacks."""
        return (DeviceInfo("example", "0", (TARGET,), Reality.REAL, f"numpy {np.__version__}"),)

    def targets(self) -> Sequence[str]:
        """One: numpy is the same everywhere."""
        return (TARGET,)

    def dialect(self, target: str) -> Dialect:
        """Standard ONNX 17."""
        if target != TARGET:
            raise InputError(f"backend example has no target {target!r}; it has: {TARGET}")
        return CANONICAL

    def compile(self, source: GraphSet, target: str, out: Path, options: object) -> CompileReport:
        """Translate every graph to a list of steps over one block of weights."""
        from .compile import compile_graphs  # here, so that a machine that only runs artifacts needs no onnx

        return compile_graphs(source, out)

    def open(self, device: DeviceInfo, options: DeviceOptions) -> DeviceDriver:
        """Open the interpreter."""
        from .driver import ExampleDriver

        return ExampleDriver(options.check_finite)

    def doctor(self) -> Mapping[str, str]:
        """What ``isthmus doctor`` prints."""
        return {"numpy": np.__version__}
