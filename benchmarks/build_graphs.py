"""What building a graph set costs: peak memory, processor time and bytes, for a checkpoint of a real model's shape.

    python benchmarks/build_graphs.py --shape internvl3-1b [--dtype float16] [--work DIR] [--limit 1.3]

The checkpoint is random numbers in bfloat16 in OpenGVLab's layout, with a random tokenizer; only its shape is real. The
build runs in a child process, whose peak resident set counts mapped file pages too. Prints JSON; exit code 1 if
``peak_over_weights`` is above ``--limit``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

VISION_300M = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 448,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "norm_type": "layer_norm",
    "qkv_bias": True,
    "qk_normalization": False,
    "hidden_act": "gelu",
}
SHAPES: dict[str, dict[str, Any]] = {
    # dimensions: facts/internvl.md section 1, from the published configurations
    "internvl3-1b": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151674,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
    },
    "internvl2-2b": {
        "architectures": ["InternLM2ForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 92553,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="internvl2-2b")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--work", type=Path, help="directory for the files, needs 3 to 4 times the checkpoint's size")
    parser.add_argument("--limit", type=float, default=1.3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        checkpoint = Path(work) / "checkpoint"
        write_checkpoint(checkpoint, SHAPES[arguments.shape])
        result = measure(checkpoint, Path(work) / "set", arguments.dtype)
    result = {"shape": arguments.shape, "dtype": arguments.dtype, **result}
    print(json.dumps(result, indent=1))
    return 0 if result["peak_over_weights"] <= arguments.limit else 1


def measure(checkpoint: Path, out: Path, dtype: str) -> dict[str, Any]:
    """Export in a child process and ask the kernel what it used."""
    code = (
        "import sys; from pathlib import Path; from isthmus.models.export import export\n"
        f"export(Path({str(checkpoint)!r}), Path({str(out)!r}), dtype={dtype!r})"
    )
    start = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", code])
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"export failed with status {status}")
    weights = sum(f.stat().st_size for f in checkpoint.glob("*.safetensors"))
    written = sum(f.stat().st_size for f in out.iterdir())
    peak = usage.ru_maxrss * 1024
    cpu = usage.ru_utime + usage.ru_stime
    return {
        "weight_bytes": weights,
        "written_bytes": written,
        "peak_resident_bytes": peak,
        "peak_over_weights": round(peak / weights, 3),
        "cpu_seconds": round(cpu, 2),
        "cpu_seconds_per_weight_gb": round(cpu / weights * 1e9, 2),
        "wall_seconds": round(time.monotonic() - start, 2),
    }


def write_checkpoint(directory: Path, llm: dict[str, Any]) -> None:
    directory.mkdir()
    config = {
        "model_type": "internvl_chat",
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "template": "internvl2_5",
        "force_image_size": 448,
        "llm_config": {**llm, "max_position_embeddings": 32768},
        "vision_config": VISION_300M,
    }
    added = {"<|im_end|>": 0, "<img>": 1, "</img>": 2, "<IMG_CONTEXT>": 3}
    files = {"config.json": config, "vocab.json": {}, "added_tokens.json": added}
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    (directory / "merges.txt").write_text("")
    write_safetensors(directory / "model.safetensors", {**vision_shapes(llm["hidden_size"]), **llm_shapes(llm)})


def vision_shapes(text_hidden: int) -> dict[str, tuple[int, ...]]:
    h, ffn = VISION_300M["hidden_size"], VISION_300M["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.class_embedding": (1, 1, h),
        "vision_model.embeddings.position_embedding": (1, 1025, h),
        "vision_model.embeddings.patch_embedding.weight": (h, 3, 14, 14),
        "vision_model.embeddings.patch_embedding.bias": (h,),
        "mlp1.0.weight": (4 * h,),
        "mlp1.0.bias": (4 * h,),
        "mlp1.1.weight": (text_hidden, 4 * h),
        "mlp1.1.bias": (text_hidden,),
        "mlp1.3.weight": (text_hidden, text_hidden),
        "mlp1.3.bias": (text_hidden,),
    }
    for i in range(VISION_300M["num_hidden_layers"]):
        at = f"vision_model.encoder.layers.{i}."
        shapes |= {
            f"{at}{name}": (h,) for name in ("ls1", "ls2", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
        }
        for name, rows, width in (
            ("attn.qkv", 3 * h, h),
            ("attn.proj", h, h),
            ("mlp.fc1", ffn, h),
            ("mlp.fc2", h, ffn),
        ):
            shapes |= {f"{at}{name}.weight": (rows, width), f"{at}{name}.bias": (rows,)}
    return shapes


def llm_shapes(llm: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, ffn, vocab = llm["hidden_size"], llm["intermediate_size"], llm["vocab_size"]
    dim = h // llm["num_attention_heads"]
    kv = llm["num_key_value_heads"] * dim
    fused = llm["architectures"] == ["InternLM2ForCausalLM"]
    at = "language_model.model."
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}{'tok_embeddings' if fused else 'embed_tokens'}.weight": (vocab, h),
        f"{at}norm.weight": (h,),
        f"language_model.{'output' if fused else 'lm_head'}.weight": (vocab, h),
    }
    if fused:
        layer = {
            "attention.wqkv": (h + 2 * kv, h),
            "attention.wo": (h, h),
            "feed_forward.w1": (ffn, h),
            "feed_forward.w2": (h, ffn),
            "feed_forward.w3": (ffn, h),
        }
        norms = ("attention_norm", "ffn_norm")
    else:
        layer = {"self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h)}
        layer |= {
            "self_attn.o_proj": (h, h),
            "mlp.gate_proj": (ffn, h),
            "mlp.up_proj": (ffn, h),
            "mlp.down_proj": (h, ffn),
        }
        norms = ("input_layernorm", "post_attention_layernorm")
    for i in range(llm["num_hidden_layers"]):
        shapes |= {f"{at}layers.{i}.{name}.weight": shape for name, shape in layer.items()}
        shapes |= {f"{at}layers.{i}.{name}.weight": (h,) for name in norms}
        if not fused:
            shapes |= {f"{at}layers.{i}.self_attn.{x}_proj.bias": (h if x == "q" else kv,) for x in "qkv"}
    return shapes


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """One block of random numbers, repeated: the file is real, the generator is not what is measured."""
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = (np.random.default_rng(0).standard_normal(1 << 22) * 0.02).astype(ml_dtypes.bfloat16).tobytes()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, offset, len(block)):
            file.write(block[: offset - start])


if __name__ == "__main__":
    sys.exit(main())
