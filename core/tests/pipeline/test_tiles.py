from __future__ import annotations

from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.models.description import ImageSpec
from isthmus.pipeline.tiles import candidate_grids, choose_grid, cut, pixel_values
from PIL import Image

SPEC = ImageSpec(448, 256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1, 12, True, 1)
edges = st.integers(1, 9000)


def exact_choices(width: int, height: int, spec: ImageSpec) -> set[tuple[int, int]]:
    """Grids the rule allows, in rational arithmetic: all whose ratio is nearest, each of the size the area asks for."""
    ratio = Fraction(width, height)
    grids = [
        (i, j)
        for i in range(1, spec.max_tiles + 1)
        for j in range(1, spec.max_tiles + 1)
        if spec.min_tiles <= i * j <= spec.max_tiles
    ]
    nearest = min(abs(ratio - Fraction(i, j)) for i, j in grids)
    allowed = set()
    for shape in {Fraction(i, j) for i, j in grids if abs(ratio - Fraction(i, j)) == nearest}:
        same = sorted((i * j, i, j) for i, j in grids if Fraction(i, j) == shape)
        best = same[0]
        for candidate in same[1:]:
            if 2 * width * height > spec.size**2 * candidate[0]:
                best = candidate
        allowed.add(best[1:])
    return allowed


def reference(width: int, height: int, spec: ImageSpec, number: type) -> tuple[int, int]:
    """facts/internvl.md section 5, word by word, in a chosen precision."""
    best, nearest = (1, 1), float("inf")
    for i, j in candidate_grids(spec.min_tiles, spec.max_tiles):
        distance = abs(number(width) / number(height) - number(i) / number(j))
        if distance < nearest:
            best, nearest = (i, j), distance
        elif distance == nearest and width * height > 0.5 * spec.size * spec.size * i * j:
            best = (i, j)
    return best


@given(edges, edges, st.sampled_from([6, 12, 24]), st.integers(1, 2))
def test_the_grid_is_one_the_exact_rule_allows(width: int, height: int, most: int, least: int) -> None:
    spec = attrs.evolve(SPEC, min_tiles=least, max_tiles=most)
    assert choose_grid(width, height, spec) in exact_choices(width, height, spec)


@given(edges, edges, st.sampled_from([1, 6, 12, 24]))
def test_the_grid_is_that_of_the_reference_in_doubles(width: int, height: int, most: int) -> None:
    spec = attrs.evolve(SPEC, max_tiles=most)
    assert choose_grid(width, height, spec) == reference(width, height, spec, float)


def test_single_precision_would_pick_another_grid() -> None:
    for width, height in [(40, 48), (112, 96), (136, 1152), (448, 384)]:
        specs = [attrs.evolve(SPEC, max_tiles=most) for most in (6, 12)]
        ours = [choose_grid(width, height, s) for s in specs]
        assert ours == [reference(width, height, s, float) for s in specs]
        assert ours != [reference(width, height, s, np.float32) for s in specs]


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((448, 448), (1, 1)),
        ((633, 633), (1, 1)),  # 633 * 633 < half of four tiles
        ((634, 634), (2, 2)),
        ((950, 950), (2, 2)),
        ((951, 951), (3, 3)),
        ((896, 448), (2, 1)),  # half of 4 x 2 tiles is exactly reached, not exceeded
        ((4000, 100), (12, 1)),
        ((1, 200), (1, 12)),
    ],
)
def test_known_sizes_give_known_grids(size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert choose_grid(*size, SPEC) == grid


def colours(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width * height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def test_tiles_are_cut_row_by_row_from_one_resize_with_the_thumbnail_last() -> None:
    picture, spec = colours(90, 60), attrs.evolve(SPEC, size=16, max_tiles=6)
    assert choose_grid(90, 60, spec) == (3, 2)
    tiles = cut(picture, spec)
    whole = np.asarray(picture.resize((48, 32), Image.Resampling.BICUBIC))
    assert len(tiles) == 7
    for number, tile in enumerate(tiles[:-1]):
        y, x = divmod(number, 3)
        assert np.array_equal(np.asarray(tile), whole[16 * y : 16 * y + 16, 16 * x : 16 * x + 16])
    assert np.array_equal(np.asarray(tiles[-1]), np.asarray(picture.resize((16, 16), Image.Resampling.BICUBIC)))


def test_one_tile_has_no_thumbnail_and_thumbnails_can_be_off() -> None:
    spec = attrs.evolve(SPEC, size=16)
    assert len(cut(colours(20, 20), attrs.evolve(spec, max_tiles=1))) == 1
    assert len(cut(colours(90, 60), attrs.evolve(spec, max_tiles=6, thumbnail=False))) == 6


def test_the_smallest_number_of_tiles_is_kept() -> None:
    assert choose_grid(448, 448, attrs.evolve(SPEC, min_tiles=4)) == (2, 2)


def test_pixels_are_scaled_and_normalised_as_the_reference_does_in_float32() -> None:
    picture, spec = colours(90, 60), attrs.evolve(SPEC, size=16, max_tiles=6)
    values = pixel_values(picture, spec)
    assert values.dtype == np.float32
    assert values.shape == (7, 3, 16, 16)
    assert values.flags.c_contiguous
    raw = np.stack([np.asarray(tile) for tile in cut(picture, spec)]).astype(np.float32) / 255
    wanted = (raw - np.array(spec.mean, np.float32)) / np.array(spec.std, np.float32)
    assert np.array_equal(values, wanted.transpose(0, 3, 1, 2))
