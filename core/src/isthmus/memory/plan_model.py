"""What a plan needs of a graph set or a checkpoint that nobody has compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import InputError
from ..graphset import GraphSet
from ..models.description import LlmEntry, ModelDescription
from ..models.plan import plan_entries
from ..spi import MemoryRules
from ..types import CANONICAL, Dialect, GraphFigures, MemoryRequirements
from .plan import LlmShape, Need, of_description
from .plan_figures import graph_set_figures
from .plan_shapes import Shapes, llm_figures, quantized, vision_figures

WEIGHT_BITS = {"float32": 32.0, "float16": 16.0, "int8": 8.0, "int4": 4.5}
"""Per element of a matrix; 4 bits come with a 16-bit scale per block of 32."""


@attrs.frozen
class Shape:
    """What can still be chosen before a checkpoint is exported."""

    contexts: tuple[int, ...] | None = None
    prefill: tuple[int, ...] | None = None
    dtype: str = "float32"
    weights: str | None = None
    """A name of ``WEIGHT_BITS``; ``None``: as ``dtype``."""
    parts: int = 1
    """Consecutive parts of the language model, of which one is loaded at a time."""


@attrs.frozen
class Compiler:
    """Who will compile it."""

    rules: MemoryRules
    target: str
    options: Any
    dialect: Dialect = CANONICAL


def of_graphs(graphs: GraphSet, compiler: Compiler) -> Need:
    """From a graph set: shapes inferred, activations placed; no weight is read."""
    model = ModelDescription.from_json(graphs.model) if graphs.model else None
    mapped = (graphs.path / model.embedding.file).stat().st_size if model else 0
    found = _need("graph set", graph_set_figures(graphs), compiler)
    return attrs.evolve(found, mapped=mapped, **of_description(model))


def of_checkpoint(shapes: Shapes, shape: Shape, compiler: Compiler) -> Need:
    """From the shapes of a checkpoint. ``InputError`` for a context or chunk the model does not have."""
    if shape.parts > shapes.text.layers or shape.parts < 1:
        raise InputError(f"{shape.parts} parts of {shapes.text.layers} layers")
    entries = plan_entries(shapes.text.max_positions, shape.contexts, shape.prefill)
    graphs = _figures(shapes, entries, shape, compiler.dialect)
    text = shapes.text
    found = _need("checkpoint", graphs, compiler) if shape.parts == 1 else _in_parts(graphs, shape.parts, compiler)
    return attrs.evolve(
        found,
        llm=LlmShape(text.layers, text.kv_heads, text.head_dim, entries),
        image=shapes.image,
        mapped=shapes.embedding_elements * (4 if shape.dtype == "float32" else 2),
    )


def _figures(shapes: Shapes, entries: Sequence[LlmEntry], shape: Shape, dialect: Dialect) -> dict[str, GraphFigures]:
    bits = int(WEIGHT_BITS[shape.dtype])
    graphs = {e.name: llm_figures(shapes, e, dialect, bits) for e in entries}
    if shapes.vision is not None:
        graphs["vision"] = vision_figures(shapes, 1, dialect, bits)
    if shape.weights is None:
        return graphs
    return {name: quantized(g, WEIGHT_BITS[shape.weights]) for name, g in graphs.items()}


def _need(source: str, graphs: Mapping[str, GraphFigures], compiler: Compiler) -> Need:
    memory = _predict(graphs, compiler)
    alone = {name: _predict({name: g}, compiler) for name, g in graphs.items()}
    contexts = {name: m.weights for name, m in alone.items()}
    apart = sum(contexts.values())
    if memory.weights < apart:  # language-model entries share theirs
        vision = contexts.get("vision", 0)
        contexts = {"language model": memory.weights - vision} | ({"vision": vision} if vision else {})
    return Need(
        source,
        memory,
        {name: g.spec for name, g in graphs.items()},
        graphs={name: m.weights + m.workspace[name] for name, m in alone.items()},
        contexts=contexts,
        distinct=_distinct(graphs, memory.weights, apart),
    )


def _distinct(graphs: Mapping[str, GraphFigures], weights: int, apart: int) -> int | None:
    """What the weights would be with equal ones once, where every entry has its own."""
    once = sum({name: w.nbytes for g in graphs.values() for name, w in g.weights.items()}.values())
    every = sum(g.weight_bytes for g in graphs.values())
    return weights * once // every if weights == apart and every else None


def _in_parts(graphs: Mapping[str, GraphFigures], parts: int, compiler: Compiler) -> Need:
    """The part that takes most: parts, and the vision tower, are loaded in turn."""
    llm = {name: g for name, g in graphs.items() if name != "vision"}
    groups = [{name: _part(g, k, parts) for name, g in llm.items()} for k in range(parts)]
    if "vision" in graphs:
        groups.append({"vision": graphs["vision"]})
    needs = [_need("checkpoint", group, compiler) for group in groups]
    largest = max(needs, key=lambda n: n.memory.own_load)
    note = f"the largest of {len(groups)} parts, which are loaded in turn"
    return attrs.evolve(
        largest,
        memory=attrs.evolve(largest.memory, notes=(*largest.memory.notes, note)),
        entries={name: g.spec for name, g in graphs.items()},
        graphs={f"{name} of part {k}": size for k, n in enumerate(needs) for name, size in n.graphs.items()},
        contexts={f"{name} of part {k}": size for k, n in enumerate(needs) for name, size in n.contexts.items()},
    )


def _part(graph: GraphFigures, part: int, parts: int) -> GraphFigures:
    """Consecutive layers of a language model; norm and head belong to the last part."""
    layers = 1 + max(int(n.split(".")[2]) for n in graph.weights if n.startswith("llm.layers."))

    def home(name: str) -> int:
        if name.startswith("llm.layers."):
            return int(name.split(".")[2]) * parts // layers
        return parts - 1 if name.startswith(("llm.head", "llm.norm")) else part

    weights = {n: w for n, w in graph.weights.items() if home(n) == part}
    return attrs.evolve(graph, weights=weights, nodes=-(-graph.nodes // parts))


def _predict(graphs: Mapping[str, GraphFigures], compiler: Compiler) -> MemoryRequirements:
    return compiler.rules.predict(graphs, compiler.target, compiler.options)
