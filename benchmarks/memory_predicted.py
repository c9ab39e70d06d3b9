"""Predicted against measured memory for twelve configurations, as a table in Markdown.

    python benchmarks/memory_predicted.py [--only small] [--directory DIR]

Each model is planned from its ``config.json`` alone and from the compiled artifact; then it answers a question with a
picture in a process of its own. On ``cpu`` the growth of that process is measured (its shared libraries left out, after
another model has warmed them up), on the simulated Ascend the drop of the device's free memory.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from isthmus import Artifact, compile, open_device
from isthmus.memory.plan import Use, make_plan, of_artifact
from isthmus.memory.plan_model import Compiler, Shape, of_checkpoint
from isthmus.memory.plan_shapes import read_shapes
from isthmus.models.export import export
from isthmus.options import parse_options
from isthmus.pipeline import Pipeline
from isthmus.registry import registry
from isthmus_tiny_internvl import CHECKPOINT, EVALUATION
from safetensors.numpy import load_file, save_file

MODELS = {"tiny": None, "small": (512, 8, 1536, 4096), "medium": (896, 8, 4864, 16384)}
"""Hidden size, layers, feed-forward size and vocabulary of the language model; ``None`` is the bundled checkpoint."""
CONTEXTS = {"tiny": (128, 256), "small": (256, 1024), "medium": (256, 1024)}
BACKENDS = ("cpu", "ascend")
USE = Use(conversations=1, images=1)
HEAD, KV_HEADS = 64, 2
_TEXT = "language_model."


def make_checkpoint(name: str, directory: Path) -> Path:
    """The bundled checkpoint, or one like it whose language model has other dimensions and random weights."""
    shape, out = MODELS[name], directory / name
    if shape is None:
        return CHECKPOINT
    shutil.copytree(CHECKPOINT, out)
    hidden, layers, ffn, vocab = shape
    config = json.loads((out / "config.json").read_text("utf-8"))
    config["text_config"] |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
    }
    (out / "config.json").write_text(json.dumps(config), "utf-8")
    weights = load_file(out / "model.safetensors")
    save_file(_resized(weights, hidden, layers, ffn, vocab), out / "model.safetensors")
    return out


def _resized(weights: dict[str, Any], hidden: int, layers: int, ffn: int, vocab: int) -> dict[str, Any]:
    """Random tensors in place of those whose shape depends on the language model."""
    kv = KV_HEADS * HEAD
    shapes = {
        r"embed_tokens\.weight|lm_head\.weight": (vocab, hidden),
        r"(q_proj|o_proj)\.weight|linear_2\.weight": (hidden, hidden),
        r"(k_proj|v_proj)\.weight": (kv, hidden),
        r"(k_proj|v_proj)\.bias": (kv,),
        r"(gate_proj|up_proj)\.weight": (ffn, hidden),
        r"down_proj\.weight": (hidden, ffn),
        r"linear_1\.weight": (hidden, -1),
        r"q_proj\.bias|norm\.weight|layernorm\.weight|linear_[12]\.bias": (hidden,),
    }
    made, rng = {}, np.random.default_rng(0)
    for name, old in weights.items():
        layer = re.search(r"language_model\.(?:model\.)?layers\.(\d+)\.", name)
        text = _TEXT in name or name.endswith("lm_head.weight") or "multi_modal_projector.linear" in name
        shape = next((s for p, s in shapes.items() if text and re.search(rf"(?:^|\.)(?:\w*)(?:{p})$", name)), None)
        if shape is None:
            made[name] = old
        elif layer is None or layer[1] == "0":
            names = [re.sub(r"layers\.0\.", f"layers.{i}.", name) for i in range(layers)] if layer else [name]
            full = tuple(old.shape[-1] if n < 0 else n for n in shape)
            made |= {n: (rng.standard_normal(full, np.float32) * 0.02).astype(old.dtype) for n in names}
    return made


def measure(checkpoint: Path, backend: str, context: int, directory: Path) -> dict[str, Any]:
    """Plan, build, run in a child; all figures in bytes."""
    plugin = registry().backend(backend)
    target = plugin.targets()[0]
    rules, options = plugin.memory_rules, parse_options(plugin.compile_options, {}, "option")
    compiler = Compiler(rules, target, options, plugin.dialect(target))
    shapes = read_shapes(checkpoint)
    early = make_plan(of_checkpoint(shapes, Shape(contexts=(context,)), compiler), USE, rules)
    graphs = export(checkpoint, directory / "graphs", dialect=compiler.dialect, contexts=(context,))
    artifact = compile(backend, graphs, directory / "artifact", target=target)
    late = make_plan(of_artifact(artifact), USE, rules)
    child = [sys.executable, __file__, "--child", backend, str(artifact.path)]
    seen = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    return {"checkpoint": early.run_peak, "artifact": late.run_peak, "measured": seen}


def child(backend: str, path: Path) -> int:
    """Bytes that loading and answering take."""
    artifact = Artifact.open(path)
    with open_device(backend, options={"threads": 1} if backend == "cpu" else {}) as device, ExitStack() as stack:
        if backend == "cpu":
            warm_up(device, stack)
        before = resident() if backend == "cpu" else device.memory_info().free or 0
        answer(device, artifact, stack)
        return resident() - before if backend == "cpu" else before - (device.memory_info().free or 0)


def answer(device: Any, artifact: Artifact, stack: ExitStack) -> None:
    """One question with a picture; everything stays open until ``stack`` closes."""
    pipeline = stack.enter_context(Pipeline.load(device, artifact))
    chat = stack.enter_context(pipeline.chat())
    chat.ask("What is in the picture?", [picture()], max_new_tokens=4)


def warm_up(device: Any, stack: ExitStack) -> None:
    """Touch the runtime's code with another model, and keep that: memory it gave back would be used again unseen."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    graphs = export(CHECKPOINT, directory / "graphs", contexts=(160,))
    answer(device, compile("cpu", graphs, directory / "artifact"), stack)


def picture() -> Path:
    """A bundled one."""
    return min((EVALUATION / "images").glob("caption_*.png"))


def resident() -> int:
    """Bytes resident in this process but for shared libraries and for the embedding table, which is mapped."""
    total, counted = 0, True
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counted = ".so" not in line and "embedding.bin" not in line
        elif line.startswith("Rss:") and counted:
            total += int(line.split()[1]) * 1024
    return total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--directory", type=Path, help="where to build; default: a temporary directory")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        print(child(arguments.child[0], Path(arguments.child[1])))
        return
    os.environ["ISTHMUS_ASCEND_SIMULATOR"] = "1"
    print("| model | backend | context | planned from config.json | planned from the artifact | measured | error |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for name in [arguments.only] if arguments.only else MODELS:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
            checkpoint = make_checkpoint(name, Path(temporary))
            for backend in BACKENDS:
                for context in CONTEXTS[name]:
                    work = Path(temporary, f"{backend}_{context}")
                    found = measure(checkpoint, backend, context, work)
                    shutil.rmtree(work)
                    cells = [f"{found[k] / 2**20:.2f} MiB" for k in ("checkpoint", "artifact", "measured")]
                    errors = [f"{found[k] / found['measured'] - 1:+.1%}" for k in ("checkpoint", "artifact")]
                    print("|", " | ".join([name, backend, str(context), *cells, " / ".join(errors)]), "|", flush=True)


if __name__ == "__main__":
    main()
