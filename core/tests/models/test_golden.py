"""Tiny random models in every layout against transformers' float32 results (tools/make_golden.py)."""

from __future__ import annotations

import numpy as np
import pytest
from isthmus.models.export import export

TOLERANCE = 2e-5
INTERNVL = {
    "qwen2 native": ("qwen2", lambda w, out: w.native(out)),
    "qwen2 early": ("qwen2", lambda w, out: w.early(out)),
    "qwen2 remote": ("qwen2", lambda w, out: w.remote(out, "Qwen2ForCausalLM")),
    "qwen3 native": ("qwen3", lambda w, out: w.native(out)),
    "qwen3 early": ("qwen3", lambda w, out: w.early(out)),
    "qwen3 remote": ("qwen3", lambda w, out: w.remote(out, "Qwen3ForCausalLM")),
    "llama native": ("llama", lambda w, out: w.native(out)),
    "llama remote": ("llama", lambda w, out: w.remote(out, "LlamaForCausalLM")),
    "internlm2 remote": ("llama", lambda w, out: w.remote(out, "InternLM2ForCausalLM")),
    "6B-style tower native": ("vit6b", lambda w, out: w.native(out)),
    "6B-style tower remote": ("vit6b", lambda w, out: w.remote(out, "Qwen2ForCausalLM")),
}
TEXT_ONLY = {
    "qwen2": ("qwen2", "text_", {}),
    "qwen2 tied": ("qwen2", "tied_", {"tied": True}),
    "qwen3": ("qwen3", "text_", {}),
    "llama": ("llama", "text_", {}),
    "internlm2": ("llama", "text_", {"fused": True}),
    "internlm2 tied": ("llama", "tied_", {"tied": True, "fused": True}),
}


def check(host, reference, prefix="", features=None, tolerance=TOLERANCE):
    host.reset()
    logits = host.prefill(host.embed(reference[f"{prefix}prompt"].tolist(), features))
    wants, tokens = reference[f"{prefix}logits"], reference[f"{prefix}tokens"]
    assert np.abs(logits - wants[0]).max() <= tolerance, "prefill"
    for step, (token, want) in enumerate(zip(tokens, wants[1:])):
        assert logits.argmax() == token, f"token {step}"
        logits = host.decode(int(token))
        assert np.abs(logits - want).max() <= tolerance, f"decode step {step}"


@pytest.fixture(scope="module")
def pixels(golden):
    return np.load(golden / "pixels.npy").astype(np.float32)


@pytest.mark.parametrize("layout", INTERNVL)
def test_vision_prefill_and_eight_greedy_steps_equal_transformers(layout, tmp_path, make_writer, make_host, pixels):
    case, write = INTERNVL[layout]
    writer = make_writer(case)
    host = make_host(export(write(writer, tmp_path / "checkpoint"), tmp_path / "set"))
    features = host.vision(pixels)
    assert np.abs(features - writer.reference["image_features"]).max() <= TOLERANCE
    check(host, writer.reference, features=features)


@pytest.mark.parametrize("layout", TEXT_ONLY)
def test_a_text_only_checkpoint_equals_transformers(layout, tmp_path, make_writer, make_host):
    case, prefix, options = TEXT_ONLY[layout]
    writer = make_writer(case)
    graphs = export(writer.text_only(tmp_path / "checkpoint", **options), tmp_path / "set")
    assert "vision" not in graphs.graphs
    check(make_host(graphs), writer.reference, prefix)


@pytest.mark.parametrize("tokens", [2, 3, 7, 16, 64, 128], ids=lambda n: f"chunks of {n}")
def test_a_prompt_fed_in_chunks_gives_the_same(tokens, tmp_path, make_writer, make_host):
    writer = make_writer("qwen2")
    checkpoint = writer.text_only(tmp_path / "checkpoint")
    check(make_host(export(checkpoint, tmp_path / "set", prefill=[tokens])), writer.reference, "text_")


def test_several_contexts_and_prefill_sizes_share_the_weights(tmp_path, make_writer, make_host):
    writer = make_writer("qwen3")
    checkpoint = writer.native(tmp_path / "checkpoint")
    one = export(checkpoint, tmp_path / "one")
    many = export(checkpoint, tmp_path / "many", contexts=[32, 128], prefill=[4, 8])
    llm = {name for name in many.graphs if name != "vision"}
    assert llm == {f"prefill_{n}_{c}" for n in (4, 8) for c in (32, 128)} | {"decode_32", "decode_128"}
    size = {graphs.path: (graphs.path / "weights.data").stat().st_size for graphs in (one, many)}
    assert size[one.path] == size[many.path]
    for context in (32, 128):
        for tokens in (4, 8):
            host = make_host(many, f"prefill_{tokens}_{context}", f"decode_{context}")
            check(host, writer.reference, "text_")


def test_the_cache_of_a_short_context_is_the_prefix_of_a_long_one(tmp_path, make_writer, make_host):
    """Prefill in 32 slots, go on in 128: only because keys and values are token-major."""
    writer = make_writer("llama")
    graphs = export(writer.text_only(tmp_path / "c"), tmp_path / "set", contexts=[32, 128], prefill=[8])
    check(make_host(graphs, "prefill_8_32", "decode_128"), writer.reference, "text_")


def test_two_tiles_in_one_call_give_the_same(tmp_path, make_writer, make_host, pixels):
    writer = make_writer("vit6b")
    host = make_host(export(writer.native(tmp_path / "checkpoint"), tmp_path / "set", tiles_per_call=2))
    assert host.sessions["vision"].get_inputs()[0].shape[0] == 2
    assert np.abs(host.vision(pixels) - writer.reference["image_features"]).max() <= TOLERANCE


def test_ps_version_1_leaves_the_token_grid_transposed(tmp_path, make_writer, make_host, pixels):
    writer = make_writer("qwen2")
    checkpoint = writer.remote(tmp_path / "checkpoint", "Qwen2ForCausalLM", ps_version="v1")
    got = make_host(export(checkpoint, tmp_path / "set")).vision(pixels)
    want = writer.reference["image_features"]
    edge = int(want.shape[1] ** 0.5)
    transposed = want.reshape(len(want), edge, edge, -1).swapaxes(1, 2).reshape(want.shape)
    assert np.abs(got - transposed).max() <= TOLERANCE
    assert np.abs(got - want).max() > 0.1


def test_float16_graphs_stay_near(tmp_path, make_writer, make_host, pixels):
    writer = make_writer("qwen2")
    host = make_host(export(writer.native(tmp_path / "checkpoint"), tmp_path / "set", dtype="float16"))
    features = host.vision(pixels)
    assert features.dtype == np.float16
    assert np.abs(features - writer.reference["image_features"]).max() < 0.02
    check(host, writer.reference, features=features, tolerance=0.05)
