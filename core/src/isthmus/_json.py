"""JSON from files that may be damaged or forged: nothing is guessed, converted or dropped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import cattrs

DAMAGE = (cattrs.BaseValidationError, ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What reading or structuring hostile data can raise."""


def read_json(path: Path) -> Any:
    """Parse a file. ``ValueError`` for bad syntax, a repeated key, NaN or infinity; ``OSError``; ``RecursionError``."""
    return json.loads(path.read_text("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write what ``read_json`` accepts: ``ValueError`` for NaN or infinity."""
    path.write_text(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def explain(error: BaseException) -> str:
    """One line on what is wrong, and where in the data."""
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error, format_exception=_words))[:400]
    return f"{type(error).__name__}: {error}"[:400]


def _words(error: BaseException, kind: type | None) -> str:
    if isinstance(error, KeyError) or not isinstance(error, ValueError | TypeError):
        return cattrs.v.format_exception(error, kind)
    return str(error).partition("\n")[0]


def strict_converter() -> cattrs.Converter:
    """A converter to attrs classes that takes each value as it is: no ``int("3")``, no ``bool("false")``, no NaN."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, _exactly)
    converter.register_structure_hook(float, _finite)
    converter.register_structure_hook_factory(_is_tuple, lambda hint: _tuple_of(get_args(hint), converter))
    return converter


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r:.80} is not of type {kind.__name__}")
    return value


def _finite(value: Any, _: type) -> float:
    if type(value) not in (int, float) or abs(value) > 1e300 or not math.isfinite(value):
        raise ValueError(f"{value!r:.80} is not a finite number")
    return float(value)


def _is_tuple(hint: Any) -> bool:
    origin: Any = get_origin(hint)
    return origin is tuple


def _tuple_of(kinds: tuple[Any, ...], converter: cattrs.Converter) -> Callable[[Any, Any], tuple[Any, ...]]:
    def structure(values: Any, _: Any) -> tuple[Any, ...]:
        if type(values) not in (list, tuple):  # a tuple: data that has not been through a file yet
            raise ValueError(f"{values!r:.80} is not a list")
        expected = kinds[:1] * len(values) if kinds[-1] is Ellipsis else kinds
        if len(expected) != len(values):
            raise ValueError(f"{len(values)} values, {len(expected)} expected")
        return tuple(converter.structure(value, kind) for value, kind in zip(values, expected))

    return structure
