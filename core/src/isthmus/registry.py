"""Finds plugins, loads the one asked for, and refuses the one that does not fit.

Plugins are entry points of group ``isthmus.backends``, each named after its backend, so that opening one backend
imports one plugin and a broken plugin hides no other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, EntryPoint, distributions

import pluggy

from . import hookspecs, spi
from .errors import IncompatibleError, InputError, IsthmusError, UnavailableError
from .types import BackendInfo

GROUP = "isthmus.backends"


class Registry:
    """Backends by name, loaded on first use."""

    def __init__(self, group: str = GROUP) -> None:
        self._group = group
        self._backends: dict[str, spi.Backend] = {}

    def names(self) -> list[str]:
        """Names that ``backend`` accepts. Imports no plugin."""
        return sorted(_scan(self._group)[0].keys() | self._backends.keys())

    def backend(self, name: str) -> spi.Backend:
        """Return a backend, importing and checking its plugin if need be.

        ``InputError``: no such backend. ``UnavailableError``: its plugin cannot be imported. ``IncompatibleError``: it
        was written for another SPI, misspells a hook, yields something else, or two plugins claim the name.
        """
        if name not in self._backends:
            found = _scan(self._group)[0].get(name, [])
            if not found:
                names = ", ".join(self.names()) or "none"
                raise InputError(f"no backend {name!r}; installed: {names}", fix="isthmus backends")
            if len(found) > 1:
                raise IncompatibleError(
                    f"{len(found)} plugins claim backend {name!r}: {', '.join(map(_origin, found))}",
                    fix=f"pip uninstall {_distribution(found[-1])}",
                )
            self._backends.setdefault(name, _load(found[0]))
        return self._backends[name]

    def register(self, plugin: object, *, origin: str = "plugin") -> None:
        """Check a plugin and add its backends, without an entry point: for tests and notebooks."""
        backends = _yielded(plugin, origin)
        for backend in backends:
            if backend.info.name in self._backends:
                raise IncompatibleError(f"{origin} provides backend {backend.info.name!r}, which is there already")
        self._backends.update({backend.info.name: backend for backend in backends})

    def problems(self) -> Mapping[str, IsthmusError]:
        """Plugins that are installed and cannot be used, with the reason. Imports every plugin."""
        _, found = _scan(self._group)
        for name in self.names():
            try:
                self.backend(name)
            except IsthmusError as error:
                found[name] = error
        return found


def _plugins(group: str) -> Iterator[Distribution]:
    """Installed distributions that mention the group. The first of a name on ``sys.path`` counts, as for imports."""
    seen = set()
    for distribution in distributions():
        if group in (distribution.read_text("entry_points.txt") or "") and distribution.name not in seen:
            seen.add(distribution.name)
            yield distribution


def _scan(group: str) -> tuple[dict[str, list[EntryPoint]], dict[str, IsthmusError]]:
    """Entry points of the group by name, and the distributions whose list of them cannot be read."""
    found: dict[str, list[EntryPoint]] = {}
    unreadable: dict[str, IsthmusError] = {}
    for distribution in _plugins(group):
        try:
            for entry in distribution.entry_points.select(group=group):
                found.setdefault(entry.name, []).append(entry)
        except Exception as error:  # noqa: BLE001 - importlib.metadata raises whatever its parser trips over
            unreadable[distribution.name] = IncompatibleError(
                f"the entry points of {distribution.name} cannot be read: {error}",
                fix=f"pip install --force-reinstall {distribution.name}",
            )
    return found, unreadable


def _origin(entry: EntryPoint) -> str:
    return f"plugin {entry.value!r} of {_distribution(entry)}"


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _load(entry: EntryPoint) -> spi.Backend:
    """The backend an entry point is named after; others the plugin yields have entry points of their own."""
    origin = _origin(entry)
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as error:
        raise UnavailableError(
            f"{origin} cannot be imported: {type(error).__name__}: {error}",
            fix=f"pip install --force-reinstall {_distribution(entry)}",
        ) from error
    backends = _yielded(plugin, origin)
    for backend in backends:
        if backend.info.name == entry.name:
            return backend
    raise IncompatibleError(
        f"{origin} registers for {entry.name!r} and yields {', '.join(b.info.name for b in backends) or 'nothing'}",
        fix="name its entry point after BackendInfo.name, and mark isthmus_backends with @isthmus.hookimpl",
    )


def _yielded(plugin: object, origin: str) -> list[spi.Backend]:
    """Backends of one plugin, checked. A manager of its own per plugin: what one does cannot disturb another."""
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
            f"{origin} failed while it listed its backends: {type(error).__name__}: {error}",
            fix="tell its author, or uninstall it; the other backends work",
        ) from error
    for backend in backends:
        if not isinstance(backend, spi.Backend) or not isinstance(getattr(backend, "info", None), BackendInfo):
            raise IncompatibleError(
                f"{origin} yields {backend!r}, which is not an isthmus.spi.Backend with its info",
                fix="yield an instance, docs/writing-a-backend.md has a complete example",
            )
        _negotiate(backend.info, origin)
    return backends


def _negotiate(info: BackendInfo, origin: str) -> None:
    """Accept a plugin of the same major and of the same or an older minor."""
    ours = spi.SPI_VERSION
    try:
        major, minor = info.spi_version
        fits = major == ours[0] and minor <= ours[1]
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise IncompatibleError(
            f"backend {info.name!r} {info.plugin_version} of {origin} was written for SPI {info.spi_version}, "
            f"this is SPI {ours}",
            fix="install a version of the plugin or of isthmus that matches: pip install --upgrade isthmus",
        )


@functools.cache
def registry() -> Registry:
    """The process-wide registry."""
    return Registry()
