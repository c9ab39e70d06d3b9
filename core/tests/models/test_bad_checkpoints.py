"""Every way a checkpoint can be wrong gives one clear error, and never a half-written graph set."""

from __future__ import annotations

import contextlib
import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from isthmus.errors import InputError, IsthmusError, UnsupportedError
from isthmus.models.export import export
from isthmus.models.reader import open_checkpoint
from safetensors.numpy import load_file, save_file


@pytest.fixture
def native(tmp_path, make_writer):
    return make_writer("qwen2").native(tmp_path / "checkpoint")


@pytest.fixture
def remote(tmp_path, make_writer):
    return make_writer("qwen2").remote(tmp_path / "checkpoint", "Qwen2ForCausalLM")


def edit(path, **changes):
    """Change a JSON file; ``a__b`` is key b of section a, ``None`` removes a key."""
    data = json.loads(path.read_text())
    for key, value in changes.items():
        *sections, last = key.split("__")
        target = data
        for section in sections:
            target = target[section]
        target[last] = value
        if value is None:
            del target[last]
    path.write_text(json.dumps(data))


def edit_weights(checkpoint, change):
    weights = dict(load_file(checkpoint / "model.safetensors"))
    change(weights)
    save_file(weights, checkpoint / "model.safetensors")


def shard(checkpoint):
    """Two shards and an index, as published."""
    weights = load_file(checkpoint / "model.safetensors")
    names = sorted(weights)
    index = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({n: weights[n] for n in part}, checkpoint / file)
        index |= dict.fromkeys(part, file)
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (checkpoint / "model.safetensors").unlink()
    return checkpoint


