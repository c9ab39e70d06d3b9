"""Reads the tab-separated tables below ``data/``."""

from __future__ import annotations

import csv
from importlib.resources import files


def rows(name: str) -> list[dict[str, str]]:
    """The rows of ``data/NAME``, keyed by its header; a missing last field is empty."""
    text = files(__package__).joinpath("data", name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", restval="", quoting=csv.QUOTE_NONE))
