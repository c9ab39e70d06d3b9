"""Options of backends: a mapping of strings or values in, a typed attrs object out, nothing ignored."""

from __future__ import annotations

import difflib
import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from .errors import InputError

T = TypeVar("T")


def parse_options(cls: type[T], given: Mapping[str, object], what: str) -> T:
    """Build ``cls`` from ``given``, converting strings as the command line gives them.

    Fields may be ``bool``, ``int``, ``float``, ``str``, an ``enum.Enum`` (by value) or any of these ``| None``.
    ``what`` names the options in errors, e.g. ``"compile option of qnn_htp"``. ``InputError`` names an unknown key with
    the nearest known one, or a value that does not convert.
    """
    fields = {f.name: f for f in attrs.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            known = ", ".join(sorted(fields)) or "none"
            raise InputError(
                f"unknown {what}: {key!r}",
                why=f"did you mean {near[0]!r}?" if near else None,
                fix=f"use one of: {known}",
            )
        if name in values:
            raise InputError(f"{what} {key!r} is given twice")
        values[name] = _convert(value, hints[name], f"{what} {key!r}")
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"bad {what}: {error}") from error


def describe_options(cls: type) -> list[dict[str, Any]]:
    """Name, type, default and help of each option, for ``--help`` and docs."""
    hints = typing.get_type_hints(cls)
    return [
        {
            "name": f.name,
            "type": _type_name(hints[f.name]),
            "default": f.default.value if isinstance(f.default, enum.Enum) else f.default,
            "help": f.metadata.get("help", ""),
        }
        for f in attrs.fields(cls)
    ]


def _members(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _type_name(hint: Any) -> str:
    names = []
    for member in _members(hint):
        if isinstance(member, type) and issubclass(member, enum.Enum):
            names.append("|".join(str(m.value) for m in member))
        elif member is not type(None):
            names.append(member.__name__)
    return " | ".join(names)


def _convert(value: object, hint: Any, what: str) -> object:
    members = _members(hint)
    if value is None or (value in ("", "none") and type(None) in members):
        if type(None) in members:
            return None
        raise InputError(f"{what} needs a value")
    (kind,) = (m for m in members if m is not type(None))
    try:
        return _CONVERSIONS.get(kind, kind)(value)
    except (KeyError, ValueError, OverflowError, TypeError):
        raise InputError(f"{what} is {value!r:.200}", fix=f"give a {_type_name(hint)}") from None


def _bool(value: object) -> bool:
    return _BOOL[str(value).lower()]


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(type(value))
    return int(value)


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not math.isfinite(float(value)):
        raise TypeError(type(value))
    return float(value)


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


_BOOL = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}
_CONVERSIONS: dict[Any, Callable[[object], object]] = {bool: _bool, int: _int, float: _float, str: _str}
