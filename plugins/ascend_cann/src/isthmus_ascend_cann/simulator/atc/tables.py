"""Reads `tables.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_TABLES: Mapping[str, Any] = tomllib.loads(files(__package__).joinpath("tables.toml").read_text("utf-8"))


def words(section: str, name: str) -> frozenset[str]:
    """A word list."""
    return frozenset(_TABLES[section][name].split())


def flag_defaults() -> dict[str, str]:
    """Every flag that is accepted, with its default."""
    return {name: spec[0] for name, spec in _flags().items()}


def flag_values(name: str) -> tuple[str, ...]:
    """The values a flag can have; empty for any."""
    spec = _flags()[name]
    return tuple(spec[1].split()) if len(spec) > 1 else ()


def refused_flags() -> frozenset[str]:
    """Flags of the real command that are not simulated."""
    return frozenset(_TABLES["flags"]["refused"]["names"].split())


def _flags() -> dict[str, list[str]]:
    return {**_TABLES["flags"]["used"], **_TABLES["flags"]["ignored"]}
