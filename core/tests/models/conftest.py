"""A host loop written by hand for these tests: the graph contract and nothing else, on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from isthmus.graphset import GraphSet
from isthmus.models.description import ModelDescription

TABLE = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Host:
    """Runs a graph set with one context: token-major caches of C slots, positions and masks made here."""

    def __init__(self, graphs: GraphSet, prefill: str = "prefill", decode: str = "decode") -> None:
        self.model = ModelDescription.from_json(graphs.model)
        self.entries = {e.name: e for e in self.model.llm}
        self.prefill_name, self.decode_name = prefill, decode
        names = [prefill, decode, *(["vision"] if "vision" in graphs.graphs else [])]
        self.sessions = {name: session(graphs.path / graphs.graphs[name]) for name in names}
        kinds = {i.name: i.type for i in self.sessions[decode].get_inputs()}
        self.dtype = np.float16 if kinds["inputs_embeds"] == "tensor(float16)" else np.float32
        text, table = self.model.text, TABLE[self.model.embedding.dtype]
        self.embedding = np.fromfile(graphs.path / self.model.embedding.file, table).reshape(text.vocab, text.hidden)
        self.reset()

    def reset(self) -> None:
        text = self.model.text
        slots = max(e.context for e in self.entries.values())
        self.cache = np.zeros((2, text.layers, 1, slots, text.kv_heads, text.head_dim), self.dtype)
        self.used = 0

    def vision(self, pixels: np.ndarray) -> np.ndarray:
        """[tiles, 3, S, S] -> [tiles, tokens, hidden], in calls of the size the entry was built for."""
        step = self.model.image.tiles_per_call
        parts = [pixels[i : i + step] for i in range(0, len(pixels), step)]
        run = self.sessions["vision"].run
        return np.concatenate([run(None, {"pixel_values": p.astype(self.dtype)})[0] for p in parts])

    def embed(self, ids: Sequence[int], features: np.ndarray | None = None) -> np.ndarray:
        rows = self.embedding[np.asarray(ids)].astype(np.float32)
        if features is not None:
            context = next(i for i in ids if list(ids).count(i) == features.shape[0] * features.shape[1])
            rows[np.asarray(ids) == context] = features.reshape(-1, rows.shape[1])
        return rows

    def prefill(self, rows: np.ndarray) -> np.ndarray:
        """Feed all rows in chunks; the logits after the last."""
        size = self.entries[self.prefill_name].tokens
        for start in range(0, len(rows), size):
            logits = self.step(self.prefill_name, rows[start : start + size])
        return logits

    def decode(self, token: int) -> np.ndarray:
        return self.step(self.decode_name, self.embed([token]))

    def step(self, name: str, rows: np.ndarray) -> np.ndarray:
        entry, text, real = self.entries[name], self.model.text, len(rows)
        tokens, past = entry.tokens, entry.context - entry.tokens
        assert self.used + real <= entry.context
        inputs = np.zeros((1, tokens, text.hidden), self.dtype)
        inputs[0, :real] = rows
        mask = np.full((1, 1, tokens, entry.context), self.model.mask_value, self.dtype)
        mask[..., : self.used] = 0
        mask[0, 0, :, past:] = np.triu(np.full((tokens, tokens), self.model.mask_value), 1)
        # the angles are float32 in the reference too: 1/theta^(2i/d), then times the position
        rates = 1.0 / text.rope_theta ** (np.arange(0, text.head_dim, 2, dtype=np.float32) / text.head_dim)
        angle = np.arange(self.used, self.used + tokens, dtype=np.float32)[:, None] * rates.astype(np.float32)
        feeds = {
            "inputs_embeds": inputs,
            "attention_mask": mask,
            "cos": np.cos(angle)[None, None].astype(self.dtype),
            "sin": np.sin(angle)[None, None].astype(self.dtype),
        }
        if tokens > 1:
            feeds["last_index"] = np.array([real - 1], np.int32)
        for layer in range(text.layers if past else 0):
            feeds[f"past_key_{layer}"] = self.cache[0, layer, :, :past]
            feeds[f"past_value_{layer}"] = self.cache[1, layer, :, :past]
        logits, *new = self.sessions[name].run(None, feeds)
        for i, values in enumerate(new):
            self.cache[i % 2, i // 2, :, self.used : self.used + real] = values[:, :real]
        self.used += real
        return logits[0, 0]


@pytest.fixture(scope="session")
def make_host() -> Callable[..., Any]:
    return Host
