"""Where the bundled checkpoint and its evaluation set are on disk."""

from pathlib import Path

_HERE = Path(__file__).parent

CHECKPOINT = _HERE / "checkpoint"
EVALUATION = _HERE / "eval"
