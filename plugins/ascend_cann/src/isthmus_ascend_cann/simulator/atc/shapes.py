"""`--input_shape` and the three kinds of gears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import onnx

from ..om_writer import BATCH_GEARS, DIMS_GEARS, IMAGE_GEARS
from .failure import AtcError
from .graph import Shape, graph_inputs, shape_of

MAX_GEARS = 100


@attrs.frozen
class Gears:
    """The compiled gears; ``kind`` is a record type of the om's I/O block."""

    kind: int
    values: tuple[tuple[int, ...], ...]


@attrs.frozen
class Shapes:
    """Shape of every input, with -1 where gears or ranges leave it open."""

    inputs: Mapping[str, Shape]
    gears: Gears | None = None
    ranges: Mapping[str, tuple[tuple[int, int], ...]] = attrs.field(factory=dict)
    order: tuple[str, ...] = ()
    """Inputs in the order of ``--input_shape``: the order in which dims gears are consumed."""

    @property
    def range_shape(self) -> bool:
        """True when a dimension stays open without gears."""
        return bool(self.order) and self.gears is None

    def in_gear(self, gear: Sequence[int]) -> dict[str, Shape]:
        """Shape of every input in one gear."""
        assert self.gears is not None
        values = list(gear)
        shapes = dict(self.inputs)
        for name in self.order:
            left = iter(values if self.gears.kind == DIMS_GEARS else list(gear))
            shape = Shape(d if d >= 0 else next(left, -1) for d in shapes[name])
            if self.gears.kind == DIMS_GEARS:
                del values[: sum(d < 0 for d in shapes[name])]
            shapes[name] = shape
        return shapes


def read(flags: Mapping[str, str], graph: onnx.GraphProto) -> Shapes:
    """Shapes and gears from the flags and the graph's own inputs."""
    declared = {i.name: shape_of(i) for i in graph_inputs(graph)}
    given, ranges = _input_shapes(flags["input_shape"])
    for name, shape in given.items():
        if name not in declared:
            raise AtcError("E10016", "Config_Error_Node", f"Opname [{name}] in [--input_shape] is not in the model.")
        if len(shape) != len(declared[name]):
            raise AtcError(
                "E10049",
                "Config_Error_Rank",
                f"[--input_shape] gives {name} {len(shape)} dimensions, the model {len(declared[name])}.",
            )
    inputs = {**declared, **given}
    gears = _gears(flags)
    order = tuple(n for n in [*given, *declared] if inputs[n].open)
    result = Shapes(inputs, gears, ranges, tuple(dict.fromkeys(order)))
    _check(result, flags)
    return result


def _input_shapes(text: str) -> tuple[dict[str, Shape], dict[str, tuple[tuple[int, int], ...]]]:
    shapes: dict[str, Shape] = {}
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    for item in filter(None, text.strip().strip(";").split(";")):
        name, colon, dims = item.rpartition(":")
        if not colon or not name:
            raise AtcError("E10002", "Config_Error_Shape", f"[--input_shape] [{item}]: write name:d0,d1,...;name2:...")
        parts = [_dimension(item, d) for d in dims.split(",")] if dims.strip() else []
        shapes[name.strip()] = Shape(low if low == high else -1 for low, high in parts)
        if shapes[name.strip()].open:
            ranges[name.strip()] = tuple((max(low, 1), high) for low, high in parts)
    return shapes, ranges


def _dimension(item: str, text: str) -> tuple[int, int]:
    low, tilde, high = text.strip().partition("~")
    try:
        first = int(low)
        last = int(high) if tilde else first
    except ValueError:
        raise AtcError("E10002", "Config_Error_Shape", f"[--input_shape] [{item}]: [{text}] is no number.") from None
    if first == 0 or first < -1 or (tilde and last != -1 and last < first):
        raise AtcError("E10011", "Config_Error_Shape", f"[--input_shape] [{item}]: [{text}] is not positive.")
    return first, last


