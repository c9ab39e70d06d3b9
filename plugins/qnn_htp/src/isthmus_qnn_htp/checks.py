"""Refuse what does not fit, with both figures, before the library that would crash on it sees a byte."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import attrs
from isthmus.errors import IncompatibleError
from isthmus.types import EntrySpec, Quantization, TensorSpec

from . import _abi
from .binary import ContextBinary, Graph, Tensor
from .layout import ProgramRecord

_RECOMPILE = "compile it again: isthmus compile GRAPHS --backend qnn_htp --target TARGET -o DIR"


@attrs.frozen
class Chip:
    """What a device is. ``soc`` and ``arch`` are ``None`` for an emulator that plays every chip."""

    emulated: bool
    soc: int | None
    arch: int | None
    sdk: str
    """Build id of the runtime."""


def check_record(record: ProgramRecord, chip: Chip, target: str) -> None:
    """Compare what ``program.json`` states with the device. ``IncompatibleError`` names both sides.

    An artifact compiled for an architecture (target ``v75``) runs on every SoC of it, any other on its SoC alone.
    """
    _check_sdk("the artifact", record.sdk, chip.sdk)
    if chip.arch is not None and record.arch != chip.arch:
        raise IncompatibleError(
            f"the artifact is for Hexagon v{record.arch}, the device is v{chip.arch}", fix=_RECOMPILE
        )
    generic = target.lower() == f"v{record.arch}"
    if chip.soc is not None and record.soc != chip.soc and not generic:
        raise IncompatibleError(
            f"the artifact is for SoC {record.soc} (target {target}), the device is SoC {chip.soc}",
            why=f"both are v{record.arch}, but VTCM and clocks differ",
            fix=f"compile it for --target v{record.arch} or for this SoC",
        )


def check_binary(name: str, binary: ContextBinary, record: ProgramRecord, chip: Chip) -> None:
    """Compare a binary's own metadata with ``program.json`` and the device."""
    if binary.backend_id != _abi.QNN_BACKEND_ID_HTP:
        raise IncompatibleError(
            f"{name} is for QNN backend {binary.backend_id}, this is {_abi.QNN_BACKEND_ID_HTP} (HTP)", fix=_RECOMPILE
        )
    _check_sdk(name, binary.sdk, chip.sdk)
    for what, found, stated in (("arch", binary.arch, record.arch), ("SoC", binary.soc, record.soc)):
        if found is not None and found != stated:
            raise IncompatibleError(f"{name} is for {what} {found}, program.json says {stated}", fix=_RECOMPILE)
    if chip.emulated and binary.shared_weights:
        raise IncompatibleError(
            f"{name} has {binary.shared_weights} bytes of weights shared by its graphs, the x86 emulator takes 0",
            why="it dies of SIGSEGV; such a binary is for a chip",
            fix="compile without weight sharing to run on the emulator",
        )


@attrs.frozen
class MatchedGraph:
    """A graph of a binary and the entry it is; tensors in the order of the entry's spec."""

    name: str
    entry: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


def match(
    record: ProgramRecord, binaries: Mapping[str, ContextBinary], entries: Mapping[str, EntrySpec]
) -> dict[str, list[MatchedGraph]]:
    """Graphs per file, matched with the manifest. ``IncompatibleError``: a graph or tensor is not what that states."""
    matched = {}
    for file, binary in binaries.items():
        names = record.binaries[file].graphs
        held = sorted(graph.name for graph in binary.graphs)
        if held != sorted(names):
            raise IncompatibleError(f"{file} holds graphs {held}, program.json says {sorted(names)}")
        matched[file] = [_match_graph(g, names[g.name], entries[names[g.name]]) for g in binary.graphs]
    return matched


def _match_graph(graph: Graph, entry: str, spec: EntrySpec) -> MatchedGraph:
    ids = [tensor.id for tensor in (*graph.inputs, *graph.outputs)]
    if len(set(ids)) != len(ids):
        raise IncompatibleError(f"graph {graph.name!r} of entry {entry!r} has several tensors of one id: {sorted(ids)}")
    return MatchedGraph(
        graph.name,
        entry,
        _match(graph.inputs, spec.inputs, f"inputs of entry {entry!r}"),
        _match(graph.outputs, spec.outputs, f"outputs of entry {entry!r}"),
    )


def _match(tensors: Sequence[Tensor], specs: Sequence[TensorSpec], what: str) -> Sequence[Tensor]:
    found = {tensor.name: tensor for tensor in tensors}
    stated = [spec.name for spec in specs]
    if sorted(stated) != sorted(tensor.name for tensor in tensors):
        raise IncompatibleError(f"{what}: the binary has {sorted(found)}, the manifest {sorted(stated)}")
    for spec in specs:
        _check_tensor(found[spec.name], spec, what)
    return [found[name] for name in stated]


def _check_tensor(tensor: Tensor, spec: TensorSpec, what: str) -> None:
    same_shape = tensor.shape == spec.shape or {tensor.shape, spec.shape} == {(), (1,)}
    if tensor.dtype is not spec.dtype or not same_shape:
        raise IncompatibleError(f"{what}: the binary has {tensor.spec()}, the manifest {spec}", fix=_RECOMPILE)
    if not _same_quantization(tensor.quantization, spec.quantization):
        raise IncompatibleError(
            f"{what}: the binary has {spec.name} with {tensor.quantization}, the manifest with {spec.quantization}",
            fix=_RECOMPILE,
        )


def _same_quantization(a: Quantization | None, b: Quantization | None) -> bool:
    if a is None or b is None:
        return a is b
    scales = len(a.scale) == len(b.scale) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a.scale, b.scale))
    return scales and a.zero_point == b.zero_point and a.axis == b.axis


def _check_sdk(what: str, written_by: str, runtime: str) -> None:
    if _version(written_by) > _version(runtime):
        raise IncompatibleError(
            f"{what} was compiled with QNN {written_by}, the runtime is {runtime}",
            why="a QNN runtime loads binaries of its own and of older releases only",
            fix="install a newer onnxruntime-qnn, or compile with the older one",
        )


def _version(build: str) -> tuple[int, ...]:
    """Release numbers of a build id: (2, 51, 0) of ``v2.51.0.260929181845``."""
    numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", build)
    if numbers is None:
        raise IncompatibleError(f"{build!r} is not a QNN version", why="expected something like 2.51.0")
    return tuple(map(int, numbers.groups()))
