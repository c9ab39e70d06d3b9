"""Two things these tests share: a host loop written by hand (the graph contract and nothing else, on ONNX Runtime's CPU
provider), and a writer that lays a golden model out as each kind of checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from isthmus.graphset import GraphSet
from isthmus.models.description import ModelDescription
from safetensors.numpy import load_file, save_file

SPECIAL = {"<|im_start|>": 3, "<|im_end|>": 4, "<img>": 248, "</img>": 249, "<IMG_CONTEXT>": 250}
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
def make_host() -> type[Host]:
    return Host


class CheckpointWriter:
    """Writes a golden model in another layout. Names and fusions are spelled out here, apart from the reader's."""

    def __init__(self, golden: Path, case: str) -> None:
        self.config = json.loads((golden / case / "config.json").read_text())
        self.weights = load_file(golden / case / "model.safetensors")
        self.reference = np.load(golden / case / "reference.npz")

    def native(self, out: Path) -> Path:
        return self.write(out, self.config, self.weights, self.tokenizer_json)

    def early(self, out: Path) -> Path:
        """transformers 4.52: no leading ``model.``, the head inside the language model."""
        renamed = {
            re.sub(r"^model\.language_model\.", "language_model.model.", name).removeprefix("model."): value
            for name, value in self.weights.items()
        }
        renamed["language_model.lm_head.weight"] = renamed.pop("lm_head.weight")
        return self.write(out, self.config, renamed, self.tokenizer_json)

    def remote(self, out: Path, architecture: str, **changes: Any) -> Path:
        """OpenGVLab's remote code; for InternLM2ForCausalLM the language model is fused as well."""
        text, vision = self.config["text_config"], self.config["vision_config"]
        config = {
            "model_type": "internvl_chat",
            "architectures": ["InternVLChatModel"],
            "downsample_ratio": 0.5,
            "dynamic_image_size": True,
            "force_image_size": vision["image_size"][0],
            "max_dynamic_patch": 12,
            "min_dynamic_patch": 1,
            "ps_version": "v2",
            "select_layer": -1,
            "template": "internvl2_5",
            "use_thumbnail": True,
            "system_message": None,
            "use_backbone_lora": 0,
            "use_llm_lora": 0,
            "llm_config": self.remote_text(text, architecture),
            "vision_config": {
                "hidden_act": "gelu",
                "hidden_size": vision["hidden_size"],
                "image_size": vision["image_size"][0],
                "intermediate_size": vision["intermediate_size"],
                "layer_norm_eps": vision["layer_norm_eps"],
                "norm_type": vision["norm_type"],
                "num_attention_heads": vision["num_attention_heads"],
                "num_hidden_layers": vision["num_hidden_layers"],
                "patch_size": vision["patch_size"][0],
                "qk_normalization": vision["use_qk_norm"],
                "qkv_bias": vision["attention_bias"],
            },
            **changes,
        }
        weights = self.remote_vision() | self.remote_projector()
        language = self.remote_language(fused=architecture == "InternLM2ForCausalLM")
        weights |= {f"language_model.{name}": value for name, value in language.items()}
        return self.write(out, config, weights, self.added_tokens)

    def text_only(self, out: Path, *, tied: bool = False, fused: bool = False) -> Path:
        config = {**self.config["text_config"], "tie_word_embeddings": tied, "architectures": ["SomeForCausalLM"]}
        if fused:
            config = self.remote_text(config, "InternLM2ForCausalLM")
        weights = self.remote_language(fused=fused)
        if tied:
            del weights["output.weight" if fused else "lm_head.weight"]
        return self.write(out, config, weights, self.tokenizer_json)

    @staticmethod
    def remote_text(text: dict[str, Any], architecture: str) -> dict[str, Any]:
        """As published: the base beside a dynamic scaling that does nothing within the trained positions."""
        kept = {k: v for k, v in text.items() if k not in ("rope_parameters", "layer_types", "attention_bias")}
        kind = {"InternLM2ForCausalLM": "internlm2"}.get(architecture, text["model_type"])
        return {
            **kept,
            "architectures": [architecture],
            "model_type": kind,
            "rope_theta": text["rope_parameters"]["rope_theta"],
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
            "bias": False,
        }

    def remote_language(self, *, fused: bool) -> dict[str, np.ndarray]:
        plain = {
            re.sub(r"^model\.language_model\.", "model.", name): value
            for name, value in self.weights.items()
            if name.startswith(("model.language_model.", "lm_head."))
        }
        return self.internlm2(plain) if fused else plain

    def internlm2(self, plain: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        text = self.config["text_config"]
        heads, groups = text["num_attention_heads"], text["num_key_value_heads"]
        dim = text["hidden_size"] // heads
        names = {
            "embed_tokens": "tok_embeddings",
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            "lm_head": "output",
        }
        out = {}
        for name, value in plain.items():
            if not re.search(r"self_attn\.[qkv]_proj", name):
                out[re.sub("|".join(map(re.escape, names)), lambda m: names[m.group()], name)] = value
        for i in range(text["num_hidden_layers"]):
            q, k, v = (plain[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv")
            rows = []
            for group in range(groups):
                size = heads // groups * dim
                rows.append(q[group * size : (group + 1) * size])
                rows.append(k[group * dim : (group + 1) * dim])
                rows.append(v[group * dim : (group + 1) * dim])
            out[f"model.layers.{i}.attention.wqkv.weight"] = np.concatenate(rows)
        return out

    def remote_vision(self) -> dict[str, np.ndarray]:
        names = {
            "encoder.layer.": "encoder.layers.",
            "cls_token": "class_embedding",
            "position_embeddings": "position_embedding",
            "patch_embeddings.projection": "patch_embedding",
            "attention.projection_layer": "attn.proj",
            "attention.q_norm": "attn.q_norm",
            "attention.k_norm": "attn.k_norm",
            "layernorm_before": "norm1",
            "layernorm_after": "norm2",
            "lambda_1": "ls1",
            "lambda_2": "ls2",
        }
        tower = {
            name.removeprefix("model.vision_tower."): value
            for name, value in self.weights.items()
            if name.startswith("model.vision_tower.")
        }
        out = {}
        for name, value in tower.items():
            if (fused := re.fullmatch(r"encoder\.layer\.(\d+)\.attention\.q_proj\.(\w+)", name)) is not None:
                parts = [tower[name.replace("q_proj", f"{x}_proj")] for x in "qkv"]
                out[f"vision_model.encoder.layers.{fused[1]}.attn.qkv.{fused[2]}"] = np.concatenate(parts)
            elif not re.search(r"attention\.[kv]_proj", name):
                renamed = re.sub("|".join(map(re.escape, names)), lambda m: names[m.group()], name)
                out[f"vision_model.{renamed}"] = value
        return out

    def remote_projector(self) -> dict[str, np.ndarray]:
        names = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
        return {
            f"mlp1.{names[name.split('.')[2]]}.{name.split('.')[3]}": value
            for name, value in self.weights.items()
            if name.startswith("model.multi_modal_projector.")
        }

    @staticmethod
    def tokenizer_json(out: Path) -> None:
        added = [{"id": i, "content": token, "special": True} for token, i in SPECIAL.items()]
        file = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": added}
        (out / "tokenizer.json").write_text(json.dumps(file))
        (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 4]}))

    @staticmethod
    def added_tokens(out: Path) -> None:
        (out / "vocab.json").write_text(json.dumps({"a": 0}))
        (out / "merges.txt").write_text("#version: 0.2\n")
        (out / "added_tokens.json").write_text(json.dumps(SPECIAL))
        (out / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 4]}))

    @staticmethod
    def write(out: Path, config: dict[str, Any], weights: dict[str, np.ndarray], tokenizer: Callable) -> Path:
        out.mkdir(parents=True)
        (out / "config.json").write_text(json.dumps(config))
        save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, out / "model.safetensors")
        tokenizer(out)
        return out


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def make_writer(golden) -> Callable[[str], CheckpointWriter]:
    return lambda case: CheckpointWriter(golden, case)
