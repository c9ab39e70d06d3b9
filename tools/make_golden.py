"""Make the golden data of core/tests/models: tiny random models and what transformers computes with them.

    python tools/make_golden.py core/tests/models/golden
    python tools/make_golden.py core/tests/models/golden --gguf SmolLM2-135M-Instruct.Q4_1.gguf

Needs torch and transformers, see tools/README.md. Each case is a directory with transformers' own ``config.json`` and
``model.safetensors`` and a ``reference.npz`` of float32 results; ``pixels.npy`` is shared by all.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TILES, IMAGE, PATCH = 2, 56, 14
TOKENS = (IMAGE // PATCH // 2) ** 2
CONTEXT_ID = 250
PROMPT = [3, 5, 7, *[CONTEXT_ID] * (TILES * TOKENS), 9, 30, 31, 77, 12]
TEXT_PROMPT = [3, 5, 17, 99, 200, 41, 8, 8, 150, 23, 61]
STEPS = 8
MARGIN = 1e-2
"""Smallest top-1/top-2 distance of a greedy step: equal tokens must not be luck."""

TEXT = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": [IMAGE, IMAGE],
    "patch_size": [PATCH, PATCH],
    "attention_bias": True,
    "layer_norm_eps": 1e-6,
}
CASES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, Any], dict[str, Any], torch.dtype]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"rms_norm_eps": 1e-6, "theta": 1e6}, {}, torch.float16),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"rms_norm_eps": 1e-6, "theta": 1e6, "head_dim": 16}, {}, torch.bfloat16),
    "llama": (LlamaConfig, LlamaForCausalLM, {"rms_norm_eps": 1e-5, "theta": 1e4}, {}, torch.float16),
    "vit6b": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"rms_norm_eps": 1e-6, "theta": 1e6, "num_key_value_heads": 6},
        {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False},
        torch.float16,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gguf", type=Path, help="make only smollm2.npz, from this file")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if arguments.gguf:
        make_smollm2(arguments.gguf, arguments.out / "smollm2.npz")
        return
    pixels = np.random.default_rng(1).standard_normal((TILES, 3, IMAGE, IMAGE)).astype(np.float16)
    np.save(arguments.out / "pixels.npy", pixels)
    for name in CASES:
        make_case(name, arguments.out / name, torch.tensor(pixels, dtype=torch.float32))


class NarrowMarginError(Exception):
    """A greedy step is nearly a tie."""


def make_case(name: str, out: Path, pixels: torch.Tensor) -> None:
    """The first seed whose greedy steps are all clear."""
    for seed in itertools.count():
        try:
            return make_seed(name, seed, out, pixels)
        except NarrowMarginError as error:
            print(name, "seed", seed, error)


def make_seed(name: str, seed: int, out: Path, pixels: torch.Tensor) -> None:
    text_class, causal_class, text, vision, dtype = CASES[name]
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": text["theta"]}}
    text_config = text_class(**{**TEXT, **theta, **{k: v for k, v in text.items() if k != "theta"}})
    config = InternVLConfig(
        text_config=text_config,
        vision_config=InternVLVisionConfig(**{**VISION, **vision}),
        image_token_id=CONTEXT_ID,
        image_seq_length=TOKENS,
        tie_word_embeddings=False,
        architectures=["InternVLForConditionalGeneration"],
    )
    config._attn_implementation = "eager"
    model = InternVLForConditionalGeneration(config).eval().float()
    randomise(model, seed, dtype)
    results = {"image_features": features(model, pixels)}
    results |= greedy("", lambda ids: model(input_ids=ids, pixel_values=pixels).logits, PROMPT)
    causal = text_only(causal_class, text_config, model, tied=False)
    results |= greedy("text_", lambda ids: causal(input_ids=ids).logits, TEXT_PROMPT)
    causal = text_only(causal_class, text_config, model, tied=True)
    results |= greedy("tied_", lambda ids: causal(input_ids=ids).logits, TEXT_PROMPT)
    out.mkdir(exist_ok=True)
    config.save_pretrained(out)
    save_file({k: v.to(dtype).contiguous() for k, v in model.state_dict().items()}, out / "model.safetensors")
    np.savez_compressed(out / "reference.npz", **results)
    print(name, "seed", seed, {k: v.tolist() for k, v in results.items() if k.endswith("tokens")})


def randomise(model: torch.nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Every parameter matters: norms are not ones, biases not zeros, layer scales not equal. Rounded to ``dtype``."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                value = 1 + 0.2 * noise
            elif "lambda" in name:
                value = 0.5 + 0.2 * noise
            else:
                value = noise * (0.2 if name.endswith("bias") else 0.15)
            parameter.copy_(value.to(dtype).float())


def features(model: Any, pixels: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model.model.get_image_features(pixel_values=pixels).pooler_output.numpy().reshape(TILES, TOKENS, -1)


def text_only(kind: Any, config: Any, model: Any, *, tied: bool) -> Any:
    """The language model alone, with the same weights; ``tied`` uses the embedding as the head."""
    config = kind.config_class(**{**config.to_dict(), "tie_word_embeddings": tied})
    config._attn_implementation = "eager"
    causal = kind(config).eval().float()
    weights = {f"model.{k}": v for k, v in model.model.language_model.state_dict().items()}
    head = weights["model.embed_tokens.weight"] if tied else model.lm_head.weight
    causal.load_state_dict({**weights, "lm_head.weight": head})
    return causal


def greedy(prefix: str, logits_of: Any, prompt: list[int]) -> dict[str, np.ndarray]:
    """Logits after the prompt and after each of STEPS greedy tokens; the whole sequence is fed each time."""
    ids, rows = list(prompt), []
    for _ in range(STEPS + 1):
        with torch.no_grad():
            rows.append(logits_of(torch.tensor([ids]))[0, -1].float().numpy())
        second, first = np.sort(rows[-1])[-2:]
        if first - second < MARGIN:
            raise NarrowMarginError(f"margin {first - second:.4f} at step {len(rows) - 1}")
        ids.append(int(rows[-1].argmax()))
    return {
        f"{prefix}prompt": np.array(prompt),
        f"{prefix}tokens": np.array(ids[len(prompt) : -1]),
        f"{prefix}logits": np.stack(rows).astype(np.float32),
    }


def make_smollm2(path: Path, out: Path) -> None:
    """Greedy answer of the dequantised float32 model, and a sample of the logits at each step."""
    where = {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path.parent, **where, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = tokenizer(text)["input_ids"]
    ids, rows = list(prompt), []
    while ids[-1] != model.config.eos_token_id or len(ids) == len(prompt):
        with torch.no_grad():
            rows.append(model(input_ids=torch.tensor([ids])).logits[0, -1].numpy())
        ids.append(int(rows[-1].argmax()))
    logits = np.stack(rows)
    top = np.argsort(-logits, axis=1)[:, :64]
    np.savez_compressed(
        out,
        tokenizer=json.dumps(tokenised(path)),
        text=text,
        answer=tokenizer.decode(ids[len(prompt) :]),
        prompt=np.array(prompt),
        tokens=np.array(ids[len(prompt) :]),
        top_ids=top,
        top_logits=np.take_along_axis(logits, top, 1),
        sample_logits=logits[:, ::48],
    )
    print(tokenizer.decode(ids[len(prompt) :]), logits.shape)


def tokenised(path: Path) -> dict[str, list[int]]:
    """What llama.cpp makes of texts with digits, spaces, code, accents and special tokens."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    texts = [
        "What is 12345 + 67?",
        "In 2024, it's 3.14 times!\n\n  Tabs\tand   spaces ",
        "def f(x1):\n    return x1**2",
        "Grüße, 世界! 🙂 don't we'll",
        "<|im_start|>user\nhi<|im_end|>\n",
        "½ ² 10² ٣٤",
        " leading",
        "a\r\nb\n\n\nc   \n",
    ]
    return {text: model.tokenize(text.encode(), add_bos=False, special=True) for text in texts}


if __name__ == "__main__":
    main()
