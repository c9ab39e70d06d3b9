"""Plans from shapes alone against the graphs the exporter really writes, and against the published sizes of InternVL."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import attrs
import pytest
from isthmus.errors import InputError, UnsupportedError
from isthmus.memory.plan import LlmShape
from isthmus.memory.plan_figures import graph_set_figures
from isthmus.memory.plan_model import WEIGHT_BITS
from isthmus.memory.plan_shapes import Shapes, llm_figures, quantized, read_shapes, vision_figures
from isthmus.models.description import LlmEntry, ModelDescription
from isthmus.models.export import export
from isthmus_tiny_internvl import CHECKPOINT

VISION_300M = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 448,
    "patch_size": 14,
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
    "qk_normalization": False,
}
ARCHITECTURES = {"internlm2": "InternLM2ForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# family, layers, hidden, heads, kv heads, head size, ffn, vocab; KV bytes per token fp16, total fp16 GB, w4 body+head GB
# Source: the configurations of the releases; the totals equal the sizes of the files on their pages where these are known.
MODELS = {
    "InternVL2-1B": ("qwen2", 24, 896, 14, 2, 64, 4864, 151655, 12288, 1.88, 0.28),
    "InternVL2-2B": ("internlm2", 24, 2048, 16, 8, 128, 8192, 92553, 98304, 4.41, 0.96),
    "InternVL2-8B": ("internlm2", 32, 4096, 32, 8, 128, 14336, 92553, 131072, 16.15, 4.14),
    "InternVL2.5-4B": ("qwen2", 36, 2048, 16, 2, 128, 11008, 151674, 36864, 7.43, 1.74),
    "InternVL3-1B": ("qwen2", 24, 896, 14, 2, 64, 4864, 151674, 12288, 1.88, 0.28),
    "InternVL3-2B": ("qwen2", 28, 1536, 12, 2, 128, 8960, 151674, 28672, 4.18, 0.87),
    "InternVL3-8B": ("qwen2", 28, 3584, 28, 4, 128, 18944, 151674, 57344, 15.89, 3.98),
    "InternVL3.5-1B": ("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 114688, 2.12, 0.34),
    "InternVL3.5-2B": ("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 114688, 4.70, 0.97),
    "InternVL3.5-4B": ("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 147456, 9.46, 2.26),
    "InternVL3.5-8B": ("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 147456, 17.06, 4.26),
}
DECODE = LlmEntry("decode", 1, 1024)


def config(family, layers, hidden, heads, kv_heads, head_dim, ffn, vocab) -> dict:
    return {
        "model_type": "internvl_chat",
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "force_image_size": 448,
        "max_dynamic_patch": 12,
        "use_thumbnail": True,
        "vision_config": VISION_300M,
        "llm_config": {
            "architectures": [ARCHITECTURES[family]],
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "intermediate_size": ffn,
            "vocab_size": vocab,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
    }


def shapes_of(folder: Path, name: str) -> Shapes:
    (folder / "config.json").write_text(json.dumps(config(*MODELS[name][:8])))
    return read_shapes(folder)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shapes_alone_give_the_figures_of_the_exported_graphs(tmp_path: Path, dtype: str) -> None:
    graphs = export(CHECKPOINT, tmp_path / "graphs", dtype=dtype, contexts=(64, 256), prefill=(16,))
    real = graph_set_figures(graphs)
    shapes, bits = read_shapes(CHECKPOINT), int(WEIGHT_BITS[dtype])
    planned = {"vision": vision_figures(shapes, 1, bits=bits)}
    planned |= {e.name: llm_figures(shapes, e, bits=bits) for e in ModelDescription.from_json(graphs.model).llm}
    assert planned.keys() == real.keys()
    for name, found in planned.items():
        assert found.weights == real[name].weights
        assert set(found.spec.inputs) == set(real[name].spec.inputs)
        assert set(found.spec.outputs) == set(real[name].spec.outputs)
        assert found.nodes == real[name].nodes
        assert found.activations == pytest.approx(real[name].activations, rel=1e-3)  # halves of sums of aligned sizes


@pytest.mark.parametrize("name", MODELS)
def test_the_published_sizes_of_internvl_come_out(tmp_path: Path, name: str) -> None:
    *_, kv_bytes, total, four_bits = MODELS[name]
    shapes = shapes_of(tmp_path, name)
    text = shapes.text
    assert LlmShape(text.layers, text.kv_heads, text.head_dim, (DECODE,)).kv_bytes_per_token(16) == kv_bytes
    llm, vision = llm_figures(shapes, DECODE, bits=16), vision_figures(shapes, 1, bits=16)
    everything = llm.weight_bytes + vision.weight_bytes + 2 * shapes.embedding_elements
    assert everything / 1e9 == pytest.approx(total, abs=0.006)
    assert quantized(llm, WEIGHT_BITS["int4"]).weight_bytes / 1e9 == pytest.approx(four_bits, abs=0.011)


def test_a_cache_of_4096_slots_is_what_the_formula_says(tmp_path: Path) -> None:
    text = shapes_of(tmp_path, "InternVL2-2B").text
    shape = LlmShape(text.layers, text.kv_heads, text.head_dim, (LlmEntry("decode", 1, 4096),))
    assert shape.kv_bytes_per_token(16) * shape.slots == 402_653_184  # 403 MB


@pytest.mark.parametrize("name", ["InternVL2-2B", "InternVL2-8B"])
def test_a_sparse_checkpoint_and_its_configuration_alone_plan_alike(tmp_path: Path, name: str) -> None:
    alone = shapes_of(tmp_path, name)
    with (tmp_path / "model.safetensors").open("wb") as file:  # all of its size, none of its bytes
        size = 2 * (llm_figures(alone, DECODE, bits=16).weight_bytes // 2)
        header = json.dumps({"x": {"dtype": "F16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    sparse = read_shapes(tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 3 << 30
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 1 << 20
    assert sparse == alone
    assert read_shapes(tmp_path / "config.json") == alone


def test_layers_beyond_the_third_add_weights_and_nothing_to_the_peak(tmp_path: Path) -> None:
    shapes = shapes_of(tmp_path, "InternVL3-1B")
    few = attrs.evolve(shapes, text=attrs.evolve(shapes.text, layers=5))
    more = attrs.evolve(shapes, text=attrs.evolve(shapes.text, layers=6))
    a, b = (llm_figures(s, DECODE) for s in (few, more))
    assert a.activations == b.activations
    text = shapes.text
    kv = text.kv_heads * text.head_dim
    layer = 2 * text.hidden**2 + 2 * text.hidden * kv + 3 * text.hidden * text.intermediate  # q, o, k, v, mlp
    layer += 2 * text.hidden + text.hidden + 2 * kv  # norms and biases
    assert b.weight_bytes - a.weight_bytes == 4 * layer


def test_what_the_exporter_refuses_the_plan_refuses(tmp_path: Path) -> None:
    data = config(*MODELS["InternVL2-2B"][:8])
    data["llm_config"]["architectures"] = ["Phi3ForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(UnsupportedError, match="Phi3ForCausalLM"):
        read_shapes(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_shapes(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", 10**30), ("hidden_size", 2**62), ("num_hidden_layers", 10**9), ("max_position_embeddings", 2**60)],
)
def test_a_shape_that_would_take_for_ever_is_refused(tmp_path: Path, key: str, value: int) -> None:
    data = config(*MODELS["InternVL2-2B"][:8])
    data["llm_config"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="no checkpoint has such a shape"):
        read_shapes(tmp_path)


def test_a_text_model_has_no_vision_tower(tmp_path: Path) -> None:
    data = config(*MODELS["InternVL3-1B"][:8])["llm_config"] | {"model_type": "qwen2"}
    (tmp_path / "config.json").write_text(json.dumps(data))
    shapes = read_shapes(tmp_path)
    assert shapes.image is None
    with pytest.raises(InputError, match="no vision tower"):
        vision_figures(shapes, 1)
