"""Gears: the fixed set of shapes one ``.om`` can run. Each gear becomes an entry of its own, so none can be forgotten.

Forgetting to set a gear runs the largest one without an error (AscendCL), which is why they are not a run-time option.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs
from isthmus.errors import InputError

MAX_GEARS = 100
"""Documented limit; 256 on Ascend950."""


class GearKind(enum.Enum):
    """Which dimension the gears give."""

    BATCH = "dynamic_batch_size"
    IMAGE = "dynamic_image_size"
    DIMS = "dynamic_dims"


@attrs.frozen
class Gears:
    """``values``: one group per gear; (batch,), (height, width), or one value per -1 in order of the inputs."""

    kind: GearKind
    values: tuple[tuple[int, ...], ...]

    def flag(self) -> str:
        """As ATC takes it: ``1,2,4`` for batches, else groups parted by ``;``."""
        groups = [",".join(map(str, group)) for group in self.values]
        return (",".join if self.kind is GearKind.BATCH else ";".join)(groups)

    def shape(self, gear: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The inputs' shapes in one gear. ``InputError``: the number of -1 does not fit."""
        rest = list(gear)
        filled = []
        for shape in shapes:
            if self.kind is not GearKind.DIMS:
                rest = list(gear)
            holes = sum(d == -1 for d in shape)
            if holes > len(rest):
                raise InputError(f"shape {list(shape)} has {holes} dynamic dimensions, a gear has {len(gear)} values")
            taken, rest = iter(rest[:holes]), rest[holes:]
            filled.append(tuple(next(taken) if d == -1 else d for d in shape))
        if rest and self.kind is GearKind.DIMS:
            raise InputError(f"a gear has {len(gear)} values, the inputs {len(gear) - len(rest)} dynamic dimensions")
        return filled


def entry_name(entry: str, gear: Sequence[int]) -> str:
    """Name of the entry that runs one gear: ``main@8``, ``main@448x448``."""
    return f"{entry}@{'x'.join(map(str, gear))}"


def chosen_gears(options: Mapping[GearKind, str | None]) -> Gears | None:
    """The gears of the one gear option that is given. ``InputError``: more than one (E10009), or a broken rule."""
    given = [(kind, text) for kind, text in options.items() if text is not None]
    if len(given) > 1:
        names = " and ".join(kind.value for kind, _ in given)
        raise InputError(f"compile options {names} exclude each other (E10009)", fix="keep one of them")
    return parse_gears(*given[0]) if given else None


def parse_gears(kind: GearKind, text: str) -> Gears:
    """Read a gear option. ``InputError`` states the rule that is broken, with ATC's E-code."""
    what = f"compile option {kind.value}={text!r}"
    try:
        if kind is GearKind.BATCH:
            groups: list[tuple[int, ...]] = [(int(v),) for v in text.split(",")]
        else:
            groups = [tuple(int(v) for v in group.split(",")) for group in text.rstrip(";").split(";")]
    except ValueError:
        form = "1,2,4" if kind is GearKind.BATCH else "448,448;224,224" if kind is GearKind.IMAGE else "1,128;1,256"
        raise InputError(f"{what} cannot be read (E10012)", fix=f"its form is {form}") from None
    _check(what, kind, groups)
    return Gears(kind, tuple(groups))


def _check(what: str, kind: GearKind, groups: Sequence[tuple[int, ...]]) -> None:
    if len(groups) < 2:
        raise InputError(f"{what} has {len(groups)} gear (E10035)", fix="give at least two, or a fixed shape")
    if len(groups) > MAX_GEARS:
        raise InputError(f"{what} has {len(groups)} gears (E10036)", fix=f"give at most {MAX_GEARS}")
    if len({len(g) for g in groups}) > 1 or (kind is GearKind.IMAGE and len(groups[0]) != 2):
        raise InputError(
            f"{what} has gears of different or wrong length (E10037)", fix="give one value for each -1, in order"
        )
    if any(v <= 0 for g in groups for v in g):
        raise InputError(f"{what} has a value that is not positive (E10038)")
    if len(set(groups)) < len(groups):
        raise InputError(f"{what} names a gear twice (E10039)", fix="remove the duplicate")
