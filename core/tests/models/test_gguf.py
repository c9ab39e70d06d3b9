"""GGUF files written by gguf-py from the golden Llama model, as llama.cpp's converter lays them out."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus.errors import InputError, IsthmusError, UnsupportedError
from isthmus.models.description import ModelDescription
from isthmus.models.export import export
from isthmus.models.reader import open_checkpoint

TOKENS = [*"t123", *(f"t{i}" for i in range(249)), "<s>", "</s>", "<|eot|>"]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight, heads):
    """llama.cpp's converter: halves of each head become pairs."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(path, writer, *, tied=False, encode=lambda name, w: (w, None), architecture="llama", **metadata):
    text, weights = writer.config["text_config"], writer.remote_language(fused=False)
    heads = {"q": text["num_attention_heads"], "k": text["num_key_value_heads"]}
    out = gguf.GGUFWriter(path, architecture)
    fields = {
        "llama.context_length": text["max_position_embeddings"],
        "llama.embedding_length": text["hidden_size"],
        "llama.block_count": text["num_hidden_layers"],
        "llama.feed_forward_length": text["intermediate_size"],
        "llama.attention.head_count": heads["q"],
        "llama.attention.head_count_kv": heads["k"],
        "llama.attention.layer_norm_rms_epsilon": text["rms_norm_eps"],
        "llama.rope.freq_base": text["rope_parameters"]["rope_theta"],
        "llama.vocab_size": text["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * 253 + [3] * 3,
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.bos_token_id": 253,
        "tokenizer.ggml.eos_token_id": 254,
        "tokenizer.ggml.eot_token_id": 255,
    } | metadata
    for key, value in fields.items():
        add = {str: out.add_string, float: out.add_float32, bool: out.add_bool, list: out.add_array}
        if value is not None:
            add.get(type(value), out.add_uint32)(key, value)
    for name, weight in weights.items():
        if name == "lm_head.weight" and tied:
            continue
        stored, kind = encode(
            name, interleaved(weight, heads[name[-13]]) if name[-13:-7] in ("q_proj", "k_proj") else weight
        )
        out.add_tensor(gguf_name(name), np.ascontiguousarray(stored), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def gguf_name(name):
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


@pytest.fixture
def llama(make_writer):
    return make_writer("llama")


@pytest.mark.parametrize(("tied", "prefix"), [(False, "text_"), (True, "tied_")], ids=["own head", "tied head"])
def test_eight_greedy_steps_equal_transformers(tied, prefix, tmp_path, llama, make_host):
    host = make_host(export(write(tmp_path / "m.gguf", llama, tied=tied), tmp_path / "set"))
    reference = llama.reference
    logits = host.prefill(host.embed(reference[f"{prefix}prompt"].tolist()))
    for token, want in zip([*reference[f"{prefix}tokens"], 0], reference[f"{prefix}logits"]):
        assert np.abs(logits - want).max() <= 2e-5
        logits = host.decode(int(token))


def test_quantised_tensors_are_dequantised(tmp_path, llama):
    def encode(name, weight):
        if weight.ndim == 1 or weight.shape[1] % 32:
            return weight.astype(np.float32), None
        return gguf.quantize(weight.astype(np.float32), kind), kind

    kind = gguf.GGMLQuantizationType.Q8_0
    weights = open_checkpoint(write(tmp_path / "m.gguf", llama, encode=encode)).weights
    got = weights["llm.layers.1.mlp.down.weight"]
    want = llama.weights["model.language_model.layers.1.mlp.down_proj.weight"].astype(np.float32)
    assert got.shape == want.shape
    error = np.abs(got.read() - want).max()
    assert 0 < error < np.abs(want).max() / 127


def test_the_description_comes_from_the_metadata(tmp_path, llama):
    path = write(tmp_path / "m.gguf", llama, **{"tokenizer.chat_template": "{{ bos_token }}{{ messages }}"})
    model = ModelDescription.from_json(export(path, tmp_path / "set").model)
    assert model.stop_ids == (254, 255)
    assert model.prompt.template == "jinja"
    assert model.prompt.jinja.endswith("{{ bos_token }}{{ messages }}")
    assert '"<s>"' in model.prompt.jinja
    assert (model.embedding.dtype, model.family, model.image) == ("float16", "llama", None)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.block_count": None}, InputError, "has no llama.block_count"),
        ({"llama.block_count": 3}, InputError, "no tensor blk.2.attn_norm.weight in .*m.gguf"),
        (
            {"llama.embedding_length": 60},
            InputError,
            r"token_embd.weight .* has shape \[256, 48\], expected \[256, 60\]",
        ),
        ({"llama.embedding_length": 50}, InputError, "embedding_length 50 is not a multiple of head_count 6"),
        ({"llama.expert_count": 8}, UnsupportedError, "llama.expert_count is 8"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedError, 'rope.scaling.type is "yarn"'),
        ({"llama.rope.dimension_count": 4}, UnsupportedError, "rope.dimension_count is 4"),
        ({"tokenizer.ggml.model": "llama"}, UnsupportedError, 'tokenizer.ggml.model is "llama"'),
        ({"tokenizer.ggml.pre": "qwen2"}, UnsupportedError, "tokenizer.ggml.pre is 'qwen2'"),
        ({"tokenizer.ggml.merges": ["t 9"]}, InputError, "tokenizer .* cannot be built: .*Token `9`"),
        ({"tokenizer.ggml.tokens": None}, InputError, "has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.token_type": [1]}, InputError, "256 tokens but 1 token types"),
        ({"tokenizer.ggml.eos_token_id": 256}, InputError, "eos_token_id is 256, not one of 256 tokens"),
    ],
)
def test_what_cannot_be_used_is_named(metadata, error, message, tmp_path, llama):
    with pytest.raises(error, match=message):
        open_checkpoint(write(tmp_path / "m.gguf", llama, **metadata))


def test_another_architecture_is_refused(tmp_path, llama):
    with pytest.raises(UnsupportedError, match=r'general\.architecture is "gemma2"'):
        open_checkpoint(write(tmp_path / "m.gguf", llama, architecture="gemma2"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999))
def test_a_truncated_file_is_refused(share, tmp_path_factory, llama):
    path = write(tmp_path_factory.mktemp("short") / "m.gguf", llama)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(IsthmusError):
        open_checkpoint(path)
