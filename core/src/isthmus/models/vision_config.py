"""Shape and arithmetic of the InternViT tower and the projector, from the configuration."""

from __future__ import annotations

import attrs

from ..errors import InputError
from .config import Config


@attrs.frozen
class VisionConfig:
    """Dimensions and constants of one vision tower with pixel shuffle."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    image: int
    patch: int
    norm: str
    """``layer_norm`` or ``rms_norm``."""
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    """RMSNorm over the whole vectors q and k, before they are split into heads."""
    qk_norm_eps: float
    shuffle: int
    """Patches merged along each edge: 1 / downsample_ratio."""
    transposed: bool
    """``ps_version`` v1: the token grid is left transposed after the pixel shuffle."""

    @property
    def grid(self) -> int:
        """Patches along an edge."""
        return self.image // self.patch

    @property
    def tokens(self) -> int:
        """Image tokens of a tile."""
        return (self.grid // self.shuffle) ** 2

    @property
    def merged(self) -> int:
        """Width of a token that enters the projector."""
        return self.hidden * self.shuffle**2

    def __attrs_post_init__(self) -> None:
        if self.image % self.patch or self.grid % self.shuffle:
            raise InputError(
                f"tiles of {self.image} pixels do not divide into patches of {self.patch}, {self.shuffle} to a token"
            )
        if self.hidden % self.heads:
            raise InputError(f"vision hidden size {self.hidden} is not a multiple of its {self.heads} heads")


def native_vision_config(model: Config) -> VisionConfig:
    """From a ``model_type: internvl`` configuration."""
    vision = model.section("vision_config")
    vision.require("use_absolute_position_embeddings", True, default=True)
    vision.require("use_mean_pooling", True, default=True, why="otherwise a final norm follows the tower")
    vision.require("use_mask_token", False, default=False)
    model.require("vision_feature_layer", -1, default=-1)
    model.require("vision_feature_select_strategy", "default", default="default")
    model.require("projector_hidden_act", "gelu", default="gelu")
    return _vision_config(
        model,
        vision,
        image=vision.square("image_size"),
        norm="layer_norm",
        qkv_bias=vision.flag("attention_bias"),
        qk_norm=vision.flag("use_qk_norm"),
        qk_norm_eps=1e-6,  # InternVLVisionRMSNorm's own default, whatever layer_norm_eps says
        transposed=False,
    )


def remote_vision_config(model: Config) -> VisionConfig:
    """From a ``model_type: internvl_chat`` configuration. Absent kinds are those of the code's class: the 6B tower."""
    vision = model.section("vision_config")
    model.require("select_layer", -1, default=-1)
    for key in ("use_backbone_lora", "use_llm_lora"):
        model.require(key, 0, default=0, why="adapters must be merged into the weights first")
    vision.require("use_moe", False, default=False)
    return _vision_config(
        model,
        vision,
        image=model.integer("force_image_size") if model.get("force_image_size") else vision.square("image_size"),
        norm="rms_norm",
        qkv_bias=vision.flag("qkv_bias", False),
        qk_norm=vision.flag("qk_normalization", True),
        qk_norm_eps=vision.number("layer_norm_eps"),
        transposed=model.require("ps_version", "v1", "v2", default="v1") == "v1",
    )


def _vision_config(
    model: Config,
    vision: Config,
    *,
    image: int,
    norm: str,
    qkv_bias: bool,
    qk_norm: bool,
    qk_norm_eps: float,
    transposed: bool,
) -> VisionConfig:
    vision.require("hidden_act", "gelu", default="gelu")
    vision.require("num_channels", 3, default=3)
    return VisionConfig(
        hidden=vision.integer("hidden_size"),
        layers=vision.integer("num_hidden_layers"),
        heads=vision.integer("num_attention_heads"),
        intermediate=vision.integer("intermediate_size"),
        image=image,
        patch=vision.square("patch_size"),
        norm=vision.require("norm_type", "layer_norm", "rms_norm", default=norm),
        norm_eps=vision.number("layer_norm_eps"),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        qk_norm_eps=qk_norm_eps,
        shuffle=_shuffle(model),
        transposed=transposed,
    )


def _shuffle(model: Config) -> int:
    ratio = model.number("downsample_ratio")
    if ratio > 1 or (1 / ratio) % 1:
        raise InputError(f"{model.where}: downsample_ratio is {ratio}, not one over a whole number")
    return round(1 / ratio)
