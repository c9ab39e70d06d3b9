"""How a checkpoint wants its pictures cut, from its configuration and its image processor's."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from .config import Config
from .description import ImageSpec
from .vision_config import VisionConfig

_MEAN = [0.485, 0.456, 0.406]  # ImageNet
_STD = [0.229, 0.224, 0.225]
_MAX_TILES = 12


def native_image(directory: Path, model: Config, vision: VisionConfig, tiles_per_call: int) -> ImageSpec:
    """transformers' layout: the processor's own file, InternVL's 12 tiles and a thumbnail where it is silent."""
    processor = Config.load_optional(directory / "preprocessor_config.json")
    for file in (model, Config.load_optional(directory / "processor_config.json")):
        _check_tokens(file, vision)
    if processor.get("size") is not None:
        size = processor.section("size")
        _check_size(processor, {size.integer("height"), size.integer("width")}, vision)
    return _spec(
        processor,
        vision,
        tiles=(processor.integer("min_patches", 1), processor.integer("max_patches", _MAX_TILES)),
        thumbnail=True,
        tiles_per_call=tiles_per_call,
    )


def remote_image(directory: Path, model: Config, vision: VisionConfig, tiles_per_call: int) -> ImageSpec:
    """Remote code: tiling is part of the model's configuration."""
    model.require("pad2square", False, default=False)
    dynamic = model.flag("dynamic_image_size", True)
    tiles = (model.integer("min_dynamic_patch", 1), model.integer("max_dynamic_patch", _MAX_TILES))
    return _spec(
        Config.load_optional(directory / "preprocessor_config.json"),
        vision,
        tiles=tiles if dynamic else (1, 1),
        thumbnail=model.flag("use_thumbnail", True),
        tiles_per_call=tiles_per_call,
    )


def _spec(
    processor: Config, vision: VisionConfig, *, tiles: tuple[int, int], thumbnail: bool, tiles_per_call: int
) -> ImageSpec:
    if tiles[0] > tiles[1]:
        raise InputError(f"at least {tiles[0]} tiles and at most {tiles[1]}: no picture can be cut so")
    return ImageSpec(
        size=vision.image,
        tokens_per_tile=vision.tokens,
        mean=_three(processor, "image_mean", _MEAN),
        std=_three(processor, "image_std", _STD),
        min_tiles=tiles[0],
        max_tiles=tiles[1],
        thumbnail=thumbnail,
        tiles_per_call=tiles_per_call,
    )


def _three(processor: Config, key: str, default: list[float]) -> tuple[float, float, float]:
    value = processor.get(key) or default
    if not isinstance(value, list) or len(value) != 3 or not all(type(v) in (int, float) for v in value):
        raise InputError(f"{processor.where}: {key} is {value!r}, not three numbers")
    return (float(value[0]), float(value[1]), float(value[2]))


def _check_tokens(file: Config, vision: VisionConfig) -> None:
    stated = file.integer("image_seq_length", vision.tokens)
    if stated != vision.tokens:
        raise InputError(
            f"{file.where}: image_seq_length is {stated}, but a tile of {vision.image} pixels gives {vision.tokens} tokens",
            why=f"patches of {vision.patch} pixels, {vision.shuffle} x {vision.shuffle} of them to a token",
        )


def _check_size(processor: Config, edges: set[int], vision: VisionConfig) -> None:
    if edges != {vision.image}:
        raise InputError(
            f"{processor.where}: size is {' x '.join(map(str, sorted(edges)))}, the vision tower takes {vision.image}"
        )
