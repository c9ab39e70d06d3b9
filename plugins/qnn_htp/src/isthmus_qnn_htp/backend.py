"""The backend ``qnn_htp``: Qualcomm QNN on Hexagon, or the x86 model of it that the libraries contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from isthmus.errors import IncompatibleError, InputError, IntegrityError
from isthmus.explain import Explanation
from isthmus.graphset import GraphSet
from isthmus.spi import Backend, CompileReport, DeviceDriver
from isthmus.types import BackendInfo, ConformanceProfile, DeviceInfo, Dialect, Reality

from . import binary, targets
from .checks import Chip
from .device_options import DeviceOptions, Isolation
from .driver import QnnDriver
from .isolated import IsolatedDriver, inspect, probe
from .libraries import emulated, find
from .options import CompileOptions
from .rules import HtpMemoryRules

_MAGIC = b"\0\0\0\2\0\0\0\3"


class QnnHtp(Backend):
    """Compiles with ONNX Runtime's QNN EP, runs with the QNN C API."""

    info = BackendInfo("qnn_htp", (1, 0), "0.1.0")
    compile_options = CompileOptions
    device_options = DeviceOptions
    memory_rules = HtpMemoryRules()
    conformance: ClassVar[ConformanceProfile] = ConformanceProfile()

    def devices(self) -> Sequence[DeviceInfo]:
        where = f"QNN from {find().origin}"
        if emulated():
            return [DeviceInfo("qnn_htp", "0", _names(), Reality.EMULATED, f"HTP emulator on x86-64, {where}")]
        chip = probe()
        text = f"SoC {chip.soc}, Hexagon v{chip.arch}, {where}"
        return [DeviceInfo("qnn_htp", "0", _names(chip), Reality.REAL, text)]

    def open(self, device: DeviceInfo, options: DeviceOptions) -> DeviceDriver:
        if options.isolation is Isolation.IN_PROCESS:
            return QnnDriver.open(options)
        return IsolatedDriver(options)

    def targets(self) -> Sequence[str]:
        return targets.names()

    def dialect(self, target: str) -> Dialect:
        return targets.dialect(target)

    def compile(self, source: GraphSet, target: str, out: Path, options: CompileOptions) -> CompileReport:
        from .compile import compile_graphs

        return compile_graphs(source, target, out, options)

    def inspect(self, file: Path) -> Mapping[str, Any] | None:
        with file.open("rb") as data:
            if data.read(len(_MAGIC)) != _MAGIC:
                return None
        try:
            return binary.describe(inspect(file))
        except (IntegrityError, IncompatibleError) as error:
            raise InputError(f"{file} is a damaged context binary", why=str(error)) from error

    def explanations(self) -> Sequence[Explanation]:
        """QNN's codes and log lines."""
        from .explain import explanations

        return explanations()

    def doctor(self) -> Mapping[str, str]:
        from .doctor import facts

        return facts()


def _names(chip: Chip | None = None) -> tuple[str, ...]:
    """Names of the targets a chip runs: its own, and its architecture's. The emulator runs all."""
    found = {name: targets.parse(name) for name in targets.names()}
    socs = dict.fromkeys(target.soc for target in found.values())
    if chip is None:
        return (*found, *(f"soc:{soc}" for soc in socs))
    own = [name for name, target in found.items() if target.soc == chip.soc and not name.startswith("v")]
    return (*own, f"v{chip.arch}", f"soc:{chip.soc}")
