"""What is inside an artifact of ``ascend``: ``.om`` files, external weights, and ``program.json`` that says what they hold.

An entry runs on one model; several entries share one when they are its gears. Weights that several models need are kept
once on the device: external files by their name (the hash of their content), weights inside an ``.om`` by theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import attrs
import cattrs
from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError, InputError
from isthmus.types import EntrySpec, MemoryRequirements

from . import sizes
from .gears import GearKind

PROGRAM = "program.json"
FORMAT = 1
EXTERNAL = "weight"
"""Directory of external weights; its name is ATC's."""


@attrs.frozen
class ModelPlan:
    """One ``.om``."""

    work_size: int
    weight_size: int
    """Inside the file."""
    weights_sha256: str
    """Of the weights inside the file."""
    device_code_size: int
    external: tuple[str, ...]
    """External weight files it reads, below ``weight/``."""
    gear_kind: GearKind | None


@attrs.frozen
class EntryPlan:
    """How one entry runs."""

    model: str
    """File name of its ``.om``."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """Names in the order of the ``.om``, which calls outputs by names of its own."""
    gear: tuple[int, ...] | None
    """What is set before each execute: the batch, (height, width), or all dimensions of all inputs in order."""


@attrs.frozen
class ProgramPlan:
    """Contents of ``program.json``."""

    soc_version: str
    models: Mapping[str, ModelPlan]
    entries: Mapping[str, EntryPlan]
    external: Mapping[str, int]
    """Size of each external weight file."""

    def write(self, directory: Path) -> None:
        """Write ``program.json`` into ``directory``."""
        fields = {"format": FORMAT, **_CONVERTER.unstructure(self)}
        (directory / PROGRAM).write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", "utf-8")

    @cached_property
    def weights(self) -> WeightsLayout:
        """Where each distinct part of the weights is in the one block for all models."""
        inside = {m.weights_sha256: m.weight_size for m in self.models.values() if m.weight_size}
        starts, total = sizes.offsets([*inside.values(), *self.external.values()])
        keys = [*inside, *self.external]
        return WeightsLayout(dict(zip(keys, starts)), total)

    @property
    def workspace(self) -> int:
        """Scratch for models that never run at once."""
        return max((m.work_size for m in self.models.values()), default=0)

    @property
    def device_code(self) -> int:
        """Kernels that GE puts on the device beside weights and workspace."""
        return sum(m.device_code_size for m in self.models.values())

    def with_sizes(self, found: Mapping[str, tuple[int, int]]) -> ProgramPlan:
        """The plan with the work and weight sizes that the runtime reports, by file name."""
        models = {
            name: attrs.evolve(model, work_size=found[name][0], weight_size=found[name][1])
            for name, model in self.models.items()
        }
        return attrs.evolve(self, models=models)

    def requirements(self, specs: Mapping[str, EntrySpec]) -> MemoryRequirements:
        """The memory that loading takes."""
        workspace = {name: self.models[entry.model].work_size for name, entry in self.entries.items()}
        total = self.weights.total
        separate = sum(m.weight_size + sum(self.external[f] for f in m.external) for m in self.models.values())
        notes = [
            "not counted: what GE keeps for tasks and streams, and 100 to 300 MiB it takes at the first run (vendor)"
        ]
        if (saved := separate - sum(self._parts())) > 0:
            notes.append(f"weights shared between models save {saved} bytes")
        if any(m.gear_kind for m in self.models.values()):
            notes.append(
                "a binding of a gear that is not the largest takes the inputs and outputs of the largest besides"
            )
        return MemoryRequirements(
            weights=total,
            workspace=workspace,
            io={name: sum(t.nbytes for t in (*s.inputs, *s.outputs)) for name, s in specs.items()},
            exact=True,
            own_load=sizes.charged(total) + sizes.charged(self.workspace) + self.device_code,
            caller_load=self.device_code,
            alignment=sizes.ALIGNMENT,
            notes=tuple(notes),
        )

    def _parts(self) -> list[int]:
        inside = {m.weights_sha256: m.weight_size for m in self.models.values()}
        return [*inside.values(), *self.external.values()]


@attrs.frozen
class WeightsLayout:
    """Offsets in the weights block: by hash for weights inside an ``.om``, by file name for external ones."""

    offset: Mapping[str, int]
    total: int


def read_plan(artifact: Artifact) -> ProgramPlan:
    """Read and check an artifact's ``program.json``.

    ``InputError``: it is damaged. ``IncompatibleError``: of another format, or its entries are not the manifest's.
    """
    path = artifact.file(PROGRAM)
    again = "compile it again: isthmus compile --backend ascend"
    try:
        data = json.loads(path.read_text("utf-8"))
        version = data.pop("format")
        if version != FORMAT:
            raise IncompatibleError(f"{path} is of format {version}; this version reads {FORMAT}", fix=again)
        plan = _CONVERTER.structure(data, ProgramPlan)
    except (ValueError, TypeError, KeyError, AttributeError, cattrs.BaseValidationError) as error:
        raise InputError(f"{path} is damaged: {error}", fix=again) from error
    if plan.entries.keys() != artifact.entries.keys():
        raise IncompatibleError(
            f"{path} has entries {sorted(plan.entries)}, the manifest {sorted(artifact.entries)}", fix=again
        )
    for name, entry in plan.entries.items():
        if entry.model not in plan.models:
            raise IncompatibleError(f"{path} has no model {entry.model!r}", fix=again)
        spec = artifact.entries[name]
        if (entry.inputs, entry.outputs) != _names(spec):
            raise IncompatibleError(
                f"entry {name!r} of {path} takes {entry.inputs} and gives {entry.outputs}, "
                f"the manifest says {_names(spec)[0]} and {_names(spec)[1]}",
                fix=again,
            )
    if unknown := {f for m in plan.models.values() for f in m.external} - plan.external.keys():
        raise IncompatibleError(f"{path} gives no size of {sorted(unknown)}", fix=again)
    return plan


def entry_plan(model: str, spec: EntrySpec, gear: tuple[int, ...] | None) -> EntryPlan:
    """How an entry runs, with its names."""
    return EntryPlan(model, *_names(spec), gear)


def _names(spec: EntrySpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(t.name for t in spec.inputs), tuple(t.name for t in spec.outputs)


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
