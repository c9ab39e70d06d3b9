"""Names that `--soc_version` takes, by architecture."""

from __future__ import annotations

from collections.abc import Mapping

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "310": ("Ascend310",),
    "310B": ("Ascend310B1", "Ascend310B2", "Ascend310B3", "Ascend310B4"),
    "310P": ("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
    "910": ("Ascend910A", "Ascend910B", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA"),
    "910B": ("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
    "910_93": tuple(f"Ascend910_{n}" for n in (9362, 9372, 9381, 9382, 9391, 9392)),
}
NO_BF16 = frozenset({"310", "310P", "910"})
NO_RANGES = frozenset({"310", "310B"})


def family(name: str) -> str | None:
    """Architecture of a SoC name, ``None`` if there is no such SoC. ``Ascend910B`` alone is the first generation."""
    return next((family for family, names in FAMILIES.items() if name in names), None)
