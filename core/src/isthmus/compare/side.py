"""One side of a comparison: a compiled model on a device, which runs cases and shows inner tensors."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from .. import api
from ..artifact import Artifact
from ..buffer import Buffer, as_array
from ..device import Device
from ..errors import CompileError
from ..graphset import GraphSet
from ..program import Program
from ..types import EntrySpec, Reality
from .cases import Arrays, Case, fitted
from .taps import tapped

_UNTAPPABLE = 8
"""Tensors a compiler may refuse to show before the refusal must have another reason."""


@attrs.frozen
class Steadiness:
    """Whether a call gives the same bits again."""

    repeats: bool
    """Run 1 and run 2, right after it, agree; output buffers held different garbage before each."""
    forgets: bool
    """So does a run after one with other inputs: nothing old is left in a buffer or in the device."""


@attrs.frozen(eq=False)
class Ran:
    """Outputs of one case."""

    outputs: Arrays
    steadiness: Steadiness


class Side:
    """Owns the device and what is loaded on it until ``close``. A context manager."""

    def __init__(self, device: Device, artifact: Artifact, graphs: GraphSet | None) -> None:
        """Takes over ``device``. ``graphs`` are what ``artifact`` was compiled from; without them there are no taps."""
        self.artifact, self.graphs, self.device = artifact, graphs, device
        self._scratch = Path(tempfile.mkdtemp(prefix="isthmus-compare-"))
        self._made = 0
        self.untappable: set[str] = set()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._scratch)
            stack.enter_context(device)
            self.program = stack.enter_context(device.load(artifact))
            self._open = stack.pop_all()

    @property
    def label(self) -> str:
        """Device and target."""
        return f"{self.device.info.id} {self.artifact.manifest.target}"

    def identity(self) -> dict[str, Any]:
        """What a report says of where its figures come from, JSON-ready."""
        manifest, info = self.artifact.manifest, self.device.info
        order = (Reality.REAL, Reality.EMULATED, Reality.SIMULATED)
        return {
            "backend": info.backend,
            "device": info.id,
            "description": info.description,
            "reality": max(info.reality, manifest.reality, key=order.index).value,
            "target": manifest.target,
            "isthmus": manifest.isthmus,
            "plugin": manifest.plugin,
            "toolchain": dict(manifest.toolchain),
            "options": {k: str(v) for k, v in manifest.options.items()},
            "dialect": manifest.dialect,
            "source_sha256": manifest.source_sha256,
            "graphs_sha256": manifest.graphs_sha256,
        }

    def run(self, case: Case) -> Ran:
        """Run ``case`` three times, the last after a call with zeros for inputs."""
        spec = self.program.entry(case.entry)
        inputs = fitted(case, spec)
        zeros = {name: np.zeros_like(array) for name, array in inputs.items()}
        with _Call(self.program, case.entry, spec) as call:
            first, second = call(inputs, 0xA5), call(inputs, 0x5A)
            call(zeros, 0xFF)
            third = call(inputs, 0xFF)
        return Ran(first, Steadiness(_same(first, second), _same(first, third)))

    def taps(self, entry: str, names: Sequence[str], cases: Sequence[Case]) -> dict[str, Arrays]:
        """Tensors ``names`` of ``entry``, by case name, and the graph's own outputs as they are with these taps.

        A tensor that the compiler cannot make an output of, being inside something it fuses, is left out and kept
        in ``untappable``.
        """
        wanted = [name for name in names if name not in self.untappable]
        try:
            return self._run_tapped(entry, wanted, cases)
        except CompileError:
            if len(wanted) < 2:
                self.untappable.update(wanted)
                if len(self.untappable) > _UNTAPPABLE:
                    raise
                return {case.name: {} for case in cases}
        halves = [self.taps(entry, half, cases) for half in (wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :])]
        return {case.name: halves[0][case.name] | halves[1][case.name] for case in cases}

    def _run_tapped(self, entry: str, names: Sequence[str], cases: Sequence[Case]) -> dict[str, Arrays]:
        assert self.graphs is not None
        self._made += 1
        made = tapped(self.graphs, entry, names, self._scratch / "graphs")
        manifest = self.artifact.manifest
        artifact = api.compile(
            manifest.backend,
            made,
            self._scratch / f"artifact{self._made}",
            target=manifest.target,
            options=manifest.options,
        )
        with self.device.load(artifact) as program:
            spec = program.entry(entry)
            return {case.name: program.run(entry, fitted(case, spec)) for case in cases}

    def close(self) -> None:
        """Unload, close the device, remove scratch files. Safe to call twice."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Call:
    """Buffers of one entry, bound once and filled anew for every run."""

    def __init__(self, program: Program, entry: str, spec: EntrySpec) -> None:
        self._spec = spec
        with ExitStack() as stack:
            self._inputs: dict[str, Buffer] = {}
            self._outputs: dict[str, Buffer] = {}
            for side, tensors in ((self._inputs, spec.inputs), (self._outputs, spec.outputs)):
                for t in tensors:
                    side[t.name] = stack.enter_context(program.device.allocate(t.nbytes))
            self._binding = stack.enter_context(program.bind(entry, self._inputs, self._outputs))
            self._open = stack.pop_all()

    def __call__(self, inputs: Mapping[str, NDArray[Any]], garbage: int) -> Arrays:
        """Run with output buffers that held bytes of value ``garbage``."""
        for name, array in inputs.items():
            self._inputs[name].write(array)
        for t in self._spec.outputs:
            self._outputs[t.name].write(bytes([garbage]) * t.nbytes)
        self._binding.execute()
        return {t.name: as_array(self._outputs[t.name].read(t.nbytes), t) for t in self._spec.outputs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()


def _same(a: Arrays, b: Arrays) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in a)
