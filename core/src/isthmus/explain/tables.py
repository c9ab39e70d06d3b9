"""Reads tables of explanations: TOML files with one ``[[explanation]]`` per row."""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files

import attrs

from .._json import strict_converter
from .explanation import Explanation


@attrs.frozen
class _Table:
    explanation: tuple[Explanation, ...]


def read_table(package: str, name: str) -> tuple[Explanation, ...]:
    """The rows of the file ``data/NAME`` of a package. The file is part of the package: if it is wrong, this raises."""
    data = tomllib.loads(files(package).joinpath("data", name).read_text("utf-8"))
    return strict_converter().structure(data, _Table).explanation


@functools.cache
def general() -> tuple[Explanation, ...]:
    """What any backend may meet: the loader, memory of the host, files, the model's own contract."""
    return read_table(__package__, "general.toml")
