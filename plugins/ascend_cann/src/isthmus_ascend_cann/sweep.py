"""Compiles a graph set in the three configurations that practitioners try, and tabulates what each costs in memory.

The numbers of the results are compared too, where there is a device to run on: fewer buffers must not change them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
from isthmus import api
from isthmus.artifact import Artifact
from isthmus.errors import InputError
from isthmus.graphset import GraphSet
from isthmus.types import DType, MemoryRequirements, TensorSpec

CONFIGURATIONS: Mapping[str, Mapping[str, object]] = {
    "all off": {"buffer_optimize": "off_optimize", "disable_reuse_memory": True},
    "buffer_optimize only": {"buffer_optimize": "l2_optimize", "disable_reuse_memory": True},
    "all on": {"buffer_optimize": "l2_optimize", "disable_reuse_memory": False},
}


@attrs.frozen
class SweepRow:
    """One entry in one configuration."""

    configuration: str
    entry: str
    work_size: int
    """Bytes of workspace."""
    weight_size: int
    """Bytes of the weights of all entries together."""
    difference: float | None
    """Largest difference of any output from ``all off``, over the largest output; ``None`` without a device."""


def sweep_memory(
    source: GraphSet,
    *,
    target: str | None = None,
    options: Mapping[str, object] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> list[SweepRow]:
    """Compile ``source`` three times and compare. ``options`` are further compile options, the same for all three.

    ``device`` (``"ascend"``, ``"ascend:0"``) runs each on the same random inputs. ``InputError``: ``options`` has one of
    those that are swept.
    """
    given = dict(options or {})
    if taken := sorted(given.keys() & {k for c in CONFIGURATIONS.values() for k in c}):
        raise InputError(f"options {taken} are what the sweep varies")
    rows: list[SweepRow] = []
    reference: dict[str, dict[str, np.ndarray]] | None = None
    with tempfile.TemporaryDirectory(prefix="isthmus-sweep-") as scratch:
        for number, (name, changes) in enumerate(CONFIGURATIONS.items()):
            artifact = api.compile(
                "ascend", source, Path(scratch) / str(number), target=target, options={**given, **changes}
            )
            results = None if device is None else _run(device, artifact, seed)
            reference = reference or results
            memory = artifact.manifest.memory
            rows += [_row(name, entry, memory, results, reference) for entry in artifact.entries]
    return rows


def _row(
    configuration: str,
    entry: str,
    memory: MemoryRequirements,
    results: Mapping[str, Mapping[str, np.ndarray]] | None,
    reference: Mapping[str, Mapping[str, np.ndarray]] | None,
) -> SweepRow:
    far = None
    if results is not None and reference is not None:
        far = max((_far(results[entry][n], want) for n, want in reference[entry].items()), default=0.0)
    return SweepRow(configuration, entry, memory.workspace[entry], memory.weights, far)


def _far(got: np.ndarray, want: np.ndarray) -> float:
    wide, base = got.astype(np.float64), want.astype(np.float64)
    return float(np.max(np.abs(wide - base), initial=0) / max(np.max(np.abs(base), initial=0), 1e-30))


def _run(device: str, artifact: Artifact, seed: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    with api.open_device(device) as opened, opened.load(artifact) as program:
        return {
            entry: program.run(entry, {t.name: _random(t, rng) for t in spec.inputs})
            for entry, spec in artifact.entries.items()
        }


def _random(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """Small normal floats; integers 0, which is a valid index everywhere."""
    if spec.dtype in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        return (0.1 * rng.standard_normal(spec.shape)).astype(spec.dtype.numpy)
    return np.zeros(spec.shape, spec.dtype.numpy)
