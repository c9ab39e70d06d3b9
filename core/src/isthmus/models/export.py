"""Checkpoint in, graph set out: plan everything, then write every weight once."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from .._files import new_directory, sha256_file
from ..errors import InputError
from ..graph.builder import GraphBuilder
from ..graph.weights import INLINE, Weight, WeightsFile, inline, raw_bytes, slabs
from ..graphset import GraphSet
from ..types import CANONICAL, Dialect
from .checkpoint import Checkpoint
from .description import EmbeddingSpec, LlmEntry, ModelDescription, TextSpec
from .llm_graph import build_llm
from .plan import plan_entries
from .reader import open_checkpoint
from .vision_graph import build_vision

Progress = Callable[[str, int, int], None]
"""Called with the tensor just written, the bytes written so far and the bytes in all."""

EMBEDDING = "embedding.bin"
_CHECKPOINT_FILES = {".json", ".safetensors", ".model", ".txt", ".jinja"}
_DTYPES: Mapping[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}


def export(
    checkpoint: Path,
    out: Path,
    *,
    dialect: Dialect = CANONICAL,
    dtype: str = "float32",
    contexts: Sequence[int] | None = None,
    prefill: Sequence[int] | None = None,
    tiles_per_call: int = 1,
    progress: Progress | None = None,
) -> GraphSet:
    """Write the graph set of ``checkpoint`` to the new directory ``out``, whole or not at all.

    ``dtype`` is the float type of weights and of graph inputs and outputs, ``float32`` or ``float16``. ``contexts`` and
    ``prefill`` are slot counts and chunk sizes; ``isthmus.models.plan.plan_entries`` says what they give and the
    defaults. ``tiles_per_call`` is the batch of the ``vision`` entry.

    Raises ``InputError`` and ``UnsupportedError`` before anything is written, except for damage inside the weights.
    """
    if dtype not in _DTYPES:
        raise InputError(f"dtype is {dtype!r}", fix=f"choose one of: {', '.join(_DTYPES)}")
    if tiles_per_call < 1:
        raise InputError(f"tiles_per_call is {tiles_per_call}; it is at least 1")
    source = open_checkpoint(Path(checkpoint), tiles_per_call=tiles_per_call)
    entries = plan_entries(source.text.max_positions, contexts, prefill)
    graphs = _build(source, entries, dialect, _DTYPES[dtype], tiles_per_call)
    with new_directory(Path(out)) as work:
        _write_graphs(work, graphs, _embedding(source), progress)
        _write_assets(work, source.assets)
        GraphSet(
            path=work,
            graphs={name: f"{name}.onnx" for name in graphs},
            assets=(EMBEDDING, *source.assets),
            model=_describe(source, entries, dialect).to_json(),
            dialect=dialect.name,
            source_sha256=_digest(Path(checkpoint)),
        ).save()
    return GraphSet.open(out)


def _build(
    source: Checkpoint, entries: Sequence[LlmEntry], dialect: Dialect, dtype: np.dtype[Any], tiles: int
) -> dict[str, GraphBuilder]:
    graphs = {}
    if source.vision is not None:
        graphs["vision"] = build_vision(
            source.vision, source.text.hidden, source.weights, tiles=tiles, dialect=dialect, dtype=dtype
        )
    for entry in entries:
        graphs[entry.name] = build_llm(
            source.text,
            source.weights,
            name=entry.name,
            tokens=entry.tokens,
            context=entry.context,
            dialect=dialect,
            dtype=dtype,
        )
    return graphs


def _write_graphs(work: Path, graphs: dict[str, GraphBuilder], embedding: Weight, progress: Progress | None) -> None:
    weights = {name: weight for graph in graphs.values() for name, weight in graph.weights.items()}
    total = sum(w.nbytes for w in weights.values()) + embedding.nbytes
    done = 0

    def report(weight: Weight) -> None:
        nonlocal done
        done += weight.nbytes
        if progress is not None:
            progress(weight.name, done, total)

    tensors: dict[str, ir.TensorProtocol] = {}
    with WeightsFile(work) as file:
        for name, weight in weights.items():
            tensors[name] = inline(weight) if weight.nbytes <= INLINE else file.append(weight)
            report(weight)
    with (work / EMBEDDING).open("wb") as raw:
        for slab in slabs(embedding):
            raw.write(raw_bytes(slab))
    report(embedding)
    for name, graph in graphs.items():
        model = graph.model()
        for initializer in model.graph.initializers.values():
            initializer.const_value = tensors.get(initializer.name or "", initializer.const_value)
        ir.save(model, work / f"{name}.onnx")


def _write_assets(work: Path, assets: Mapping[str, Path | bytes]) -> None:
    for name, content in assets.items():
        if isinstance(content, bytes):
            (work / name).write_bytes(content)
        else:
            shutil.copyfile(content, work / name)


def _embedding(source: Checkpoint) -> Weight:
    """The table as it is in the checkpoint, which only rows are read from."""
    table = source.weights["llm.embed.weight"]
    return Weight("llm.embed.weight", table.shape, table.dtype, table.read)


def _describe(source: Checkpoint, entries: Sequence[LlmEntry], dialect: Dialect) -> ModelDescription:
    text = source.text
    return ModelDescription(
        name=source.name,
        family=text.family,
        text=TextSpec(
            hidden=text.hidden,
            layers=text.layers,
            heads=text.heads,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
            vocab=text.vocab,
            rope_theta=text.rope_theta,
            max_positions=text.max_positions,
        ),
        embedding=EmbeddingSpec(EMBEDDING, source.weights["llm.embed.weight"].dtype.name),
        tokenizer=source.tokenizer,
        prompt=source.prompt,
        stop_ids=source.stop_ids,
        llm=tuple(entries),
        mask_value=dialect.mask_value,
        image=source.image,
    )


def _digest(path: Path) -> str:
    """Over names and contents of a checkpoint's files: configuration, tokenizer and safetensors, nothing else."""
    if path.is_file():
        return sha256_file(path)
    total = hashlib.sha256()
    for file in sorted(f for f in path.iterdir() if f.suffix in _CHECKPOINT_FILES):
        total.update(f"{file.name}\0{sha256_file(file)}\n".encode())
    return total.hexdigest()
