"""A device that computes a small random InternVL in numpy, so that the pipeline is tested without any plugin.

It is as nasty as a device may be: fresh memory is NaN, and where outputs may overlap inputs, what they overlap is
garbage before the graph reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from isthmus import Artifact, DType, EntrySpec, Manifest, Reality, TensorSpec
from isthmus.artifact import FileRecord
from isthmus.device import Device
from isthmus.models.description import (
    EmbeddingSpec,
    ImageSpec,
    LlmEntry,
    ModelDescription,
    PromptSpec,
    TextSpec,
    TokenizerSpec,
)
from isthmus.pipeline import Pipeline
from isthmus.spi import Allocation, CallerMemory, DeviceDriver, Region
from isthmus.types import Capability, DeviceInfo, Granted, MemoryInfo, MemoryRequirements, Pages, Tolerance
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<ref>", "</ref>")
VOCAB = 256 + len(SPECIAL) + 4  # as in Qwen, the head has more rows than the tokenizer has tokens
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 16, 2, 4, 2, 4
SIZE, TILE_TOKENS = 8, 4


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: the id of a byte is its place in the alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return built


def describe(**changes: Any) -> ModelDescription:
    base = ModelDescription(
        name="numpy",
        family="qwen2",
        text=TextSpec(HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, 10000.0, 1024),
        embedding=EmbeddingSpec("embedding.bin", "float32"),
        tokenizer=TokenizerSpec("tokenizer_json", ("tokenizer.json",)),
        prompt=PromptSpec("internvl2_5", None, "<img>", "<IMG_CONTEXT>", "</img>"),
        stop_ids=(256 + SPECIAL.index("<|im_end|>"),),
        llm=(LlmEntry("prefill", 16, 128), LlmEntry("decode", 1, 128)),
        mask_value=-1e4,
        image=ImageSpec(SIZE, TILE_TOKENS, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 1, 6, True, 1),
    )
    return attrs.evolve(base, **changes)


class NumpyModel:
    """Weights, the graphs of the contract, and a plain full-sequence forward pass as their oracle."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def weight(*shape: int) -> np.ndarray:
            return rng.normal(0, shape[0] ** -0.5, shape)

        self.embedding = rng.normal(0, 1, (VOCAB, HIDDEN)).astype(np.float32)
        kv = KV_HEADS * HEAD_DIM
        self.layers = [
            {
                "q": weight(HIDDEN, HEADS * HEAD_DIM) * 3,
                "k": weight(HIDDEN, kv) * 3,
                "v": weight(HIDDEN, kv),
                "o": weight(HEADS * HEAD_DIM, HIDDEN),
                "up": weight(HIDDEN, 32),
                "down": weight(32, HIDDEN),
            }
            for _ in range(LAYERS)
        ]
        self.head = weight(HIDDEN, VOCAB) * 4
        self.vision = weight(3 * SIZE * SIZE // TILE_TOKENS, HIDDEN) * 3

    def run(self, entry: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.see(inputs["pixel_values"]) if entry == "vision" else self.llm(inputs)

    def see(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        rows = pixels.astype(np.float64).reshape(len(pixels), 3, TILE_TOKENS, -1).transpose(0, 2, 1, 3)
        return {"image_features": np.tanh(rows.reshape(len(pixels), TILE_TOKENS, -1) @ self.vision)}

    def llm(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """An AR-N graph, exactly as the contract has it."""
        x = inputs["inputs_embeds"][0].astype(np.float64)
        mask = inputs["attention_mask"][0, 0].astype(np.float64)
        cos, sin = (inputs[n][0, 0].astype(np.float64)[:, None] for n in ("cos", "sin"))
        last = int(inputs["last_index"][0]) if "last_index" in inputs else 0
        out: dict[str, np.ndarray] = {}
        for i, w in enumerate(self.layers):
            y = _norm(x)
            q, k, v = ((y @ w[n]).reshape(len(x), -1, HEAD_DIM) for n in "qkv")
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
            out[f"new_key_{i}"], out[f"new_value_{i}"] = k[None], v[None]
            if f"past_key_{i}" in inputs:
                k = np.concatenate([inputs[f"past_key_{i}"][0].astype(np.float64), k])
                v = np.concatenate([inputs[f"past_value_{i}"][0].astype(np.float64), v])
            x = _layer(x, _attend(q, k, v, mask), w)
        out["logits"] = (_norm(x[last]) @ self.head)[None, None]
        return out

    def logits(self, x: np.ndarray, theta: float = 10000.0) -> np.ndarray:
        """Logits after each row of x [n, hidden]: no cache, no chunks, rotation as complex numbers."""
        n = len(x)
        turn = np.exp(1j * np.arange(n)[:, None] * theta ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM))[:, None]
        for w in self.layers:
            q, k, v = ((_norm(x) @ w[s]).reshape(n, -1, HEAD_DIM) for s in "qkv")
            half = HEAD_DIM // 2
            q, k = (
                np.concatenate([((t[..., :half] + 1j * t[..., half:]) * turn).real,
                                ((t[..., :half] + 1j * t[..., half:]) * turn).imag], -1)
                for t in (q, k)
            )  # fmt: skip
            x = _layer(x, _attend(q, k, v, np.triu(np.full((n, n), -np.inf), 1)), w)
        return _norm(x) @ self.head


def _norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    group = HEADS // KV_HEADS
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("nhd,chd->hnc", q, k) / HEAD_DIM**0.5 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hnc,chd->nhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(q), -1)


def _layer(x: np.ndarray, attention: np.ndarray, w: Mapping[str, np.ndarray]) -> np.ndarray:
    x = x + attention @ w["o"]
    return x + np.maximum(_norm(x) @ w["up"], 0) @ w["down"]


class NumpyDriver(DeviceDriver):
    """Counts what it is asked for. ``broken`` makes an execute fail or give NaN."""

    def __init__(self, model: NumpyModel, aliased: bool, io_alignment: int) -> None:
        self.model = model
        self.capabilities = frozenset({Capability.ALIASED_IO} if aliased else ())
        self.io_alignment = io_alignment
        self.allocations = self.live = self.copies = self.rebinds = 0
        self.executed: list[str] = []
        self.broken: Exception | float | None = None

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(None, None)

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        self.allocations += 1
        self.live += 1
        return Allocation(np.full(size, 0xFF, np.uint8), size, Granted.NORMAL)

    def free(self, handle: Any) -> None:
        self.live -= 1

    def write(self, region: Region, data: memoryview) -> None:
        _bytes(region)[:] = data

    def read(self, region: Region, out: memoryview) -> None:
        out[:] = _bytes(region).data

    def copy(self, dst: Region, src: Region) -> None:
        self.copies += 1
        _bytes(dst)[:] = _bytes(src)

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return artifact.manifest.memory

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> Any:
        return artifact.entries

    def unload(self, program: Any) -> None:
        pass

    def bind(self, program: Any, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> Any:
        return entry, program[entry], list(inputs), list(outputs)

    def rebind(self, binding: Any, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        self.rebinds += 1
        for side, changes in ((2, inputs), (3, outputs)):
            for position, region in changes.items():
                binding[side][position] = region

    def unbind(self, binding: Any) -> None:
        pass

    def execute(self, binding: Any) -> None:
        entry, spec, inputs, outputs = binding
        if isinstance(self.broken, Exception):
            raise self.broken
        for tensor, region in zip(spec.outputs, outputs):
            _array(tensor, region)[...] = 77  # what an aliased input sees of its output
        given = {t.name: _array(t, r) for t, r in zip(spec.inputs, inputs)}
        results = self.model.run(entry, {name: a.copy() for name, a in given.items()})
        for tensor, region in zip(spec.outputs, outputs):
            _array(tensor, region)[...] = results[tensor.name] if self.broken is None else self.broken
        self.executed.append(entry)

    def close(self) -> None:
        assert self.live == 0


def _bytes(region: Region) -> np.ndarray:
    return region.handle[region.offset : region.offset + region.size]


def _array(spec: TensorSpec, region: Region) -> np.ndarray:
    return _bytes(region).view(spec.dtype.numpy).reshape(spec.shape)


def entries_of(model: ModelDescription, dtype: DType = DType.FLOAT32) -> dict[str, EntrySpec]:
    """The entries the contract asks for, spelled out again here so that a change of the checks is noticed."""
    entries: dict[str, EntrySpec] = {}
    text = model.text
    for graph in model.llm:
        n, p = graph.tokens, graph.context - graph.tokens
        inputs = [TensorSpec("inputs_embeds", dtype, (1, n, text.hidden))]
        inputs.append(TensorSpec("attention_mask", dtype, (1, 1, n, graph.context)))
        inputs += [TensorSpec(name, dtype, (1, 1, n, text.head_dim // 2)) for name in ("cos", "sin")]
        if n > 1:
            inputs.append(TensorSpec("last_index", DType.INT32, (1,)))
        outputs = [TensorSpec("logits", dtype, (1, 1, text.vocab))]
        for i in range(text.layers):
            for kind in ("key", "value"):
                if p > 0:
                    inputs.append(TensorSpec(f"past_{kind}_{i}", dtype, (1, p, text.kv_heads, text.head_dim)))
                outputs.append(TensorSpec(f"new_{kind}_{i}", dtype, (1, n, text.kv_heads, text.head_dim)))
        entries[graph.name] = EntrySpec(tuple(inputs), tuple(outputs))
    if model.image is not None:
        t, s = model.image.tiles_per_call, model.image.size
        entries["vision"] = EntrySpec(
            (TensorSpec("pixel_values", dtype, (t, 3, s, s)),),
            (TensorSpec("image_features", dtype, (t, model.image.tokens_per_tile, text.hidden)),),
        )
    return entries


def write_artifact(
    path: Path, model: ModelDescription, numpy_model: NumpyModel, dtype: DType, entries: Mapping[str, EntrySpec]
) -> Artifact:
    assets = path / "assets"
    assets.mkdir(parents=True)
    byte_tokenizer().save(str(assets / "tokenizer.json"))
    (assets / "embedding.bin").write_bytes(numpy_model.embedding.tobytes())
    manifest = Manifest(
        isthmus="0", backend="numpy", plugin="0", target="host", reality=Reality.REAL, toolchain={}, options={},
        source_sha256="", graphs_sha256="", dialect="canonical", entries=entries,
        memory=MemoryRequirements(0, {}, {}, True, 0, 0), tolerance=Tolerance(0, 0), placement={}, notes=(),
        model=model.to_json(),
        files={f"assets/{f.name}": FileRecord(f.stat().st_size, "") for f in assets.iterdir()},
    )  # fmt: skip
    return Artifact(path, manifest)


@attrs.define
class Made:
    """A pipeline with what is behind it."""

    pipeline: Pipeline
    driver: NumpyDriver
    model: NumpyModel
    device: Device


MakePipeline = Callable[..., Made]


@pytest.fixture
def make_pipeline(tmp_path: Path) -> Any:
    """``make_pipeline(aliased=True, dtype=..., io_alignment=1, entries=None, **description changes)``; closed at the end."""
    opened: list[Made] = []

    def make(
        *,
        aliased: bool = True,
        dtype: DType = DType.FLOAT32,
        io_alignment: int = 1,
        edit: Callable[[dict[str, EntrySpec]], None] | None = None,
        **changes: Any,
    ) -> Made:
        description, numpy_model = describe(**changes), NumpyModel()
        entries = entries_of(description, dtype)
        if edit:
            edit(entries)
        artifact = write_artifact(tmp_path / f"a{len(opened)}", description, numpy_model, dtype, entries)
        driver = NumpyDriver(numpy_model, aliased, io_alignment)
        device = Device(DeviceInfo("numpy", "0", ("host",), Reality.REAL, "numpy"), driver)
        try:
            made = Made(Pipeline.load(device, artifact), driver, numpy_model, device)
        except BaseException:
            device.close()
            raise
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.pipeline.close()
        made.device.close()


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(file))
    return file


@pytest.fixture
def description() -> Callable[..., ModelDescription]:
    return describe
