"""Votes for clocks and voltage through the HTP performance infrastructure.

Voltage corners and latencies are those ONNX Runtime's QNN EP uses for the modes of the same names.
"""

from __future__ import annotations

import attrs

from . import _abi, _lib
from .device_options import Power
from .status import vendor_error

_ADJUST_UP_DOWN, _PERFORMANCE = 0x01, 0x10
_SVS2, _SVS, _SVS_PLUS, _NOM, _NOM_PLUS, _TURBO, _MAX = 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xA0


@attrs.frozen
class _Mode:
    corner: int
    """Voltage corner of core and bus."""
    sleep_latency: int
    """Microseconds the DSP may take to wake."""
    polling: int = 0
    """Microseconds the host polls for a reply before it sleeps; 9999 is the most QNN takes."""


_MODES = {
    Power.BURST: _Mode(_MAX, 40, 9999),
    Power.SUSTAINED_HIGH: _Mode(_TURBO, 100, 9999),
    Power.HIGH: _Mode(_TURBO, 100, 9999),
    Power.BALANCED: _Mode(_NOM_PLUS, 1000),
    Power.LOW_BALANCED: _Mode(_NOM, 1000),
    Power.HIGH_POWER_SAVER: _Mode(_SVS_PLUS, 1000),
    Power.POWER_SAVER: _Mode(_SVS, 1000),
    Power.LOW_POWER_SAVER: _Mode(_SVS2, 1000),
}


class PowerVote:
    """A vote that holds until ``close``. Needs a device handle to exist."""

    def __init__(self, core: _lib.Interface, power: Power) -> None:
        found = _lib.pointer_to(_abi.QnnHtpDevice_Infrastructure_t)
        core.check("name its performance infrastructure", "deviceGetInfrastructure", _lib.ref(found))
        self._perf = found.contents.perfInfra
        self._core = core
        vote = _abi.u32()
        self._check("createPowerConfigId", self._perf.createPowerConfigId(0, 0, _lib.ref(vote)))
        self._id = vote.value
        self._configs = _configs(_MODES[power], self._id)
        pointers = _lib.pointers(_abi.QnnHtpPerfInfrastructure_PowerConfig_t, self._configs)
        self._check("setPowerConfig", self._perf.setPowerConfig(self._id, pointers))

    def close(self) -> None:
        """Withdraw the vote."""
        self._check("destroyPowerConfigId", self._perf.destroyPowerConfigId(self._id))

    def _check(self, call: str, status: int) -> None:
        if code := status & 0xFFFF:
            raise vendor_error(call, code, self._core.message(code), "change its power mode")


def _configs(mode: _Mode, vote: int) -> list[_abi.QnnHtpPerfInfrastructure_PowerConfig_t]:
    clocks = _abi.QnnHtpPerfInfrastructure_PowerConfig_t(_abi.QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_V3)
    fast = mode.polling > 0
    dcvs = clocks.u.dcvsV3Config
    dcvs.contextId = vote
    dcvs.setDcvsEnable, dcvs.dcvsEnable = 1, 0 if fast else 1
    dcvs.powerMode = _PERFORMANCE if fast else _ADJUST_UP_DOWN
    dcvs.setSleepLatency, dcvs.sleepLatency = 1, mode.sleep_latency
    dcvs.setBusParams = dcvs.setCoreParams = 1
    for part in ("bus", "core"):
        for bound in ("Min", "Target", "Max"):
            setattr(dcvs, f"{part}VoltageCorner{bound}", mode.corner)
    polling = _abi.QnnHtpPerfInfrastructure_PowerConfig_t(
        _abi.QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_POLLING_TIME
    )
    polling.u.value = mode.polling
    return [clocks, polling] if fast else [clocks]
