from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.errors import InputError
from isthmus.pipeline.picture import open_picture
from PIL import Image


def png(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG", **options)
    return out.getvalue()


def gradient(width: int = 12, height: int = 8) -> Image.Image:
    return Image.fromarray(np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3))


def test_a_path_bytes_and_a_pillow_image_are_the_same_picture(tmp_path: Path) -> None:
    data = png(gradient())
    (tmp_path / "a.png").write_bytes(data)
    for source in (tmp_path / "a.png", str(tmp_path / "a.png"), data, gradient()):
        assert np.array_equal(np.asarray(open_picture(source)), np.asarray(gradient()))


def test_the_callers_image_is_left_alone() -> None:
    mine = gradient()
    open_picture(mine)
    assert mine.getpixel((0, 0)) == (0, 1, 2)  # still open


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = gradient()
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = {
        1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270,
    }[orientation]  # fmt: skip
    turned = upright.transpose(stored) if stored is not None else upright
    data = png(turned, exif=exif)
    for source in (data, Image.open(io.BytesIO(data))):
        assert np.array_equal(np.asarray(open_picture(source)), np.asarray(upright))


def test_alpha_is_dropped_not_blended() -> None:
    picture = Image.new("RGBA", (4, 4), (200, 100, 50, 0))
    assert open_picture(png(picture)).getpixel((0, 0)) == (200, 100, 50)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK", "YCbCr", "HSV"])
def test_other_modes_become_rgb_as_pillow_converts_them(mode: str) -> None:
    picture = gradient().convert(mode) if mode != "HSV" else gradient().convert("HSV")
    opened = open_picture(picture)
    assert opened.mode == "RGB"
    assert np.array_equal(np.asarray(opened), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize("order", ["I;16", "I;16B"])
def test_sixteen_bit_grey_keeps_its_high_byte(order: str) -> None:
    values = np.array([[0, 255, 256], [40000, 65535, 0x1234]], "<u2" if order == "I;16" else ">u2")
    picture = Image.frombytes(order, (3, 2), values.tobytes())
    assert np.asarray(open_picture(picture))[..., 0].tolist() == [[0, 0, 1], [156, 255, 0x12]]
    if order == "I;16":
        assert np.asarray(open_picture(png(picture)))[..., 2].tolist() == [[0, 0, 1], [156, 255, 0x12]]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pictures_of_unknown_range_are_refused(mode: str) -> None:
    with pytest.raises(InputError, match="unknown range"):
        open_picture(Image.new(mode, (4, 4)))


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("What digit is this?")
    (tmp_path / "empty.png").write_bytes(b"")
    for source in (tmp_path / "notes.txt", tmp_path / "empty.png", b"", b"%PDF-1.4"):
        with pytest.raises(InputError, match="is not a picture Pillow can read") as error:
            open_picture(source)
    assert "8 bytes" in str(error.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "missing.png", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            open_picture(source)


def test_a_truncated_picture_is_refused() -> None:
    rng = np.random.default_rng(0)
    data = png(Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)))
    with pytest.raises(InputError, match="damaged picture"):
        open_picture(data[: len(data) // 2])


def header_of(width: int, height: int) -> bytes:
    """A PNG that states its size and has no pixels."""
    data = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"):
        data += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InputError, match="too large"):
        open_picture(header_of(60000, 60000))


@pytest.mark.parametrize("size", [(20000, 3), (3, 20000), (201, 1)])
def test_a_picture_of_extreme_shape_is_refused_with_its_figures(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=f"{size[0]} x {size[1]} pixels, an aspect ratio of"):
        open_picture(png(Image.new("RGB", size)))


def test_the_most_extreme_shape_that_is_allowed_is_read() -> None:
    assert open_picture(Image.new("RGB", (200, 1))).size == (200, 1)
    assert open_picture(Image.new("RGB", (1, 1))).size == (1, 1)


@given(st.binary(max_size=8), st.integers(0, 200), st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"]))
def test_damaged_pictures_are_read_or_refused_and_nothing_else(junk: bytes, place: int, kind: str) -> None:
    out = io.BytesIO()
    gradient(24, 24).save(out, kind)
    data = bytearray(out.getvalue())
    place = place % len(data)
    data[place : place + len(junk)] = junk
    with contextlib.suppress(InputError):
        assert open_picture(bytes(data)).mode == "RGB"
