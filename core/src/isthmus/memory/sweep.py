"""Compiles a graph set in the configurations that practitioners try, and tabulates what each costs in memory.

Which they are is the backend's: ``MemoryRules.configurations``. The numbers of the results are compared too, where
there is a device to run on: fewer buffers must not change them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from .. import api
from ..artifact import Artifact
from ..errors import InputError, UnsupportedError
from ..graphset import GraphSet
from ..registry import registry
from ..types import DType, MemoryRequirements, TensorSpec

Array = NDArray[Any]


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
    """Largest difference of any output from the first configuration, over the largest output; ``None`` without a device."""


def sweep_memory(
    backend: str,
    source: GraphSet,
    *,
    target: str | None = None,
    options: Mapping[str, object] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> list[SweepRow]:
    """Compile ``source`` once per configuration and compare. ``options`` are further compile options, the same for all.

    ``device`` (``"ascend"``, ``"ascend:0"``) runs each on the same random inputs. ``UnsupportedError``: the compiler has
    nothing to sweep. ``InputError``: ``options`` has one of those that are swept.
    """
    configurations = registry().backend(backend).memory_rules.configurations
    if not configurations:
        raise UnsupportedError(f"the compiler of {backend} has no options that trade memory", fix="isthmus size MODEL")
    given = dict(options or {})
    if taken := sorted(given.keys() & {k for c in configurations.values() for k in c}):
        raise InputError(f"options {taken} are what the sweep varies")
    rows: list[SweepRow] = []
    reference: dict[str, dict[str, Array]] | None = None
    with tempfile.TemporaryDirectory(prefix="isthmus-sweep-") as scratch:
        for number, (name, changes) in enumerate(configurations.items()):
            artifact = api.compile(
                backend, source, Path(scratch) / str(number), target=target, options={**given, **changes}
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
    results: Mapping[str, Mapping[str, Array]] | None,
    reference: Mapping[str, Mapping[str, Array]] | None,
) -> SweepRow:
    far = None
    if results is not None and reference is not None:
        far = max((_far(results[entry][n], want) for n, want in reference[entry].items()), default=0.0)
    return SweepRow(configuration, entry, memory.workspace[entry], memory.weights, far)


def _far(got: Array, want: Array) -> float:
    wide, base = got.astype(np.float64), want.astype(np.float64)
    return float(np.max(np.abs(wide - base), initial=0) / max(np.max(np.abs(base), initial=0), 1e-30))


def _run(device: str, artifact: Artifact, seed: int) -> dict[str, dict[str, Array]]:
    rng = np.random.default_rng(seed)
    with api.open_device(device) as opened, opened.load(artifact) as program:
        return {
            entry: program.run(entry, {t.name: _random(t, rng) for t in spec.inputs})
            for entry, spec in artifact.entries.items()
        }


def _random(spec: TensorSpec, rng: np.random.Generator) -> Array:
    """Small normal floats; integers 0, which is a valid index everywhere."""
    if spec.dtype in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64):
        return (0.1 * rng.standard_normal(spec.shape)).astype(spec.dtype.numpy)
    return np.zeros(spec.shape, spec.dtype.numpy)
