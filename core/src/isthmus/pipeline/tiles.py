"""A picture becomes square tiles: pick a grid, resize the whole, cut row by row, whole picture last, normalise.

Source of every rule: ``dynamic_preprocess`` and ``find_closest_aspect_ratio`` in OpenGVLab's InternVL, which compute
in doubles. Single precision picks another grid for 67 of 45,600 sizes (max 6), so the tests hold us to doubles.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..models.description import ImageSpec

Grid = tuple[int, int]
"""Columns and rows."""


@functools.cache
def candidate_grids(min_tiles: int, max_tiles: int) -> tuple[Grid, ...]:
    """Every grid of ``min_tiles`` to ``max_tiles`` tiles, fewest tiles first."""
    edges = range(1, max_tiles + 1)
    grids = [(i, j) for i in edges for j in edges if min_tiles <= i * j <= max_tiles]
    return tuple(sorted(grids, key=lambda g: g[0] * g[1]))


def choose_grid(width: int, height: int, spec: ImageSpec) -> Grid:
    """The grid whose aspect ratio is nearest to the picture's.

    On a tie the larger grid wins if the picture has more than half of that grid's pixels.
    """
    ratio, area = width / height, width * height
    best, nearest = (1, 1), float("inf")
    for columns, rows in candidate_grids(spec.min_tiles, spec.max_tiles):
        distance = abs(ratio - columns / rows)
        if distance < nearest or (distance == nearest and area > 0.5 * spec.size**2 * columns * rows):
            best, nearest = (columns, rows), distance
    return best


def cut(picture: Image.Image, spec: ImageSpec) -> list[Image.Image]:
    """Tiles of an RGB picture: row by row, then the whole picture once more where the model wants a thumbnail.

    The resize is Pillow's bicubic with antialiasing, of the whole picture: a bilinear or per-tile resize gives others.
    """
    columns, rows = choose_grid(picture.width, picture.height, spec)
    size = spec.size
    whole = picture.resize((size * columns, size * rows), Image.Resampling.BICUBIC)
    boxes = [(x * size, y * size, (x + 1) * size, (y + 1) * size) for y in range(rows) for x in range(columns)]
    tiles = [whole.crop(box) for box in boxes]
    if spec.thumbnail and len(tiles) > 1:
        tiles.append(picture.resize((size, size), Image.Resampling.BICUBIC))
    return tiles


def pixel_values(picture: Image.Image, spec: ImageSpec) -> NDArray[np.float32]:
    """Normalised tiles of an RGB picture: float32 [T, 3, size, size], ``(value / 255 - mean) / std`` per channel."""
    table = _levels(spec.mean, spec.std)
    tiles = np.stack([np.asarray(tile) for tile in cut(picture, spec)])
    out = np.empty((len(tiles), 3, spec.size, spec.size), np.float32)
    for channel in range(3):
        np.take(table[channel], tiles[..., channel], out=out[:, channel])
    return out


@functools.cache
def _levels(mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """Normalised value of each of the 256 grey levels per channel [3, 256], in the reference's float32 order."""
    levels = np.arange(256, dtype=np.float32) / np.float32(255)
    return (levels - np.array(mean, np.float32)[:, None]) / np.array(std, np.float32)[:, None]
