"""The backend: its devices, targets and compilers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isthmus.errors import InputError
from isthmus.graphset import GraphSet
from isthmus.spi import Backend, CompileReport, DeviceDriver
from isthmus.types import CANONICAL, BackendInfo, DeviceInfo, Dialect, Reality

from .options import CompileOptions, DeviceOptions

NAME = "cpu"
HOST = "host"


class CpuBackend(Backend):
    """The CPUs of this machine. ONNX Runtime is imported when first needed, not before."""

    info = BackendInfo(NAME, spi_version=(1, 0), plugin_version="0.1.0")
    compile_options = CompileOptions
    device_options = DeviceOptions

    def devices(self) -> Sequence[DeviceInfo]:
        return (DeviceInfo(NAME, "0", (HOST,), Reality.REAL, "ONNX Runtime on the host CPU"),)

    def targets(self) -> Sequence[str]:
        return (HOST,)

    def dialect(self, target: str) -> Dialect:
        if target not in self.targets():
            raise InputError(f"backend cpu has no target {target!r}; it has: {', '.join(self.targets())}")
        return CANONICAL

    def compile(self, source: GraphSet, target: str, out: Path, options: CompileOptions) -> CompileReport:
        from .compile import compile_host

        return compile_host(source, out, options)

    def open(self, device: DeviceInfo, options: DeviceOptions) -> DeviceDriver:
        from .driver import CpuDriver

        return CpuDriver(options)
