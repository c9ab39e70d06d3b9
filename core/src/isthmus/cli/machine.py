"""``isthmus backends`` and ``isthmus doctor``: what is on this machine, and what is missing."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import typer

from ..errors import IsthmusError
from ..options import describe_options
from ..registry import registry
from ..spi import Backend
from . import flags
from .output import emit, table


def backends(
    json: flags.Json = False,
    options: bool = typer.Option(False, "--options", help="List every option of every backend."),
) -> None:
    """List backends with their devices and targets."""
    found = {name: _describe(name) for name in _all_names()}
    rows = [
        (name, facts.get("version", "-"), _devices_line(facts), ", ".join(facts.get("targets", ())[:6]))
        for name, facts in found.items()
    ]
    tables = [table("Backends", ("backend", "version", "devices", "targets (first ones)"), rows)]
    if options:
        tables += [_options_table(name, facts) for name, facts in found.items() if "compile_options" in facts]
    emit({"backends": found}, *tables)


def doctor(
    backend: str | None = typer.Argument(None, help="Only this backend; exit code 3 if it cannot be used."),
    json: flags.Json = False,
    simulator: flags.Simulator = False,
) -> None:
    """Say what was found, what is missing, and the command that fixes it."""
    names = _all_names()
    if backend:
        if backend not in names:
            registry().backend(backend)  # says which there are
        names = [backend]
    for name in names:
        flags.use_simulator(name, simulator)
    found = {name: _examine(name) for name in names}
    host = {"isthmus": version("isthmus"), "python": platform.python_version(), "machine": platform.machine()}
    tables = [table("Host", ("fact", "value"), list(host.items()))]
    for name, facts in found.items():
        rows = [("verdict", facts["verdict"]), *facts["facts"].items()]
        tables.append(table(name, ("fact", "value"), rows))
    emit({"host": host, "backends": found}, *tables)
    if backend and not found[backend]["usable"]:
        raise typer.Exit(3)


def _all_names() -> list[str]:
    """Backends, and what is installed but cannot even be named as one."""
    return sorted({*registry().names(), *registry().problems()})


def _plugin(name: str) -> Backend:
    problem = registry().problems().get(name)
    if problem is not None:
        raise problem
    return registry().backend(name)


def _describe(name: str) -> dict[str, Any]:
    try:
        plugin = _plugin(name)
    except IsthmusError as error:
        return {"error": error.as_dict()}
    facts: dict[str, Any] = {
        "version": plugin.info.plugin_version,
        "spi": ".".join(map(str, plugin.info.spi_version)),
        "targets": list(plugin.targets()),
        "compile_options": describe_options(plugin.compile_options),
        "device_options": describe_options(plugin.device_options),
    }
    return {**facts, **_devices(plugin)}


def _devices(plugin: Backend) -> dict[str, Any]:
    try:
        return {
            "devices": [
                {"id": d.id, "reality": d.reality.value, "description": d.description, "targets": list(d.targets)}
                for d in plugin.devices()
            ]
        }
    except IsthmusError as error:
        return {"devices": [], "unavailable": error.as_dict()}


def _examine(name: str) -> dict[str, Any]:
    try:
        plugin = _plugin(name)
    except IsthmusError as error:
        return {"usable": False, "verdict": str(error), "facts": {}}
    devices = _devices(plugin)
    try:
        facts = dict(plugin.doctor())
    except IsthmusError as error:  # doctor is what one runs when things are broken
        facts = {"doctor": str(error)}
    usable = bool(devices["devices"])
    lack = devices.get("unavailable", {})
    verdict = f"usable: {', '.join(d['id'] + ' (' + d['reality'] + ')' for d in devices['devices'])}"
    if not usable:
        parts = (lack.get("what", "no device"), lack.get("why"), lack.get("fix") and f"fix: {lack['fix']}")
        verdict = "not usable: " + "; ".join(p for p in parts if p)
    return {
        "usable": usable,
        "verdict": facts.pop("verdict", verdict) if usable else verdict,
        "facts": facts,
        **devices,
    }


def _devices_line(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"broken: {facts['error']['what']}"
    if "unavailable" in facts:
        return f"unavailable: {facts['unavailable']['what']}"
    return ", ".join(f"{d['id']} ({d['reality']})" for d in facts["devices"])


def _options_table(name: str, facts: dict[str, Any]) -> Any:
    rows = [
        (kind, o["name"], o["type"], o["default"], o["help"])
        for kind, key in (("compile", "compile_options"), ("device", "device_options"))
        for o in facts[key]
    ]
    return table(f"Options of {name}", ("for", "name", "type", "default", "meaning"), rows)
