"""What the exporter writes for the pipeline: prompt, stop tokens, tokenizer and picture rules of each kind of checkpoint."""

from __future__ import annotations

import json

import numpy as np
import pytest
from isthmus.errors import InputError, UnsupportedError
from isthmus.graphset import GraphSet
from isthmus.models.description import LlmEntry, ModelDescription
from isthmus.models.export import export
from isthmus.models.plan import plan_entries
from isthmus.models.reader import open_checkpoint
from safetensors.numpy import load_file, save_file


@pytest.fixture
def native(tmp_path, make_writer):
    return make_writer("qwen2").native(tmp_path / "checkpoint")


@pytest.fixture
def make_remote(tmp_path, make_writer):
    return lambda architecture="LlamaForCausalLM", **changes: make_writer("llama").remote(
        tmp_path / "checkpoint", architecture, **changes
    )


def test_a_native_checkpoint_has_no_system_message_and_tiles_by_its_processor(native):
    found = open_checkpoint(native)
    assert (found.prompt.template, found.prompt.system) == ("internvl2_5", None)
    assert (found.prompt.image_start, found.prompt.image_context, found.prompt.image_end) == (
        "<img>",
        "<IMG_CONTEXT>",
        "</img>",
    )
    assert (found.image.min_tiles, found.image.max_tiles, found.image.thumbnail) == (1, 12, True)
    assert found.stop_ids == (2, 4)
    (native / "preprocessor_config.json").write_text(
        json.dumps({"crop_to_patches": False, "max_patches": 6, "image_mean": [0.1, 0.2, 0.3], "image_std": [1, 1, 1]})
    )
    image = open_checkpoint(native).image
    assert (image.max_tiles, image.mean, image.std) == (6, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))


def test_image_strings_come_from_the_tokenizer_configuration(native):
    tokenizer = json.loads((native / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"id": 251, "content": "<picture>"})
    (native / "tokenizer.json").write_text(json.dumps(tokenizer))
    (native / "tokenizer_config.json").write_text(
        json.dumps({"extra_special_tokens": {"start_image_token": "<picture>"}})
    )
    assert open_checkpoint(native).prompt.image_start == "<picture>"


@pytest.mark.parametrize(
    ("template", "name", "start"),
    [
        ("Hermes-2", "hermes-2", "你是由上海"),
        ("internlm2-chat", "internlm2-chat", "你是由上海"),
        ("internvl2_5", "internvl2_5", "你是书生·万象"),
    ],
)
def test_a_null_system_message_means_the_templates_own(make_remote, template, name, start):
    prompt = open_checkpoint(make_remote(template=template)).prompt
    assert prompt.template == name
    assert prompt.system.startswith(start)


def test_a_stated_system_message_is_kept(make_remote):
    assert open_checkpoint(make_remote(system_message="Be brief.")).prompt.system == "Be brief."


def test_remote_tiling_is_part_of_the_model_configuration(make_remote, tmp_path):
    image = open_checkpoint(make_remote(max_dynamic_patch=6, use_thumbnail=False)).image
    assert (image.size, image.max_tiles, image.thumbnail, image.tokens_per_tile) == (56, 6, False, 4)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config | {"dynamic_image_size": False}))
    assert open_checkpoint(tmp_path / "checkpoint").image.max_tiles == 1


def test_the_separator_stops_even_when_the_configuration_names_another_token(make_remote):
    checkpoint = make_remote("InternLM2ForCausalLM")
    (checkpoint / "generation_config.json").unlink()
    assert open_checkpoint(checkpoint).stop_ids == (2, 4)


def test_sentencepiece_keeps_its_added_tokens(make_remote):
    checkpoint = make_remote("InternLM2ForCausalLM")
    for name in ("vocab.json", "merges.txt"):
        (checkpoint / name).unlink()
    (checkpoint / "tokenizer.model").write_bytes(b"not read here")
    (checkpoint / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"9": {"content": "<quad>"}}})
    )
    spec = open_checkpoint(checkpoint).tokenizer
    assert (spec.kind, spec.files, spec.add_bos) == ("sentencepiece", ("tokenizer.model",), True)
    assert spec.added_tokens["<quad>"] == 9
    assert spec.added_tokens["<IMG_CONTEXT>"] == 250


def test_a_text_only_template_brings_its_special_tokens(tmp_path, make_writer):
    import jinja2

    checkpoint = make_writer("llama").text_only(tmp_path / "checkpoint")
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "chat_template": "\n{{ bos_token }}[{{ eos_token }}]",
    }
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    found = open_checkpoint(checkpoint)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    assert environment.from_string(found.prompt.jinja).render() == "\n<s>[<|im_end|>]"
    assert found.stop_ids == (2, 4)
    assert found.image is None


def test_without_a_template_the_prompt_is_the_text(tmp_path, make_writer):
    import jinja2

    prompt = open_checkpoint(make_writer("llama").text_only(tmp_path / "checkpoint")).prompt
    assert jinja2.Template(prompt.jinja).render(messages=[{"content": "a"}, {"content": "b"}]) == "ab"


def test_a_missing_head_is_the_embedding_only_if_the_configuration_allows(tmp_path, make_writer):
    checkpoint = make_writer("llama").text_only(tmp_path / "checkpoint", tied=True)
    weights = open_checkpoint(checkpoint).weights
    assert weights["llm.head.weight"] is weights["llm.embed.weight"]
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(InputError, match=r"no tensor lm_head\.weight"):
        open_checkpoint(checkpoint)


def test_a_quantised_weight_is_refused(native):
    weights = dict(load_file(native / "model.safetensors"))
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name].astype(np.int8)
    save_file(weights, native / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"up_proj\.weight in .* holds int8"):
        open_checkpoint(native)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((32768,), [("prefill", 128, 2048), ("decode", 1, 2048)]),
        ((256,), [("prefill", 64, 256), ("decode", 1, 256)]),
        ((32768, (4096,), (64,)), [("prefill", 64, 4096), ("decode", 1, 4096)]),
        (
            (32768, (2048, 512)),
            [
                ("prefill_128_512", 128, 512),
                ("decode_512", 1, 512),
                ("prefill_128_2048", 128, 2048),
                ("decode_2048", 1, 2048),
            ],
        ),
        ((64, None, (8, 64)), [("prefill_8_64", 8, 64), ("prefill_64_64", 64, 64), ("decode_64", 1, 64)]),
    ],
)
def test_entries_and_their_names(options, expected):
    assert plan_entries(*options) == tuple(LlmEntry(*entry) for entry in expected)


def test_the_graph_set_opens_again_and_describes_itself(native, tmp_path):
    seen = []
    built = export(native, tmp_path / "set", progress=lambda name, done, total: seen.append((name, done, total)))
    opened = GraphSet.open(tmp_path / "set")
    assert opened == built
    assert set(opened.assets) == {"embedding.bin", "tokenizer.json"}
    model = ModelDescription.from_json(opened.model)
    assert [e.name for e in model.llm] == ["prefill", "decode"]
    assert (model.name, model.family, model.mask_value) == ("checkpoint", "qwen2", -1e4)
    assert (tmp_path / "set" / "embedding.bin").stat().st_size == model.text.vocab * model.text.hidden * 2
    assert seen[-1][1] == seen[-1][2] == sum(b[1] - a[1] for a, b in zip([(0, 0), *seen], seen))


def test_the_same_checkpoint_has_the_same_identity(native, tmp_path):
    first, second = (export(native, tmp_path / name) for name in ("a", "b"))
    assert first.source_sha256 == second.source_sha256
    assert first.digest() == second.digest()
