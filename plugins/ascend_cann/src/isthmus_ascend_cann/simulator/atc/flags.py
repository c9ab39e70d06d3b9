"""The command line of `atc`: reading it and checking flags against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import tables
from .failure import AtcError, bad_value


def parse(arguments: Sequence[str]) -> dict[str, str]:
    """All flags with their values or defaults. ``--flag=value`` and ``--flag value``; ``-`` counts as ``_``."""
    values = tables.flag_defaults()
    given = _pairs(arguments)
    for name, value in given.items():
        _check(name, value)
    values.update(given)
    _require(values)
    _exclude(values, given)
    return values


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            raise AtcError("E10054", "Config_Error", f"[{word}] is not a flag; values with blanks or ; need quotes")
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        pairs[name.replace("-", "_")] = value
    return pairs


def _check(name: str, value: str) -> None:
    if name in tables.refused_flags():
        raise AtcError("E10055", "Not_Supported", f"--{name} is not simulated")
    if name not in tables.flag_defaults():
        raise AtcError("E10003", "Config_Error_Invalid_Argument", f"unknown command line flag [--{name}]")
    allowed = tables.flag_values(name)
    if allowed and value not in allowed:
        raise bad_value(name, value, f"Choose one of {', '.join(allowed)}.")


def _require(values: Mapping[str, str]) -> None:
    for name in ("model", "output", "soc_version"):
        if not values[name]:
            raise AtcError("E10054", "Config_Error_Missing", f"The required parameter [--{name}] is empty.")
    if values["framework"] != "5":
        raise AtcError("E10007", "Config_Error_Missing", "[--framework] must be 5 (ONNX) for the simulated atc.")
    if values["mode"] != "0":
        raise AtcError("E10055", "Not_Supported", f"[--mode] {values['mode']} is not simulated")


def _exclude(values: Mapping[str, str], given: Mapping[str, str]) -> None:
    gears = [n for n in ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims") if values[n]]
    if len(gears) > 1:
        raise AtcError("E10009", "Config_Error_Conflict", f"[--{gears[0]}] and [--{gears[1]}] exclude each other.")
    if given.get("precision_mode") and given.get("precision_mode_v2"):
        raise AtcError("E10056", "Config_Error_Conflict", "[--precision_mode] and [--precision_mode_v2] are exclusive.")
    if values["dynamic_dims"] and values["insert_op_conf"]:
        raise AtcError("E10009", "Config_Error_Conflict", "[--dynamic_dims] and [--insert_op_conf] are exclusive.")
