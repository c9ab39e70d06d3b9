"""A checkpoint's JSON files, read strictly: a missing or mistyped key is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs

from ..errors import InputError, UnsupportedError

_MISSING: Any = object()


@attrs.frozen
class Config:
    """One JSON object. ``where`` names it in messages, e.g. ``DIR/config.json: text_config``."""

    where: str
    data: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a JSON file that must hold an object."""
        try:
            data = json.loads(path.read_text("utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{path} does not exist",
                why=f"{path.parent} is not a checkpoint directory, or was not downloaded whole",
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InputError(f"{path} holds a {type(data).__name__}, not an object")
        return cls(str(path), data)

    @classmethod
    def load_optional(cls, path: Path) -> Config:
        """As ``load``; a file that is not there is an empty object."""
        return cls.load(path) if path.exists() else cls(str(path), {})

    def get(self, key: str) -> Any:
        """The raw value, ``None`` when absent or null."""
        return self.data.get(key)

    def section(self, key: str) -> Config:
        """A nested object, which must be there."""
        return Config(f"{self.where}: {key}", self._typed(key, dict, "an object"))

    def optional_section(self, key: str) -> Config:
        """A nested object; one that is absent or null is empty."""
        return Config(f"{self.where}: {key}", self._typed(key, dict, "an object", {}))

    def sections(self, key: str) -> list[Config]:
        """A list of objects; one that is absent or null is empty."""
        listed = self._typed(key, list, "a list", [])
        if not all(isinstance(item, dict) for item in listed):
            self._bad(key, listed, "a list of objects")
        return [Config(f"{self.where}: {key}", item) for item in listed]

    def texts(self, key: str) -> list[str]:
        """A list of strings; one that is absent or null is empty."""
        listed = self._typed(key, list, "a list", [])
        if not all(isinstance(item, str) for item in listed):
            self._bad(key, listed, "a list of strings")
        return list(listed)

    def token_id(self, key: str) -> int:
        """A non-negative integer."""
        value: int = self._typed(key, int, "a token id")
        if value < 0:
            self._bad(key, value, "a token id")
        return value

    def token_ids(self) -> dict[str, int]:
        """The whole object as token strings to ids."""
        return {token: self.token_id(token) for token in self.data}

    def integer(self, key: str, default: int = _MISSING) -> int:
        """A positive integer."""
        value: int = self._typed(key, int, "an integer", default)
        if value <= 0:
            self._bad(key, value, "a positive integer")
        return value

    def number(self, key: str, default: float = _MISSING) -> float:
        """A positive number."""
        value = float(self._typed(key, (int, float), "a number", default))
        if not 0 < value < float("inf"):
            self._bad(key, value, "a positive number")
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        """A string."""
        value: str = self._typed(key, str, "a string", default)
        return value

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """A boolean."""
        value: bool = self._typed(key, bool, "true or false", default)
        return value

    def square(self, key: str) -> int:
        """An integer, or a list of two equal ones."""
        value = self.get(key)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            return Config(self.where, {key: value[0]}).integer(key)
        return self.integer(key)

    def require(self, key: str, *supported: Any, default: Any = _MISSING, why: str | None = None) -> Any:
        """The value if it is one of ``supported``; an absent or null key counts as ``default``, if there is one."""
        value = self.get(key)
        if value is None and default is not _MISSING:
            return default
        if value is None and None not in supported:
            self._absent(key)
        if not any(value == s and isinstance(value, bool) == isinstance(s, bool) for s in supported):
            choices = " or ".join(json.dumps(s) for s in supported)
            raise UnsupportedError(f"{self.where}: {key} is {json.dumps(value)}; supported: {choices}", why=why)
        return value

    def _typed(self, key: str, kinds: Any, what: str, default: Any = _MISSING) -> Any:
        value = self.get(key)
        if value is None and default is not _MISSING:
            return default
        if value is None:
            self._absent(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            self._bad(key, value, what)
        return value

    def _absent(self, key: str) -> NoReturn:
        raise InputError(f"{self.where} has no {key}", why="it is the configuration of another kind of model")

    def _bad(self, key: str, value: Any, what: str) -> NoReturn:
        raise InputError(f"{self.where}: {key} is {json.dumps(value)[:80]}, not {what}")
