"""Names of weights: the checkpoint layouts on one side, our canonical names on the other.

Canonical names are what nodes and initializers of the graphs are called. Linear weights are [out, in] here, as in every
checkpoint. Sources: OpenGVLab's modeling_intern_vit.py, modeling_internvl_chat.py and modeling_internlm2.py;
transformers' models/internvl and its convert_internvl_weights_to_hf.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ..errors import InputError, UnsupportedError
from .tensors import FLOATS, Tensor
from .text_config import TextConfig
from .vision_config import VisionConfig


@attrs.frozen
class Prefixes:
    """Where the parts of a checkpoint are."""

    text: str
    head: str
    vision: str = ""
    projector: str = ""


REMOTE = Prefixes("language_model.model.", "language_model.lm_head.weight", "vision_model.", "mlp1.")
"""OpenGVLab's remote code. InternLM2's head is ``language_model.output.weight``."""
EARLY_NATIVE = Prefixes(
    "language_model.model.", "language_model.lm_head.weight", "vision_tower.", "multi_modal_projector."
)
"""The first -hf repositories (transformers 4.52)."""
NATIVE = Prefixes("model.language_model.", "lm_head.weight", "model.vision_tower.", "model.multi_modal_projector.")
"""transformers 5."""
TEXT_ONLY = Prefixes("model.", "lm_head.weight")


class Weights:
    """Takes tensors out of a checkpoint by name and expected shape, and knows what was left."""

    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self._tensors = tensors
        self._where = where
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor; ``InputError`` if it is missing or not of ``shape``, ``UnsupportedError`` if it is not float."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise InputError(
                f"no tensor {name} in {self._where}",
                why="the configuration promises it: the checkpoint is incomplete or of another kind",
            )
        if tensor.shape != shape:
            raise InputError(
                f"tensor {name} in {self._where} has shape {list(tensor.shape)}, expected {list(shape)}",
                why="the configuration and the weights do not belong together",
            )
        if tensor.dtype not in FLOATS:
            raise UnsupportedError(
                f"tensor {name} in {self._where} holds {tensor.dtype.name}",
                why="the checkpoint is quantised",
                fix="use the bf16 checkpoint; quantise when compiling",
            )
        self._used.add(name)
        return tensor

    def refuse_leftovers(self) -> None:
        """``UnsupportedError`` if a weight would be silently ignored: a bias, an adapter, another tower."""
        left = sorted(n for n in set(self._tensors) - self._used if not n.endswith("rotary_emb.inv_freq"))
        if left:
            raise UnsupportedError(
                f"{len(left)} tensors in {self._where} have no place in this model: {', '.join(left[:4])}",
                why="the checkpoint has parts that its configuration does not name, such as biases or adapters",
            )


def text_weights(w: Weights, c: TextConfig, prefixes: Prefixes) -> dict[str, Tensor]:
    """All weights of the language model by canonical name.

    A head in the file is used whatever the configuration says, since the default of ``tie_word_embeddings`` changed
    between releases; without one the embedding is the head, unless the configuration says that it is not.
    """
    layer = _internlm2_layer if c.family == "internlm2" else _llama_layer
    fused = c.family == "internlm2"
    found = {
        "llm.embed.weight": w.take(
            f"{prefixes.text}{'tok_embeddings' if fused else 'embed_tokens'}.weight", c.vocab, c.hidden
        ),
        "llm.norm": w.take(f"{prefixes.text}norm.weight", c.hidden),
    }
    head = prefixes.head.replace("lm_head", "output") if fused else prefixes.head
    own = head in w or not c.may_tie
    found["llm.head.weight"] = w.take(head, c.vocab, c.hidden) if own else found["llm.embed.weight"]
    for i in range(c.layers):
        for name, tensor in layer(w, c, f"{prefixes.text}layers.{i}.").items():
            found[f"llm.layers.{i}.{name}"] = tensor
    return found


def _llama_layer(w: Weights, c: TextConfig, at: str) -> dict[str, Tensor]:
    rows = {"q": c.heads * c.head_dim, "k": c.kv_heads * c.head_dim, "v": c.kv_heads * c.head_dim}
    found = {f"attn.{x}.weight": w.take(f"{at}self_attn.{x}_proj.weight", n, c.hidden) for x, n in rows.items()}
    if c.qkv_bias:
        found |= {f"attn.{x}.bias": w.take(f"{at}self_attn.{x}_proj.bias", n) for x, n in rows.items()}
    if c.qk_norm:
        found |= {f"attn.{x}_norm": w.take(f"{at}self_attn.{x}_norm.weight", c.head_dim) for x in "qk"}
    return found | {
        "norm1": w.take(f"{at}input_layernorm.weight", c.hidden),
        "norm2": w.take(f"{at}post_attention_layernorm.weight", c.hidden),
        "attn.o.weight": w.take(f"{at}self_attn.o_proj.weight", c.hidden, rows["q"]),
        "mlp.gate.weight": w.take(f"{at}mlp.gate_proj.weight", c.intermediate, c.hidden),
        "mlp.up.weight": w.take(f"{at}mlp.up_proj.weight", c.intermediate, c.hidden),
        "mlp.down.weight": w.take(f"{at}mlp.down_proj.weight", c.hidden, c.intermediate),
    }


def _internlm2_layer(w: Weights, c: TextConfig, at: str) -> dict[str, Tensor]:
    return _grouped_qkv(w, c, f"{at}attention.wqkv.weight") | {
        "norm1": w.take(f"{at}attention_norm.weight", c.hidden),
        "norm2": w.take(f"{at}ffn_norm.weight", c.hidden),
        "attn.o.weight": w.take(f"{at}attention.wo.weight", c.hidden, c.heads * c.head_dim),
        "mlp.gate.weight": w.take(f"{at}feed_forward.w1.weight", c.intermediate, c.hidden),
        "mlp.up.weight": w.take(f"{at}feed_forward.w3.weight", c.intermediate, c.hidden),
        "mlp.down.weight": w.take(f"{at}feed_forward.w2.weight", c.hidden, c.intermediate),
    }


def _grouped_qkv(w: Weights, c: TextConfig, name: str) -> dict[str, Tensor]:
    """InternLM2's fused weight: for each key/value head its query heads, then the key, then the value."""
    group = c.heads // c.kv_heads
    fused = w.take(name, (c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden)
    blocks = {"q": slice(0, group), "k": slice(group, group + 1), "v": slice(group + 1, group + 2)}

    def part(x: str) -> Tensor:
        rows = (c.heads if x == "q" else c.kv_heads) * c.head_dim
        view = (c.kv_heads, group + 2, c.head_dim, c.hidden)
        return fused.part(f"[{x}]", (rows, c.hidden), lambda a: a.reshape(view)[:, blocks[x]].reshape(rows, c.hidden))

    return {f"attn.{x}.weight": part(x) for x in "qkv"}


def vision_weights(w: Weights, v: VisionConfig, text_hidden: int, prefixes: Prefixes) -> dict[str, Tensor]:
    """All weights of the vision tower and the projector by canonical name."""
    remote = prefixes is REMOTE
    layer = _remote_vision_layer if remote else _native_vision_layer
    layers = "encoder.layers." if remote else "encoder.layer."
    found = _vision_embeddings(w, v, prefixes.vision, remote) | _projector(
        w, v, text_hidden, prefixes.projector, remote
    )
    for i in range(v.layers):
        for name, tensor in layer(w, v, f"{prefixes.vision}{layers}{i}.").items():
            found[f"vision.layers.{i}.{name}"] = tensor
    return found


def _vision_embeddings(w: Weights, v: VisionConfig, at: str, remote: bool) -> dict[str, Tensor]:
    cls, position, patch = (
        ("class_embedding", "position_embedding", "patch_embedding")
        if remote
        else ("cls_token", "position_embeddings", "patch_embeddings.projection")
    )
    return {
        "vision.class": w.take(f"{at}embeddings.{cls}", 1, 1, v.hidden),
        "vision.position": w.take(f"{at}embeddings.{position}", 1, v.grid**2 + 1, v.hidden),
        "vision.patch.weight": w.take(f"{at}embeddings.{patch}.weight", v.hidden, 3, v.patch, v.patch),
        "vision.patch.bias": w.take(f"{at}embeddings.{patch}.bias", v.hidden),
    }


def _projector(w: Weights, v: VisionConfig, text_hidden: int, at: str, remote: bool) -> dict[str, Tensor]:
    norm, fc1, fc2 = ("0", "1", "3") if remote else ("layer_norm", "linear_1", "linear_2")
    return {
        "vision.projector.norm.weight": w.take(f"{at}{norm}.weight", v.merged),
        "vision.projector.norm.bias": w.take(f"{at}{norm}.bias", v.merged),
        "vision.projector.fc1.weight": w.take(f"{at}{fc1}.weight", text_hidden, v.merged),
        "vision.projector.fc1.bias": w.take(f"{at}{fc1}.bias", text_hidden),
        "vision.projector.fc2.weight": w.take(f"{at}{fc2}.weight", text_hidden, text_hidden),
        "vision.projector.fc2.bias": w.take(f"{at}{fc2}.bias", text_hidden),
    }


def _native_vision_layer(w: Weights, v: VisionConfig, at: str) -> dict[str, Tensor]:
    found = {f"attn.{x}.weight": w.take(f"{at}attention.{x}_proj.weight", v.hidden, v.hidden) for x in "qkv"}
    if v.qkv_bias:
        found |= {f"attn.{x}.bias": w.take(f"{at}attention.{x}_proj.bias", v.hidden) for x in "qkv"}
    return found | _vision_block(
        w,
        v,
        at,
        attention="attention.",
        out="projection_layer",
        norms=("layernorm_before", "layernorm_after"),
        scales=("lambda_1", "lambda_2"),
    )


def _remote_vision_layer(w: Weights, v: VisionConfig, at: str) -> dict[str, Tensor]:
    fused = w.take(f"{at}attn.qkv.weight", 3 * v.hidden, v.hidden)
    found = {f"attn.{x}.weight": _third(fused, i, v.hidden) for i, x in enumerate("qkv")}
    if v.qkv_bias:
        bias = w.take(f"{at}attn.qkv.bias", 3 * v.hidden)
        found |= {f"attn.{x}.bias": _third(bias, i, v.hidden) for i, x in enumerate("qkv")}
    return found | _vision_block(
        w, v, at, attention="attn.", out="proj", norms=("norm1", "norm2"), scales=("ls1", "ls2")
    )


def _third(fused: Tensor, i: int, rows: int) -> Tensor:
    return fused.part(f"[{'qkv'[i]}]", (rows, *fused.shape[1:]), lambda a: a[i * rows : (i + 1) * rows])


def _vision_block(
    w: Weights, v: VisionConfig, at: str, *, attention: str, out: str, norms: tuple[str, str], scales: tuple[str, str]
) -> dict[str, Tensor]:
    """What the two layouts of a vision layer name differently but store alike."""
    found = {
        "attn.o.weight": w.take(f"{at}{attention}{out}.weight", v.hidden, v.hidden),
        "attn.o.bias": w.take(f"{at}{attention}{out}.bias", v.hidden),
        "mlp.fc1.weight": w.take(f"{at}mlp.fc1.weight", v.intermediate, v.hidden),
        "mlp.fc1.bias": w.take(f"{at}mlp.fc1.bias", v.intermediate),
        "mlp.fc2.weight": w.take(f"{at}mlp.fc2.weight", v.hidden, v.intermediate),
        "mlp.fc2.bias": w.take(f"{at}mlp.fc2.bias", v.hidden),
    }
    for i in range(2):
        found[f"norm{i + 1}.weight"] = w.take(f"{at}{norms[i]}.weight", v.hidden)
        if v.norm == "layer_norm":
            found[f"norm{i + 1}.bias"] = w.take(f"{at}{norms[i]}.bias", v.hidden)
        found[f"scale{i + 1}"] = w.take(f"{at}{scales[i]}", v.hidden)
    if v.qk_norm:
        found |= {f"attn.{x}_norm": w.take(f"{at}{attention}{x}_norm.weight", v.hidden) for x in "qk"}
    return found
