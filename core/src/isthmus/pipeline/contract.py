"""Checks that the entries of an artifact are those its model description promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import IncompatibleError, UnsupportedError
from ..models.description import ImageSpec, LlmEntry, ModelDescription
from ..program import Program
from ..types import DType, EntrySpec, TensorSpec

_FLOATS = (DType.FLOAT32, DType.FLOAT16)


def kv_names(layers: int, which: str) -> list[str]:
    """``past_key_0``, ``past_value_0``, ``past_key_1`` ... for ``which`` = ``past``; likewise ``new``."""
    return [f"{which}_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]


def float_dtype(spec: TensorSpec) -> np.dtype[Any]:
    """The dtype the pipeline casts to. ``UnsupportedError``: neither float32 nor float16."""
    if spec.dtype not in _FLOATS or spec.quantization is not None:
        raise UnsupportedError(
            f"tensor {spec}{' (quantised)' if spec.quantization else ''}: the pipeline feeds float32 and float16",
            fix="compile with float inputs and outputs",
        )
    return spec.dtype.numpy


def shared_dtype(entries: Iterable[EntrySpec], prefixes: tuple[str, ...]) -> np.dtype[Any]:
    """The one dtype of all tensors named so. ``IncompatibleError``: entries that share memory disagree."""
    tensors = [t for e in entries for t in (*e.inputs, *e.outputs) if t.name.startswith(prefixes)]
    found = {float_dtype(t) for t in tensors}
    if len(found) != 1:
        raise IncompatibleError(
            f"tensors {'*, '.join(prefixes)}* have several element types: {', '.join(sorted(map(str, found)))}",
            why="the entries share one KV cache and one place for logits",
        )
    return found.pop()


def check_entries(program: Program, model: ModelDescription) -> None:
    """``IncompatibleError`` names the first tensor that is missing, unknown or of another shape."""
    if not model.llm:
        raise IncompatibleError("the model description lists no language-model entry")
    for graph in model.llm:
        inputs, outputs = _llm_shapes(model, graph)
        _compare(program, graph.name, inputs, outputs)
    entries = [program.entry(graph.name) for graph in model.llm]
    for prefixes in (("logits",), ("past_", "new_")):
        shared_dtype(entries, prefixes)
    if model.image is not None:
        _compare(program, "vision", *_vision_shapes(model.image, model.text.hidden))


Shapes = dict[str, tuple[int, ...]]


def _llm_shapes(model: ModelDescription, graph: LlmEntry) -> tuple[Shapes, Shapes]:
    text, n, c = model.text, graph.tokens, graph.context
    if not 1 <= n <= c:
        raise IncompatibleError(f"entry {graph.name!r} takes {n} tokens in a context of {c}")
    angles = (1, 1, n, text.head_dim // 2)
    inputs: Shapes = {
        "inputs_embeds": (1, n, text.hidden),
        "attention_mask": (1, 1, n, c),
        "cos": angles,
        "sin": angles,
    }
    if n > 1:
        inputs["last_index"] = (1,)
    if c > n:
        inputs |= dict.fromkeys(kv_names(text.layers, "past"), (1, c - n, text.kv_heads, text.head_dim))
    outputs: Shapes = {"logits": (1, 1, text.vocab)}
    outputs |= dict.fromkeys(kv_names(text.layers, "new"), (1, n, text.kv_heads, text.head_dim))
    return inputs, outputs


def _vision_shapes(image: ImageSpec, hidden: int) -> tuple[Shapes, Shapes]:
    tiles = image.tiles_per_call
    return (
        {"pixel_values": (tiles, 3, image.size, image.size)},
        {"image_features": (tiles, image.tokens_per_tile, hidden)},
    )


def _compare(program: Program, name: str, inputs: Shapes, outputs: Shapes) -> None:
    entry = program.entry(name)
    _compare_side(name, "input", inputs, entry.inputs)
    _compare_side(name, "output", outputs, entry.outputs)


def _compare_side(entry: str, side: str, wanted: Mapping[str, tuple[int, ...]], found: Iterable[TensorSpec]) -> None:
    specs = {s.name: s for s in found}
    if wanted.keys() != specs.keys():
        raise IncompatibleError(
            f"{side}s of entry {entry!r}: missing {sorted(wanted.keys() - specs.keys())}, "
            f"unknown {sorted(specs.keys() - wanted.keys())}",
            fix="export and compile the checkpoint again with this version",
        )
    for name, shape in wanted.items():
        if specs[name].shape != shape:
            raise IncompatibleError(
                f"{side} {specs[name]} of entry {entry!r}: the model description says {list(shape)}",
                fix="export and compile the checkpoint again with this version",
            )
        if name == "last_index":
            if specs[name].dtype is not DType.INT32:
                raise IncompatibleError(f"{side} {specs[name]} of entry {entry!r} must be int32")
        else:
            float_dtype(specs[name])
