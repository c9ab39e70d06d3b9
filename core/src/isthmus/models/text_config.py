"""Shape and arithmetic of the language model, from its configuration; what is not supported is refused here."""

from __future__ import annotations

import attrs

from ..errors import InputError, UnsupportedError
from .config import Config

FAMILIES = {
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
    "InternLM2ForCausalLM": "internlm2",
}
_REFUSED = {
    "Phi3ForCausalLM": "its longrope scaling depends on the length of the context",
    "phi3": "its longrope scaling depends on the length of the context",
    "Qwen3MoeForCausalLM": "mixture of experts",
    "qwen3_moe": "mixture of experts",
    "GptOssForCausalLM": "mixture of experts",
    "gpt_oss": "mixture of experts",
    "InternLM3ForCausalLM": "its dynamic rope changes within a context",
}


@attrs.frozen
class TextConfig:
    """Dimensions and constants of one decoder-only language model."""

    family: str
    """``qwen2``, ``qwen3``, ``internlm2`` or ``llama``."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    may_tie: bool = True
    """False: the configuration says that the head has weights of its own."""

    def __attrs_post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise InputError(f"rotary embedding needs an even head size, not {self.head_dim}")

    @property
    def qkv_bias(self) -> bool:
        """Biases on q, k and v."""
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """RMSNorm over each head of q and k."""
        return self.family == "qwen3"


def family_of(config: Config, *, native: bool) -> str:
    """The family by ``model_type`` (transformers' own layout) or by ``architectures`` (remote code)."""
    if native:
        kind = config.text("model_type")
    else:
        names = config.texts("architectures")
        if not names:
            raise InputError(f"{config.where} has no architectures", why="it names the language model")
        kind = FAMILIES.get(names[0], names[0])
    if kind in FAMILIES.values():
        return kind
    raise UnsupportedError(
        f"{config.where}: the language model {kind!r} is not supported; supported: {', '.join(FAMILIES.values())}",
        why=_REFUSED.get(kind),
    )


def text_config(config: Config, family: str, outer: Config | None = None) -> TextConfig:
    """Read ``config`` as a language model of ``family``. Nothing that decides a shape is ever defaulted.

    ``outer`` is the configuration it is a section of, which may say as well whether head and embedding are tied.
    """
    _refuse_variants(config, family)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    max_positions = config.integer("max_position_embeddings")
    return TextConfig(
        family=family,
        hidden=hidden,
        layers=config.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=_head_dim(config, family, hidden, heads),
        intermediate=config.integer("intermediate_size"),
        vocab=config.integer("vocab_size"),
        rms_eps=config.number("rms_norm_eps"),
        rope_theta=_rope_theta(config, max_positions),
        max_positions=max_positions,
        may_tie=_may_tie(config, outer),
    )


def _head_dim(config: Config, family: str, hidden: int, heads: int) -> int:
    if config.get("head_dim") is not None or family == "qwen3":  # Qwen3's need not be hidden / heads
        return config.integer("head_dim")
    if hidden % heads:
        raise InputError(f"{config.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return hidden // heads


def _may_tie(*configs: Config | None) -> bool:
    key = "tie_word_embeddings"
    stated = {c.flag(key) for c in configs if c is not None and c.get(key) is not None}
    return stated != {False}


def _refuse_variants(config: Config, family: str) -> None:
    config.require("hidden_act", "silu", default="silu")
    config.require("use_sliding_window", False, default=False, why="attention here is over the whole context")
    config.require("partial_rotary_factor", 1, 1.0, default=1.0)
    config.require("bias" if family == "internlm2" else "attention_bias", False, default=False)
    config.require("mlp_bias", False, default=False)
    kinds = set(config.texts("layer_types") or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UnsupportedError(f"{config.where}: layer_types holds {', '.join(sorted(kinds - {'full_attention'}))}")


def _rope_theta(config: Config, max_positions: int) -> float:
    """The base of plain rotary embedding. ``rope_parameters`` (transformers 5) holds both base and scaling."""
    parameters = config.optional_section("rope_parameters")
    for scaling in (parameters, config.optional_section("rope_scaling")):
        _refuse_scaling(scaling, max_positions)
    return (parameters if parameters.get("rope_theta") is not None else config).number("rope_theta")


def _refuse_scaling(scaling: Config, max_positions: int) -> None:
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in ("default", "dynamic"):
        raise UnsupportedError(f"{scaling.where}: rope type {kind!r}; supported: default, dynamic")
    start = scaling.integer("original_max_position_embeddings", max_positions)
    if kind == "dynamic" and start < max_positions:  # up to there it equals the plain base
        raise UnsupportedError(
            f"{scaling.where}: dynamic rope scaling starts at {start} of {max_positions} positions",
            why="the rotation of earlier tokens would change within a context",
        )
