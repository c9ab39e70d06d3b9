"""GGUF files of the ``llama`` architecture, dequantised. Source of names and layouts: llama.cpp's gguf-py."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedError
from .checkpoint import Checkpoint
from .config import Config
from .description import TokenizerSpec
from .gguf_tokenizer import gguf_prompt, gguf_stop_ids, tokenizer_json
from .layouts import Weights
from .tensors import Array, Tensor
from .text_config import TextConfig


def open_gguf(path: Path) -> Checkpoint:
    """A llama-architecture model with a byte-level BPE tokenizer, in any quantisation that gguf-py reads."""
    reader = _reader(path)
    meta = Config(str(path), {name: field.contents() for name, field in reader.fields.items()})
    text = _text_config(meta)
    tokenizer = tokenizer_json(meta)
    w = Weights({t.name: _tensor(t, reader) for t in reader.tensors}, str(path))
    weights = _weights(w, text)
    w.refuse_leftovers()
    return Checkpoint(
        name=path.stem,
        text=text,
        weights=weights,
        tokenizer=TokenizerSpec("tokenizer_json", ("tokenizer.json",)),
        assets={"tokenizer.json": tokenizer},
        prompt=gguf_prompt(meta),
        stop_ids=gguf_stop_ids(meta),
    )


def _reader(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, OverflowError, TypeError) as error:
        raise InputError(
            f"{path} is not a readable GGUF file: {error}",
            why="it is truncated, damaged, or of another version",
            fix="download the file again",
        ) from error


def _text_config(meta: Config) -> TextConfig:
    meta.require("general.architecture", "llama", why="only Llama's arithmetic is read from GGUF")
    meta.require("llama.rope.scaling.type", "none", default="none")
    meta.require("llama.expert_count", 0, default=0, why="mixture of experts")
    hidden, heads = meta.integer("llama.embedding_length"), meta.integer("llama.attention.head_count")
    if hidden % heads:
        raise InputError(f"{meta.where}: embedding_length {hidden} is not a multiple of head_count {heads}")
    head_dim = meta.integer("llama.attention.key_length", hidden // heads)
    meta.require("llama.rope.dimension_count", head_dim, default=head_dim, why="only whole heads are rotated")
    return TextConfig(
        family="llama",
        hidden=hidden,
        layers=meta.integer("llama.block_count"),
        heads=heads,
        kv_heads=meta.integer("llama.attention.head_count_kv"),
        head_dim=head_dim,
        intermediate=meta.integer("llama.feed_forward_length"),
        vocab=meta.integer("llama.vocab_size"),
        rms_eps=meta.number("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=meta.number("llama.rope.freq_base"),
        max_positions=meta.integer("llama.context_length"),
    )


def _tensor(found: Any, reader: Any) -> Tensor:
    from gguf import GGMLQuantizationType, dequantize

    shape = tuple(int(n) for n in reversed(found.shape))
    plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
    if found.tensor_type in plain:
        return Tensor(
            found.name, shape, np.dtype(plain[found.tensor_type]), lambda: _release(found.data.copy(), reader)
        )

    def read() -> Array:
        try:
            return _release(dequantize(found.data, found.tensor_type).reshape(shape), reader)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"tensor {found.name} is {found.tensor_type.name}, which gguf cannot read"
            ) from error

    return Tensor(found.name, shape, np.dtype(np.float32), read)


def _release(array: Array, reader: Any) -> Array:
    """Give the file's mapped pages back once ``array`` holds its own bytes."""
    mapping = getattr(reader.data, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
    return array


def _weights(w: Weights, c: TextConfig) -> dict[str, Tensor]:
    found = {
        "llm.embed.weight": w.take("token_embd.weight", c.vocab, c.hidden),
        "llm.norm": w.take("output_norm.weight", c.hidden),
    }
    tied = "output.weight" not in w
    found["llm.head.weight"] = found["llm.embed.weight"] if tied else w.take("output.weight", c.vocab, c.hidden)
    for i in range(c.layers):
        for name, tensor in _layer(w, c, f"blk.{i}.").items():
            found[f"llm.layers.{i}.{name}"] = tensor
    return found


def _layer(w: Weights, c: TextConfig, at: str) -> dict[str, Tensor]:
    rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return {
        "norm1": w.take(f"{at}attn_norm.weight", c.hidden),
        "norm2": w.take(f"{at}ffn_norm.weight", c.hidden),
        "attn.q.weight": _rotate_half(w.take(f"{at}attn_q.weight", rows, c.hidden), c.heads),
        "attn.k.weight": _rotate_half(w.take(f"{at}attn_k.weight", kv_rows, c.hidden), c.kv_heads),
        "attn.v.weight": w.take(f"{at}attn_v.weight", kv_rows, c.hidden),
        "attn.o.weight": w.take(f"{at}attn_output.weight", c.hidden, rows),
        "mlp.gate.weight": w.take(f"{at}ffn_gate.weight", c.intermediate, c.hidden),
        "mlp.up.weight": w.take(f"{at}ffn_up.weight", c.intermediate, c.hidden),
        "mlp.down.weight": w.take(f"{at}ffn_down.weight", c.hidden, c.intermediate),
    }


def _rotate_half(tensor: Tensor, heads: int) -> Tensor:
    """llama.cpp stores the rows of q and k for interleaved rotation: pairs side by side. Here they are half a head apart."""
    rows, width = tensor.shape
    return tensor.part(
        "[rotate-half]",
        tensor.shape,
        lambda a: a.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width),
    )
