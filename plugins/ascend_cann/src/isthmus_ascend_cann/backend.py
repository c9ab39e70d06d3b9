"""The backend ``ascend``. See ``isthmus.spi.Backend``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
from isthmus.errors import UnavailableError
from isthmus.explain import Explanation
from isthmus.graphset import GraphSet
from isthmus.spi import Backend, CompileReport
from isthmus.types import BackendInfo, DeviceInfo, Dialect, Reality

from . import _lib, soc
from ._lib import Acl
from .atc_options import CompileOptions
from .context import Context
from .driver import AscendDriver
from .rules import AscendMemoryRules


def _about(text: str) -> dict[str, str]:
    return {"help": text}


@attrs.frozen
class DeviceOptions:
    """Options of opening an Ascend device."""

    timeout_ms: int = attrs.field(default=-1, metadata=_about("give up on a step after so long; -1 waits for ever"))
    staging_kib: int = attrs.field(
        default=4096, metadata=_about("pinned host memory for copies; 0 copies from pageable memory")
    )
    p2p: bool = attrs.field(
        default=False, metadata=_about("allocate memory that other devices can reach (not on 310B)")
    )
    giant_pages: bool = attrs.field(default=False, metadata=_about("REQUIRE_HUGE takes 1 GiB pages (A2 and A3 only)"))

    def __attrs_post_init__(self) -> None:
        if self.timeout_ms < -1 or self.timeout_ms == 0:
            raise ValueError(f"timeout_ms is {self.timeout_ms}; give a positive number, or -1 for none")
        if self.staging_kib < 0:
            raise ValueError(f"staging_kib is {self.staging_kib}; it cannot be negative")


class AscendBackend(Backend):
    """Huawei Ascend: ATC and AscendCL, or a simulator of both when it is named."""

    info = BackendInfo("ascend", (1, 0), version("isthmus-ascend-cann"))
    compile_options = CompileOptions
    device_options = DeviceOptions
    memory_rules = AscendMemoryRules()

    def devices(self) -> Sequence[DeviceInfo]:
        acl = _lib.library(_lib.simulator_named())
        count, out = _lib.new(_lib.UINT32)
        acl.aclrtGetDeviceCount(out)
        if not count.value:
            visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
            raise UnavailableError(
                "AscendCL sees no device",
                why=f"ASCEND_RT_VISIBLE_DEVICES is {visible!r}"
                if visible is not None
                else "no NPU, or no driver for it",
                fix="npu-smi info; in a container, mount /dev/davinci* and the driver directory",
            )
        api = _api_version(acl)
        return [_device(acl, index, api) for index in range(count.value)]

    def open(self, device: DeviceInfo, options: Any) -> AscendDriver:
        simulated = device.reality is Reality.SIMULATED
        context = Context(_lib.library(simulated), int(device.name), options.timeout_ms)
        try:
            return AscendDriver(
                device,
                context,
                p2p=options.p2p,
                giant_pages=options.giant_pages,
                staging=options.staging_kib << 10,
            )
        except BaseException:
            context.lost = True
            context.stop()
            context.close()
            raise

    def targets(self) -> Sequence[str]:
        return soc.names()

    def dialect(self, target: str) -> Dialect:
        """Opset 17 in spellings that ATC parses; RMSNorm by LpNormalization, since x*x overflows float16.

        ATC lowers to float16 by default, and the residual stream of a real model reaches 24,900, whose square does not
        fit. Whether ``LpNormV2`` sums in float32 on an NPU could not be tested here.
        """
        soc.find(target)
        return Dialect("ascend", opset=17, rms_norm="l2")

    def compile(self, source: GraphSet, target: str, out: Path, options: Any) -> CompileReport:
        from .compile import compile_graphs  # here, so that a machine that only runs artifacts needs no onnx

        return compile_graphs(source, target, out, options, simulator=_lib.simulator_named())

    def inspect(self, file: Path) -> Mapping[str, Any] | None:
        from .om import Kind, kind_of, read_om

        kind = kind_of(file)
        if kind is Kind.OM2:
            return {"format": "om2", "known": False, "why": "a zip container of newer CANN, which is not parsed here"}
        return read_om(file).describe() if kind is Kind.OM else None

    def explanations(self) -> Sequence[Explanation]:
        """Codes and log lines of AscendCL, ATC and the driver."""
        from .explain import explanations

        return explanations()

    def doctor(self) -> Mapping[str, str]:
        from .doctor import facts

        return facts()


def _api_version(acl: Acl) -> str:
    numbers, outs = zip(*(_lib.new(_lib.INT32) for _ in range(3)))
    acl.aclrtGetVersion(*outs)
    return ".".join(str(n.value) for n in numbers)


def _device(acl: Acl, index: int, api: str) -> DeviceInfo:
    chip = soc.of_version((acl.aclrtGetSocName() or b"").decode())
    visible = [v.strip() for v in os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",") if v.strip()]
    physical = f" (ASCEND_RT_VISIBLE_DEVICES: card {visible[index]})" if index < len(visible) else ""
    kind = "simulated " if acl.simulated else ""
    return DeviceInfo(
        backend="ascend",
        name=str(index),
        targets=(chip.name,),
        reality=Reality.SIMULATED if acl.simulated else Reality.REAL,
        description=f"{kind}{chip.version}, device {index}{physical}, AscendCL {api}",
    )
