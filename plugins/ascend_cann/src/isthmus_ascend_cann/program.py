"""Programs: one AscendCL model per ``.om``, in weights and workspace memory given to it.

Weights and workspace are always explicit memory, the caller's or ours. The entries of a program never run at once, so
one workspace of the largest serves all of them; equal weights of several models are one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError, IsthmusError, UnsupportedError
from isthmus.spi import Region
from isthmus.types import EntrySpec, TensorSpec

from . import _abi, _lib, sizes
from ._lib import Acl
from .memory import Block
from .om import DTYPES
from .plan import EXTERNAL, ModelPlan, ProgramPlan

Write = Callable[[Region, memoryview], None]
"""Copies host bytes into device memory."""
_CHUNK = 4 << 20
_NO_MODEL = 0xFFFFFFFF


@attrs.frozen
class Gate:
    """The input through which a model is told its gear."""

    index: int
    size: int


@attrs.define(eq=False)
class Model:
    """A loaded model."""

    id: int
    plan: ModelPlan
    gate: Gate | None = None
    """Where it has gears."""
    input_sizes: tuple[int, ...] = ()
    """Bytes of each input, of the largest gear; without the gate."""
    output_sizes: tuple[int, ...] = ()


@attrs.define(eq=False)
class Program:
    """A loaded artifact. ``owned`` is the memory that was allocated for it here."""

    plan: ProgramPlan
    specs: Mapping[str, EntrySpec]
    models: dict[str, Model] = attrs.field(factory=dict)
    owned: list[Block] = attrs.field(factory=list)


def query_sizes(acl: Acl, file: Path) -> tuple[int, int]:
    """Work and weight size of an ``.om``, as the runtime states them."""
    work, work_out = _lib.new(_lib.SIZE)
    weights, weights_out = _lib.new(_lib.SIZE)
    acl.aclmdlQuerySize(_path(file), work_out, weights_out)
    return work.value, weights.value


def load_model(acl: Acl, artifact: Artifact, name: str, plan: ProgramPlan, weights: int, workspace: int) -> Model:
    """Load one ``.om`` into given memory: device addresses of the weights block and of the workspace."""
    model = plan.models[name]
    inside = weights + plan.weights.offset[model.weights_sha256] if model.weight_size else None
    memory = (workspace if model.work_size else None, model.work_size, inside, model.weight_size)
    number, out = _lib.new(_lib.UINT32)
    number.value = _NO_MODEL
    file = _path(artifact.file(name))
    try:
        if model.external:
            _load_external(acl, file, plan, model, weights, memory, out)
        else:
            acl.aclmdlLoadFromFileWithMem(file, out, *memory)
    except IsthmusError:
        if number.value != _NO_MODEL:  # loaded, and then the configuration could not be released
            acl.aclmdlUnload(number.value)
        raise
    return Model(number.value, model)


def fill_external(acl: Acl, artifact: Artifact, plan: ProgramPlan, weights: Region, write: Write) -> None:
    """Fill the places of external weights: memory that is given to AscendCL for them is taken as filled."""
    if plan.external and not acl.has("aclmdlSetExternalWeightAddress"):
        raise UnsupportedError(
            "this CANN cannot take external weights from memory given to it",
            why=f"{acl.path} has no aclmdlSetExternalWeightAddress, which came after CANN 8.1",
            fix="compile with external_weight=inside, or update CANN",
        )
    for file in plan.external:
        at = weights.offset + plan.weights.offset[file]
        with artifact.file(f"{EXTERNAL}/{file}").open("rb") as content:
            while chunk := content.read(_CHUNK):
                write(Region(weights.handle, at, len(chunk)), memoryview(chunk))
                at += len(chunk)


def _load_external(
    acl: Acl, file: bytes, plan: ProgramPlan, model: ModelPlan, weights: int, memory: Sequence[int | None], out: object
) -> None:
    values = [
        (_abi.ACL_MDL_LOAD_TYPE_SIZET, _lib.variable(_lib.SIZE, _abi.ACL_MDL_LOAD_FROM_FILE_WITH_MEM)),
        (_abi.ACL_MDL_PATH_PTR, _lib.variable(_lib.TEXT, file)),
        (_abi.ACL_MDL_WORKSPACE_ADDR_PTR, _lib.variable(_lib.POINTER, memory[0])),
        (_abi.ACL_MDL_WORKSPACE_SIZET, _lib.variable(_lib.SIZE, memory[1])),
        (_abi.ACL_MDL_WEIGHT_ADDR_PTR, _lib.variable(_lib.POINTER, memory[2])),
        (_abi.ACL_MDL_WEIGHT_SIZET, _lib.variable(_lib.SIZE, memory[3])),
    ]
    config = acl.aclmdlCreateConfigHandle()
    try:
        for attribute, (_, address, size) in values:  # values go by address, pointers too
            acl.aclmdlSetConfigOpt(config, attribute, address, size)
        for name in model.external:
            place = weights + plan.weights.offset[name]
            acl.aclmdlSetExternalWeightAddress(config, name.encode(), place, sizes.up(plan.external[name], 32))
        acl.aclmdlLoadWithConfig(config, out)
    finally:
        acl.aclmdlDestroyConfigHandle(config)


def _path(file: Path) -> bytes:
    return str(file.absolute()).encode()


def check_model(acl: Acl, model: Model, name: str, program: Program) -> None:
    """Compare the loaded model with the entries; finds the gear input. ``IncompatibleError`` names the difference."""
    with _description(acl, model.id) as desc:
        names = [_text(acl.aclmdlGetInputNameByIndex(desc, i)) for i in range(acl.aclmdlGetNumInputs(desc))]
        hidden = _abi.ACL_DYNAMIC_TENSOR_NAME.decode()
        if model.plan.gear_kind is not None:
            if hidden not in names:
                raise IncompatibleError(f"{name} has no gear input {hidden}", fix="compile the artifact again")
            index = names.index(hidden)
            model.gate = Gate(index, acl.aclmdlGetInputSizeByIndex(desc, index))
        places = [i for i, n in enumerate(names) if n != hidden]
        inputs = [
            (names[i], acl.aclmdlGetInputDataType(desc, i), acl.aclmdlGetInputSizeByIndex(desc, i)) for i in places
        ]
        outputs = [
            ("", acl.aclmdlGetOutputDataType(desc, i), acl.aclmdlGetOutputSizeByIndex(desc, i))
            for i in range(acl.aclmdlGetNumOutputs(desc))
        ]
    model.input_sizes = tuple(size for _, _, size in inputs)
    model.output_sizes = tuple(size for _, _, size in outputs)
    for entry, plan in program.plan.entries.items():
        if plan.model == name:
            spec = program.specs[entry]
            _compare(entry, "input", spec.inputs, inputs, largest=plan.gear is not None)
            _compare(entry, "output", spec.outputs, outputs, largest=plan.gear is not None)


def _compare(
    entry: str, kind: str, want: Sequence[TensorSpec], have: Sequence[tuple[str, int, int]], *, largest: bool
) -> None:
    """Name (of an input; outputs get names of ATC's), element type and bytes; with gears, of the largest one."""
    again = "compile the artifact again"
    if len(want) != len(have):
        raise IncompatibleError(f"entry {entry!r} states {len(want)} {kind}s, the .om has {len(have)}", fix=again)
    for spec, (name, dtype, size) in zip(want, have):
        wrong = []
        if name and name != spec.name:
            wrong.append(f"is named {name!r}")
        if DTYPES.get(dtype) is not spec.dtype:
            wrong.append(f"has aclDataType {dtype}")
        if size < spec.nbytes if largest else size != spec.nbytes:
            wrong.append(f"takes {size} bytes")
        if wrong:
            raise IncompatibleError(f"{kind} {spec} of entry {entry!r} {' and '.join(wrong)} in the .om", fix=again)


@contextmanager
def _description(acl: Acl, model: int) -> Iterator[int]:
    desc = acl.aclmdlCreateDesc()
    try:
        acl.aclmdlGetDesc(desc, model)
        yield desc
    finally:
        acl.aclmdlDestroyDesc(desc)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", errors="replace")
