"""Opens a checkpoint of any supported kind."""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError, UnsupportedError
from .checkpoint import Checkpoint
from .config import Config
from .gguf_checkpoint import open_gguf
from .internvl import open_native, open_remote
from .text_only import open_text


def open_checkpoint(path: Path, *, tiles_per_call: int = 1) -> Checkpoint:
    """Read what is needed to plan an export of a checkpoint directory or a ``.gguf`` file.

    ``InputError`` for what is damaged, missing or contradictory; ``UnsupportedError`` for a model this version does not
    build. Both name the key or tensor.
    """
    if path.is_file() and path.suffix == ".gguf":
        return open_gguf(path)
    if not path.is_dir():
        raise InputError(
            f"{path} is not a checkpoint", fix="give the directory that holds config.json, or a .gguf file"
        )
    config = Config.load(path / "config.json")
    kind = config.text("model_type")
    if config.get("quantization_config"):
        raise UnsupportedError(
            f"{config.where}: quantization_config of method {config.section('quantization_config').get('quant_method')!r}",
            fix="use the unquantised checkpoint; quantise when compiling",
        )
    if kind == "internvl":
        return open_native(path, config, tiles_per_call)
    if kind == "internvl_chat":
        return open_remote(path, config, tiles_per_call)
    return open_text(path, config)
