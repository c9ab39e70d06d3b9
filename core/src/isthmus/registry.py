"""Finds plugins, loads the one asked for, and refuses the one that does not fit.

Plugins are entry points of group ``isthmus.backends``, each named after its backend, so that opening one backend
imports one plugin and a broken plugin hides no other.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

import pluggy

from . import hookspecs, spi
from .errors import IncompatibleError, InputError, IsthmusError, UnavailableError

GROUP = "isthmus.backends"


class Registry:
    """Backends by name, loaded on first use."""

    def __init__(self, group: str = GROUP) -> None:
        self._group = group
        self._backends: dict[str, spi.Backend] = {}

    def names(self) -> list[str]:
        """Names that ``backend`` accepts. Imports no plugin."""
        return sorted({ep.name for ep in entry_points(group=self._group)} | self._backends.keys())

    def backend(self, name: str) -> spi.Backend:
        """Return a backend, importing and checking its plugin if need be.

        ``InputError``: no such backend. ``UnavailableError``: its plugin cannot be imported. ``IncompatibleError``: it
        was written for another SPI, misspells a hook, or yields something else.
        """
        if name not in self._backends:
            found = [ep for ep in entry_points(group=self._group) if ep.name == name]
            if not found:
                names = ", ".join(self.names()) or "none"
                raise InputError(f"no backend {name!r}; installed: {names}", fix="isthmus backends")
            self.register(_import(found[0]), origin=f"plugin {found[0].value!r}")
            if name not in self._backends:
                raise IncompatibleError(
                    f"plugin {found[0].value!r} registers for {name!r} but yields no such backend",
                    fix="its entry point must be named like its BackendInfo.name",
                )
        return self._backends[name]

    def register(self, plugin: object, *, origin: str = "plugin") -> None:
        """Check a plugin and add its backends. For tests and notebooks too."""
        for backend in _yielded(plugin, origin):
            info = backend.info
            _negotiate(info.spi_version, f"backend {info.name!r} {info.plugin_version}")
            if info.name in self._backends:
                raise IncompatibleError(f"{origin} provides backend {info.name!r}, which is there already")
            self._backends[info.name] = backend

    def problems(self) -> Mapping[str, IsthmusError]:
        """Plugins that are installed and cannot be used, with the reason. Imports every plugin."""
        found: dict[str, IsthmusError] = {}
        for name in self.names():
            try:
                self.backend(name)
            except IsthmusError as error:
                found[name] = error
        return found


def _import(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:
        raise UnavailableError(
            f"the plugin of backend {entry.name!r} ({entry.value}) cannot be imported: {type(error).__name__}: {error}",
            fix=f"reinstall it: pip install --force-reinstall {entry.dist.name if entry.dist else entry.value}",
        ) from error


def _yielded(plugin: object, origin: str) -> list[spi.Backend]:
    """Backends of one plugin. A manager of its own per plugin: what one does cannot disturb another."""
    manager = pluggy.PluginManager("isthmus")
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(plugin)
        manager.check_pending()  # a misspelt hook is an error, not a silence
        backends = [b for some in manager.hook.isthmus_backends() for b in some]
    except pluggy.PluginValidationError as error:
        raise IncompatibleError(
            f"{origin} does not fit the hooks of isthmus: {error}",
            fix="the hook is `isthmus_backends()`, without arguments",
        ) from error
    except Exception as error:
        raise UnavailableError(
            f"{origin} failed while it listed its backends: {type(error).__name__}: {error}"
        ) from error
    for backend in backends:
        if not isinstance(backend, spi.Backend):
            raise IncompatibleError(f"{origin} yields {backend!r}, which is not an isthmus.spi.Backend")
    return backends


def _negotiate(version: tuple[int, int], who: str) -> None:
    """Accept a plugin of the same major and of the same or an older minor."""
    major, minor = version
    ours = spi.SPI_VERSION
    if major != ours[0] or minor > ours[1]:
        raise IncompatibleError(
            f"{who} was written for SPI {major}.{minor}, this is SPI {ours[0]}.{ours[1]}",
            fix="install a version of the plugin or of isthmus that matches: pip install --upgrade isthmus",
        )


@functools.cache
def registry() -> Registry:
    """The process-wide registry."""
    return Registry()
