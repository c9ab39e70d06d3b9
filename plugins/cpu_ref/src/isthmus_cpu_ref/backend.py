"""The backend: its devices, targets and compilers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.errors import InputError, UnavailableError
from isthmus.graphset import GraphSet
from isthmus.spi import Backend, CompileReport, DeviceDriver
from isthmus.types import CANONICAL, BackendInfo, DeviceInfo, Dialect, Reality

from .machine import facts
from .options import CompileOptions, DeviceOptions
from .rules import CpuMemoryRules

NAME = "cpu"
HOST = "host"
REFERENCE = "reference"


class CpuBackend(Backend):
    """The CPUs of this machine. ONNX Runtime is imported when first needed, not before."""

    info = BackendInfo(NAME, spi_version=(1, 0), plugin_version="0.1.0")
    compile_options = CompileOptions
    device_options = DeviceOptions
    memory_rules = CpuMemoryRules()

    def devices(self) -> Sequence[DeviceInfo]:
        return (
            DeviceInfo(NAME, "0", (HOST,), Reality.REAL, "ONNX Runtime on the host CPU"),
            DeviceInfo(NAME, REFERENCE, (REFERENCE,), Reality.REAL, "onnx.reference in float64: slow, and the truth"),
        )

    def targets(self) -> Sequence[str]:
        return (HOST, REFERENCE)

    def dialect(self, target: str) -> Dialect:
        if target not in self.targets():
            raise InputError(f"backend cpu has no target {target!r}; it has: {', '.join(self.targets())}")
        return CANONICAL

    def compile(self, source: GraphSet, target: str, out: Path, options: CompileOptions) -> CompileReport:
        if target == REFERENCE:
            _refuse_options(options, CompileOptions(), "target reference")
            from .reference import compile_reference

            return compile_reference(source, out)
        _require_runtime()
        from .compile import compile_host

        return compile_host(source, out, options)

    def open(self, device: DeviceInfo, options: DeviceOptions) -> DeviceDriver:
        if device.name == REFERENCE:
            _refuse_options(options, DeviceOptions(), device.id)
            from .reference import ReferenceDriver

            return ReferenceDriver()
        _require_runtime()
        from .driver import CpuDriver

        return CpuDriver(options)

    def doctor(self) -> Mapping[str, str]:
        return facts()


def _refuse_options(given: object, default: object, who: str) -> None:
    if given != default:
        raise InputError(f"{who} takes no options; they are ONNX Runtime's", fix="leave them out, or use cpu:0")


def _require_runtime() -> None:
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"ONNX Runtime cannot be imported: {error}", fix="pip install --force-reinstall onnxruntime"
        ) from error
