"""The vendor objects of one open device: log, backend, device handles, power vote."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import ExitStack
from typing import Any

from isthmus.errors import IncompatibleError

from . import _abi, _lib
from .device_options import DeviceOptions, LogLevel, Power
from .libraries import Libraries
from .power import PowerVote

_LOG_LEVELS = {LogLevel.ERROR: 1, LogLevel.WARNING: 2, LogLevel.INFO: 3, LogLevel.VERBOSE: 4, LogLevel.DEBUG: 5}


class Session:
    """An initialised QNN. Closed in the order QNN wants, at interpreter exit at the latest.

    A context must be freed before; ``close`` does not know them.
    """

    def __init__(self, core: _lib.Interface, system: _lib.Interface, options: DeviceOptions) -> None:
        self.core = core
        self.system = system
        self.options = options
        self._devices: dict[int | None, _abi.Handle] = {}
        self._voted = options.power is Power.DEFAULT
        self._kept: list[object] = []
        with ExitStack() as closing:
            level = _LOG_LEVELS[options.log_level]
            self._log = _abi.Handle()
            core.check("open a log", "logCreate", _lib.log_callback(), level, _lib.ref(self._log))
            closing.callback(core.check, "close its log", "logFree", self._log)
            self.backend = _abi.Handle()
            core.check("open its backend", "backendCreate", self._log, None, _lib.ref(self.backend))
            closing.callback(core.check, "close its backend", "backendFree", self.backend)
            self.sdk = self._build_id()
            self._closing = closing.pop_all()
        self._pid = os.getpid()
        _OPEN.add(self)

    @classmethod
    def load(cls, libraries: Libraries, options: DeviceOptions) -> Session:
        """Load the libraries and initialise them. ``UnavailableError``, ``IncompatibleError``."""
        return cls(_lib.open_core(libraries.core), _lib.open_system(libraries.system), options)

    def device(self, soc: int | None) -> _abi.Handle:
        """The device handle for a SoC model id, made on first use; ``None`` is the chip of this machine."""
        if soc not in self._devices:
            handle, pointers = _abi.Handle(), self._device_configs(soc)
            self.core.check(f"open a device for SoC {soc}", "deviceCreate", self._log, pointers, _lib.ref(handle))
            self._closing.callback(self.core.check, "close a device", "deviceFree", handle)
            self._devices[soc] = handle
            if not self._voted:
                self._closing.callback(PowerVote(self.core, self.options.power).close)
                self._voted = True
        return self._devices[soc]

    def chip(self) -> tuple[int, int]:
        """SoC model id and architecture of the chip of this machine. Untested on silicon."""
        found = _lib.pointer_to(_abi.QnnDevice_PlatformInfo_t)
        self.core.check("describe the chip", "deviceGetPlatformInfo", self._log, _lib.ref(found))
        try:
            platform = found.contents.v1
            if not platform.numHwDevices or not platform.hwDevices[0].v1.deviceInfoExtension:
                raise IncompatibleError("the QNN runtime does not say which chip this is", fix="set the option soc")
            extension = _lib.struct_at(
                _abi.QnnHtpDevice_DeviceInfoExtension_t,
                platform.hwDevices[0].v1.deviceInfoExtension,
                _lib.size_of(_abi.QnnHtpDevice_DeviceInfoExtension_t),
            )
            return extension.onChipDevice.socModel, extension.onChipDevice.arch
        finally:
            self.core.check("release the description", "deviceFreePlatformInfo", self._log, found)

    def close(self) -> None:
        """Free everything, newest first. Safe to call twice."""
        _OPEN.discard(self)
        self._closing.close()

    def close_at_exit(self) -> None:
        """Close, unless this is a forked copy of the process that opened it: QNN hangs in one."""
        if self._pid == os.getpid():
            self.close()

    def _device_configs(self, soc: int | None) -> Any:
        if soc is None:
            return None
        custom = soc_config(soc)
        config = _abi.QnnDevice_Config_t(0, _lib.address_of(custom))
        self._kept += [custom, config]
        return _lib.pointers(_abi.QnnDevice_Config_t, [config])

    def _build_id(self) -> str:
        text = _abi.chars()
        self.core.check("name its build", "backendGetBuildId", _lib.ref(text))
        return (text.value or b"").decode()


def soc_config(soc: int) -> Any:
    """A ``QnnHtpDevice_CustomConfig_t`` that names a SoC, for every release.

    The struct's union moved between releases, at byte 4 or 8; a zeroed buffer with the id at both is read alike by all
    (checked on QNN 2.47 to 2.51).
    """
    return (_abi.u32 * 8)(0, soc, soc)


_OPEN: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Some failed loads crash the process at exit unless the backend was freed (measured on 2.51)."""
    for session in list(_OPEN):
        session.close_at_exit()
