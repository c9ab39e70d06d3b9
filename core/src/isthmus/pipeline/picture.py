"""Opens a picture from a file, bytes or Pillow, and makes it RGB: whatever cannot be a picture is refused here.

Decisions, each with a test:

* EXIF orientation is applied, so a phone's photograph is seen upright (transformers does so; OpenGVLab's demo does not).
* Palette, grey, CMYK, YCbCr ... become RGB as ``PIL.Image.convert`` does it. Alpha is dropped, not blended: what
  transparent pixels hide becomes visible. The reference does the same.
* 16-bit grey keeps its high byte, as Pillow does for 16-bit colour. (``convert`` would clip it to white.)
* 32-bit integer and float pictures are refused: their range is unknown.
* Of an animation, the first frame counts.
* Pictures above Pillow's decompression-bomb limit (179 million pixels) or longer than 200 times their width are refused.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import InputError

Picture = str | os.PathLike[str] | bytes | Image.Image
"""What callers may hand in."""

MAX_ASPECT = 200
"""Longest edge over shortest. Beyond it a resize leaves nothing recognisable; Qwen2-VL draws the line here too."""

_NO_RANGE = frozenset({"I", "F"})


def open_picture(source: Picture) -> Image.Image:
    """The picture, upright, in mode RGB. ``InputError``: it cannot be read, or is nothing one could ask about."""
    name = _name(source)
    try:
        with _opened(source) as picture:
            _check_shape(picture.size, name)
            return _rgb(ImageOps.exif_transpose(picture), name)
    except InputError:
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InputError(f"{name} cannot be read: {error.strerror}", fix="give the path of a picture") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{name} is too large: {error}", fix="scale it down first") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"{name} is not a picture Pillow can read ({_size(source)})", fix="give a PNG, JPEG, WebP, BMP, GIF or TIFF"
        ) from error
    except Exception as error:  # Pillow's decoders raise what they like on damaged data
        raise InputError(
            f"{name} is a damaged picture: {type(error).__name__}: {error}", why="truncated or changed bytes"
        ) from error


def _opened(source: Picture) -> Image.Image:
    if isinstance(source, Image.Image):
        return source.copy()
    if isinstance(source, bytes):
        return Image.open(io.BytesIO(source))
    path = Path(source)
    if path.is_fifo():  # opening it would wait for ever
        raise InputError(f"{_name(source)} is a pipe", fix="give the path of a picture")
    return Image.open(path)


def _rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode in _NO_RANGE:
        raise InputError(
            f"{name} has 32-bit pixels (Pillow mode {picture.mode}) of unknown range", fix="convert it to 8 bits first"
        )
    if picture.mode.startswith("I;16"):
        # Values first: asarray keeps the byte order of the mode.
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    return picture.convert("RGB")


def _check_shape(size: tuple[int, int], name: str) -> None:
    width, height = size
    if not width or not height:
        raise InputError(f"{name} is empty: {width} x {height} pixels")
    if max(size) > MAX_ASPECT * min(size):
        raise InputError(
            f"{name} is {width} x {height} pixels, an aspect ratio of {max(size) / min(size):.0f}",
            why=f"beyond {MAX_ASPECT} a resize to square tiles leaves nothing recognisable",
            fix="crop the picture",
        )


def _name(source: Picture) -> str:
    if isinstance(source, str | os.PathLike):
        return str(source)
    return "the picture" if isinstance(source, Image.Image) else f"the picture of {len(source)} bytes"


def _size(source: Picture) -> str:
    if isinstance(source, Image.Image):
        return f"{source.width} x {source.height} pixels"
    size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    return f"{size} bytes"