def _gears(flags: Mapping[str, str]) -> Gears | None:
    for flag, kind in (
        ("dynamic_batch_size", BATCH_GEARS),
        ("dynamic_image_size", IMAGE_GEARS),
        ("dynamic_dims", DIMS_GEARS),
    ):
        if flags[flag]:
            return Gears(kind, _gear_values(flag, flags[flag]))
    return None


def _gear_values(flag: str, text: str) -> tuple[tuple[int, ...], ...]:
    groups = text.split(",") if flag == "dynamic_batch_size" else text.strip(";").split(";")
    try:
        gears = tuple(tuple(int(v) for v in g.split(",")) for g in groups)
    except ValueError:
        raise AtcError(
            "E10033", "Config_Error_Gear", f"[--{flag}] [{text}] holds something else than numbers."
        ) from None
    if len(gears) < 2:
        raise AtcError("E10035", "Config_Error_Gear", f"[--{flag}] needs at least 2 gears.")
    if len(gears) > MAX_GEARS:
        raise AtcError("E10036", "Config_Error_Gear", f"[--{flag}] takes at most {MAX_GEARS} gears, not {len(gears)}.")
    if len({len(g) for g in gears}) > 1:
        raise AtcError("E10037", "Config_Error_Gear", f"[--{flag}]: gears of different lengths.")
    if any(v <= 0 for g in gears for v in g):
        raise AtcError("E10038", "Config_Error_Gear", f"[--{flag}]: a gear must be positive.")
    if len(set(gears)) != len(gears):
        raise AtcError("E10039", "Config_Error_Gear", f"[--{flag}]: a gear is given twice.")
    return gears


def _check(shapes: Shapes, flags: Mapping[str, str]) -> None:
    if shapes.gears is None:
        silent = [n for n in shapes.order if n not in shapes.ranges]
        if silent:
            raise AtcError(
                "E11005",
                "Config_Error_Shape",
                f"The model input [{silent[0]}] has a dynamic shape. Use [--input_shape] to set it.",
            )
        return
    if not shapes.order:
        raise AtcError("E10040", "Config_Error_Gear", "[--input_shape] has no -1 for the gears.")
    _CHECKS[shapes.gears.kind](shapes, flags["input_format"])


def _check_batch(shapes: Shapes, _: str) -> None:
    for name in shapes.order:
        if shapes.inputs[name][0] >= 0 or any(d < 0 for d in shapes.inputs[name][1:]):
            raise AtcError("E10012", "Config_Error_Gear", f"batch gears: only dimension 0 of [{name}] may be -1.")


def _check_image(shapes: Shapes, layout: str) -> None:
    if layout not in ("NCHW", "NHWC"):
        raise AtcError(
            "E10018", "Config_Error_Gear", f"image gears need [--input_format] NCHW or NHWC, not [{layout}]."
        )
    height = layout.index("H")
    for name in shapes.order:
        if [i for i, d in enumerate(shapes.inputs[name]) if d < 0] != [height, height + 1]:
            raise AtcError("E10019", "Config_Error_Gear", f"image gears: height and width of [{name}] must be -1.")


def _check_dims(shapes: Shapes, layout: str) -> None:
    assert shapes.gears is not None
    if layout != "ND":
        raise AtcError("E10031", "Config_Error_Gear", f"dims gears need [--input_format] ND, not [{layout}].")
    opened = sum(d < 0 for n in shapes.order for d in shapes.inputs[n])
    if len(shapes.gears.values[0]) != opened:
        raise AtcError(
            "E10045",
            "Config_Error_Gear",
            f"[--dynamic_dims] has {len(shapes.gears.values[0])} values per gear, [--input_shape] has {opened} -1.",
        )


_CHECKS = {BATCH_GEARS: _check_batch, IMAGE_GEARS: _check_image, DIMS_GEARS: _check_dims}
