"""The trained checkpoint of examples/tiny_internvl against transformers' float32 results, stored beside it."""

from __future__ import annotations

import numpy as np
import pytest
from isthmus.models.export import export

bundled = pytest.importorskip("isthmus_tiny_internvl", reason="unavailable here: the bundled checkpoint")
REFERENCES = sorted(bundled.EVALUATION.glob("reference_*.npz"))
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def host(tmp_path_factory, make_host):
    return make_host(export(bundled.CHECKPOINT, tmp_path_factory.mktemp("bundled") / "set"))


@pytest.mark.parametrize("path", REFERENCES, ids=lambda p: p.stem)
def test_the_stored_reference_is_reproduced(host, path):
    want = np.load(path)
    features = None
    if "pixel_values" in want:
        features = host.vision(want["pixel_values"][None])
        assert np.abs(features[0] - want["image_features"]).max() < TOLERANCE
    host.reset()
    got = [host.prefill(host.embed(want["input_ids"].tolist(), features))]
    assert np.abs(got[0] - want["prompt_logits"][-1]).max() < TOLERANCE
    for i, logits in enumerate(want["step_logits"]):
        assert np.abs(got[-1] - logits).max() < TOLERANCE, f"step {i}"
        assert got[-1].argmax() == want["generated_ids"][i]
        got.append(host.decode(int(want["generated_ids"][i])))


def test_all_five_references_are_there():
    assert len(REFERENCES) == 5