def test_shards_are_read_as_one(tmp_path, native):
    whole = export(native, tmp_path / "whole")
    parts = export(shard(native), tmp_path / "parts")
    for name in ("weights.data", "embedding.bin"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()


@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_named(native, tmp_path, share):
    path = native / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged") as caught:
        export(native, tmp_path / "set")
    assert "bytes" in caught.value.why or "header" in caught.value.why
    assert not list(tmp_path.glob("*set*"))


def test_a_missing_shard_is_named(native):
    (shard(native) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 of 2 shards are missing.*model-00002-of-00002"):
        open_checkpoint(native)


def test_an_index_that_does_not_fit_its_shards_is_refused(native):
    edit(shard(native) / "model.safetensors.index.json", weight_map__extra="model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match="promises extra in model-00001"):
        open_checkpoint(native)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "{}"])
def test_a_damaged_index_is_refused(native, text):
    (shard(native) / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputError, match="index"):
        open_checkpoint(native)


def test_an_index_cannot_leave_the_directory(native):
    edit(shard(native) / "model.safetensors.index.json", weight_map__extra="../model-00001-of-00002.safetensors")
    with pytest.raises(InputError, match="shards are missing"):
        open_checkpoint(native)


def test_no_weights_at_all(native):
    (native / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor"):
        open_checkpoint(native)


def test_a_missing_tensor_and_where_it_was_sought_are_named(native):
    edit_weights(native, lambda w: w.pop("model.language_model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        InputError, match=r"no tensor model\.language_model\.layers\.1\.mlp\.up_proj\.weight in .*checkpoint"
    ):
        open_checkpoint(native)


def test_a_wrong_shape_is_given_with_the_expected_one(native):
    edit(native / "config.json", text_config__intermediate_size=95)
    with pytest.raises(InputError, match=r"gate_proj\.weight in .* has shape \[96, 48\], expected \[95, 48\]"):
        open_checkpoint(native)


def test_position_embeddings_of_another_size_are_refused(remote):
    edit(remote / "config.json", force_image_size=112)
    with pytest.raises(InputError, match=r"position_embedding in .* has shape \[1, 17, 32\], expected \[1, 65, 32\]"):
        open_checkpoint(remote)


def test_weights_that_would_be_ignored_are_refused(native):
    edit_weights(
        native, lambda w: w.update({"model.language_model.layers.0.self_attn.o_proj.bias": np.zeros(48, "f2")})
    )
    with pytest.raises(UnsupportedError, match=r"1 tensors .* no place in this model: .*o_proj\.bias"):
        open_checkpoint(native)


@pytest.mark.parametrize("kind", ["clip", "internvl2", "", "llava"])
def test_another_kind_of_model_is_refused(native, kind):
    edit(native / "config.json", model_type=kind)
    with pytest.raises(InputError, match=f"model_type is '{kind}'"):
        open_checkpoint(native)


def test_a_configuration_without_a_kind_is_refused(native):
    edit(native / "config.json", model_type=None)
    with pytest.raises(InputError, match=r"config\.json has no model_type"):
        open_checkpoint(native)


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"', "\0"])
def test_a_configuration_that_is_no_object_is_refused(native, text):
    (native / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        open_checkpoint(native)


def test_paths_that_are_no_checkpoint(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(InputError, match="is not a checkpoint"):
            open_checkpoint(path)
    with pytest.raises(InputError, match=r"config\.json does not exist"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        f"text_config__{key}"
        for key in [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "vocab_size",
            "rms_norm_eps",
            "max_position_embeddings",
            "rope_parameters",
        ]
    ]
    + [f"vision_config__{key}" for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "image_size"]]
    + ["downsample_ratio", "vision_config", "text_config", "image_token_id"],
)
def test_nothing_that_decides_a_shape_is_defaulted(native, key):
    edit(native / "config.json", **{key: None})
    name = "rope_theta" if key.endswith("rope_parameters") else key.split("__")[-1]
    with pytest.raises(InputError, match=f"has no {name}"):
        open_checkpoint(native)


REFUSED_NATIVE = {
    "text_config__model_type": ("phi3", "'phi3' is not supported"),
    "text_config__hidden_act": ("gelu", 'hidden_act is "gelu"'),
    "text_config__use_sliding_window": (True, "use_sliding_window is true"),
    "text_config__layer_types": (["full_attention", "linear_attention"], "linear_attention"),
    "text_config__rope_parameters__rope_type": ("yarn", "rope type 'yarn'"),
    "text_config__rope_scaling": ({"type": "linear", "factor": 2.0}, "rope type 'linear'"),
    "text_config__partial_rotary_factor": (0.5, "partial_rotary_factor is 0.5"),
    "text_config__attention_bias": (True, "attention_bias is true"),
    "vision_config__use_mean_pooling": (False, "use_mean_pooling is false"),
    "vision_config__norm_type": ("batch_norm", "norm_type is"),
    "vision_feature_layer": (-2, "vision_feature_layer is -2"),
    "vision_feature_select_strategy": ("full", "vision_feature_select_strategy is"),
    "projector_hidden_act": ("relu", "projector_hidden_act is"),
    "quantization_config": ({"quant_method": "awq"}, "quantization_config of method 'awq'"),
}
REFUSED_REMOTE = {
    "llm_config__architectures": (["Phi3ForCausalLM"], "'Phi3ForCausalLM' is not supported"),
    "llm_config__rope_scaling": ({"type": "longrope", "factor": 2.0}, "rope type 'longrope'"),
    "use_llm_lora": (16, "use_llm_lora is 16"),
    "select_layer": (-4, "select_layer is -4"),
    "ps_version": ("v3", 'ps_version is "v3"'),
    "template": ("phi3-chat", "template 'phi3-chat'"),
    "pad2square": (True, "pad2square is true"),
    "vision_config__use_moe": (True, "use_moe is true"),
}


@pytest.mark.parametrize("key", REFUSED_NATIVE)
def test_what_is_not_supported_is_refused_by_key_and_value_native(native, key):
    value, message = REFUSED_NATIVE[key]
    edit(native / "config.json", **{key: value})
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(native)


@pytest.mark.parametrize("key", REFUSED_REMOTE)
def test_what_is_not_supported_is_refused_by_key_and_value_remote(remote, key):
    value, message = REFUSED_REMOTE[key]
    edit(remote / "config.json", **{key: value})
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(remote)


@pytest.mark.parametrize("kind", ["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_a_mixture_of_experts_is_refused_with_the_reason(remote, kind):
    edit(remote / "config.json", llm_config__architectures=[kind])
    with pytest.raises(UnsupportedError, match=kind) as caught:
        open_checkpoint(remote)
    assert caught.value.why == "mixture of experts"


def test_dynamic_rope_that_starts_within_the_positions_is_refused(remote):
    scaling = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}
    edit(remote / "config.json", llm_config__rope_scaling=scaling)
    with pytest.raises(UnsupportedError, match="starts at 64 of 128"):
        open_checkpoint(remote)


def test_tokens_per_tile_that_disagree_are_both_named(native):
    edit(native / "config.json", image_seq_length=256)
    with pytest.raises(InputError, match=r"image_seq_length is 256.* gives 4 tokens"):
        open_checkpoint(native)


def test_image_token_ids_that_disagree_are_both_named(native):
    edit(native / "config.json", image_token_id=151667)
    with pytest.raises(InputError, match=r"is token 250 in the tokenizer and 151667 in"):
        open_checkpoint(native)


def test_added_tokens_that_disagree_are_both_named(remote):
    decoder = {"added_tokens_decoder": {"7": {"content": "<img>"}}}
    (remote / "tokenizer_config.json").write_text(json.dumps(decoder))
    with pytest.raises(InputError, match=r"'<img>' is 248 in added_tokens\.json and 7 in"):
        open_checkpoint(remote)


def test_a_picture_size_that_disagrees_is_named(native):
    (native / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 448, "width": 448}}))
    with pytest.raises(InputError, match="size is 448, the vision tower takes 56"):
        open_checkpoint(native)


def test_no_tokenizer(native):
    (native / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="no tokenizer in"):
        open_checkpoint(native)


def test_a_tokenizer_without_the_image_tokens(remote):
    edit(remote / "added_tokens.json", **{"<IMG_CONTEXT>": None})
    with pytest.raises(InputError, match="no token '<IMG_CONTEXT>'"):
        open_checkpoint(remote)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": [256]}, "256 slots: the model has 2 to 128"),
        ({"contexts": [1]}, "1 slots"),
        ({"prefill": [129]}, "prefill of 129 tokens in a context of 128"),
        ({"prefill": [1]}, "prefill of 1 tokens"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"tiles_per_call": 0}, "tiles_per_call is 0"),
    ],
)
def test_options_that_cannot_be(native, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        export(native, tmp_path / "set", **options)
    assert not list(tmp_path.glob("*set*"))


def test_an_existing_directory_is_never_written_to(native, tmp_path):
    (tmp_path / "set").mkdir()
    with pytest.raises(InputError, match="already exists"):
        export(native, tmp_path / "set")


def test_a_failure_while_writing_leaves_nothing(native, tmp_path):
    edit_weights(native, lambda w: w.update({k: v.astype("f4") * 1e9 for k, v in w.items()}))
    with pytest.raises(UnsupportedError, match="beyond the range of float16"):
        export(native, tmp_path / "set", dtype="float16")
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


ODD = st.sampled_from([None, True, -1, 0, 1, 3, 1.5, 10**30, "", "x", [], [1], [{}], {}, {"a": 1}, float("nan")])


@pytest.fixture(scope="module", params=["native", "remote"])
def template(request, tmp_path_factory, make_writer):
    writer, out = make_writer("qwen2"), tmp_path_factory.mktemp("template") / "c"
    checkpoint = writer.native(out) if request.param == "native" else writer.remote(out, "Qwen2ForCausalLM")
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": {}, "chat_template": "x"}))
    (checkpoint / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "max_patches": 2}))
    return checkpoint


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_a_configuration_gives_any_other_error(template, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("odd") / "c"
    shutil.copytree(template, copy)
    path = data.draw(st.sampled_from(sorted(copy.glob("*.json"))))
    content = json.loads(path.read_text())
    target = content
    while True:
        key = data.draw(st.sampled_from(sorted(target)))
        if not (isinstance(target[key], dict) and target[key] and data.draw(st.booleans())):
            break
        target = target[key]
    target[key] = data.draw(ODD)
    path.write_text(json.dumps(content))
    with contextlib.suppress(IsthmusError):  # anything else fails the test
        open_checkpoint(copy)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(header=b"")
@given(header=st.binary(max_size=64))
def test_no_header_of_a_weights_file_gives_any_other_error(template, tmp_path_factory, header):
    copy = tmp_path_factory.mktemp("header") / "c"
    shutil.copytree(template, copy)
    (copy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(IsthmusError):
        open_checkpoint(copy)
