"""Figures of a checkpoint's graphs from its ``config.json`` alone: the weights need not be there.

The exporter's own builders make the graphs, over weights that cannot be read, so that no shape is written down twice.
Only three layers of a tower are built; the others are like the last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import attrs
import numpy as np
import onnx
import onnx_ir as ir

from ..errors import InputError
from ..graph.builder import GraphBuilder
from ..models.config import Config
from ..models.description import ImageSpec, LlmEntry
from ..models.image import native_image, remote_image
from ..models.llm_graph import build_llm
from ..models.tensors import Tensor
from ..models.text_config import TextConfig, family_of, text_config
from ..models.vision_config import VisionConfig, native_vision_config, remote_vision_config
from ..models.vision_graph import build_vision
from ..types import CANONICAL, Dialect, DType, EntrySpec, GraphFigures, TensorSpec, WeightFigure
from .plan_figures import graph_figures

_BUILT = 3
"""Layers of a tower that are built: the first and the last keep fewer tensors alive than those between."""
_MOST = 1 << 24
_MOST_LAYERS = 1 << 12
"""Shapes beyond these are mistakes; planning them would take for ever."""
_SKELETON = np.dtype(np.float32)


@attrs.frozen
class Shapes:
    """What ``config.json`` says of shapes."""

    name: str
    text: TextConfig
    vision: VisionConfig | None = None
    image: ImageSpec | None = None
    """How pictures are cut, with one tile per call."""

    def __attrs_post_init__(self) -> None:
        sizes = [*attrs.asdict(self.text).items(), *(attrs.asdict(self.vision).items() if self.vision else ())]
        for name, value in sizes:
            most = _MOST_LAYERS if name == "layers" else _MOST
            if type(value) is int and value > most:
                raise InputError(
                    f"{self.name}: {name} is {value}, more than {most}", why="no checkpoint has such a shape"
                )

    @property
    def embedding_elements(self) -> int:
        """Of the embedding table, which pipelines map from disk and read by rows."""
        return self.text.vocab * self.text.hidden


def read_shapes(checkpoint: Path) -> Shapes:
    """Read the shapes of a checkpoint directory; ``.gguf`` files carry theirs in their header.

    ``InputError`` and ``UnsupportedError`` name the key, as the exporter does.
    """
    if checkpoint.suffix == ".gguf" and checkpoint.is_file():
        from ..models.reader import open_checkpoint

        return Shapes(checkpoint.stem, open_checkpoint(checkpoint).text)
    path = checkpoint if checkpoint.suffix == ".json" else checkpoint / "config.json"
    config = Config.load(path)
    name = path.resolve().parent.name
    kind = config.text("model_type")
    if kind == "internvl":
        section = config.section("text_config")
        text = text_config(section, family_of(section, native=True), config)
        vision = native_vision_config(config)
        return Shapes(name, text, vision, native_image(path.parent, config, vision, 1))
    if kind == "internvl_chat":
        section = config.section("llm_config")
        text = text_config(section, family_of(section, native=False), config)
        vision = remote_vision_config(config)
        return Shapes(name, text, vision, remote_image(path.parent, config, vision, 1))
    return Shapes(name, text_config(config, family_of(config, native=True)))


def vision_figures(shapes: Shapes, tiles: int, dialect: Dialect = CANONICAL, bits: int = 32) -> GraphFigures:
    """Figures of the ``vision`` entry for ``tiles`` tiles in a call."""
    c = shapes.vision
    if c is None:
        raise InputError(f"{shapes.name} has no vision tower")
    return _in_bits(_vision(c, shapes.text.hidden, tiles, dialect), bits)


@functools.lru_cache(64)
def _vision(c: VisionConfig, text_hidden: int, tiles: int, dialect: Dialect) -> GraphFigures:
    small = attrs.evolve(c, layers=min(c.layers, _BUILT))
    weights = _Unread(lambda name: ".attn." not in name or name.split(".")[-2] not in "qkv" or c.qkv_bias)
    graph = build_vision(small, text_hidden, weights, tiles=tiles, dialect=dialect, dtype=_SKELETON)
    return _repeat(_proto(graph), "vision.layers", small.layers, c.layers)


def llm_figures(shapes: Shapes, entry: LlmEntry, dialect: Dialect = CANONICAL, bits: int = 32) -> GraphFigures:
    """Figures of one language-model entry."""
    return _in_bits(_llm(shapes.text, entry, dialect), bits)


@functools.lru_cache(64)
def _llm(c: TextConfig, entry: LlmEntry, dialect: Dialect) -> GraphFigures:
    small = attrs.evolve(c, layers=min(c.layers, _BUILT))
    weights = _Unread(lambda name: c.qkv_bias and name.split(".")[-2] in "qkv")
    graph = build_llm(
        small, weights, name=entry.name, tokens=entry.tokens, context=entry.context, dialect=dialect, dtype=_SKELETON
    )
    found = _repeat(_proto(graph), "llm.layers", small.layers, c.layers)
    return attrs.evolve(found, spec=_all_caches(found.spec, small.layers, c.layers))


class _Unread(Mapping[str, Tensor]):
    """Every weight there can be, none of which can be read; ``biased`` says which biases there are."""

    def __init__(self, biased: Callable[[str], bool]) -> None:
        self._biased = biased

    def __getitem__(self, name: str) -> Tensor:
        if name.endswith(".bias") and not self._biased(name):
            raise KeyError(name)
        return Tensor(name, (), _SKELETON, _refuse)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _refuse() -> NoReturn:
    raise AssertionError("a memory plan reads no weights")


def _proto(graph: GraphBuilder) -> onnx.ModelProto:
    """The graph with weights that only seem to be on disk."""
    model = graph.model()
    for value in model.graph.initializers.values():
        if value.const_value is None:
            weight = graph.weights[value.name or ""]
            value.const_value = ir.ExternalTensor(
                "weights.data", 0, weight.nbytes, ir.DataType.FLOAT, shape=ir.Shape(weight.shape), name=weight.name
            )
    return ir.to_proto(model)


def _repeat(model: onnx.ModelProto, tower: str, built: int, layers: int) -> GraphFigures:
    """Figures with the last built layer as often as there are layers. Peaks do not change: layers run in turn."""
    found = graph_figures(model)
    last = f"{tower}.{built - 1}."
    weights = dict(found.weights)
    for name, weight in found.weights.items():
        if name.startswith(last):
            weights |= {name.replace(last, f"{tower}.{i}.", 1): weight for i in range(built, layers)}
    nodes = sum(node.name.startswith(last) for node in model.graph.node)
    return attrs.evolve(found, weights=weights, nodes=found.nodes + nodes * (layers - built))


def _all_caches(spec: EntrySpec, built: int, layers: int) -> EntrySpec:
    """Past and new keys and values of all layers."""

    def grow(side: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        last = [t for t in side if t.name.startswith(("past_", "new_")) and t.name.endswith(f"_{built - 1}")]
        more = [attrs.evolve(t, name=f"{t.name.rpartition('_')[0]}_{i}") for i in range(built, layers) for t in last]
        return (*side, *more)

    return EntrySpec(grow(spec.inputs), grow(spec.outputs))


def _in_bits(found: GraphFigures, bits: int) -> GraphFigures:
    """The figures of a float32 graph as they are with floats of ``bits``."""
    if bits == found.float_bits:
        return found

    def narrow(side: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(attrs.evolve(t, dtype=DType.FLOAT16) if t.dtype is DType.FLOAT32 else t for t in side)

    return attrs.evolve(
        found,
        spec=EntrySpec(narrow(found.spec.inputs), narrow(found.spec.outputs)),
        weights={n: attrs.evolve(w, bits=bits) if w.bits == 32 else w for n, w in found.weights.items()},
        activations=found.activations * bits // found.float_bits,
        float_bits=bits,
    )


def quantized(found: GraphFigures, bits: float) -> GraphFigures:
    """The figures with matrices of ``bits`` per element; norms and biases stay."""
    weights: dict[str, WeightFigure] = {
        n: attrs.evolve(w, bits=min(bits, w.bits)) if w.matrix else w for n, w in found.weights.items()
    }
    return attrs.evolve(found, weights=weights)
