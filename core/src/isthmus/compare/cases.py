"""The inputs of a comparison: from files, at random, or from a real question on the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast
from zipfile import BadZipFile

import attrs
import numpy as np
from numpy.typing import NDArray

from ..buffer import Buffer, View, as_array
from ..errors import InputError
from ..models.description import LlmEntry, ModelDescription
from ..pipeline import Pipeline
from ..pipeline.mask import Mask
from ..pipeline.rope import rope_table
from ..program import Binding, Program
from ..types import EntrySpec, TensorSpec

Arrays = dict[str, NDArray[Any]]


@attrs.frozen(eq=False)
class Case:
    """One call: an entry, a label that tells it from other calls, and arrays by input name."""

    entry: str
    label: str
    inputs: Arrays

    @property
    def name(self) -> str:
        """Unique within a comparison."""
        return f"{self.entry}/{self.label}"


@attrs.frozen(eq=False)
class Spoken:
    """A greedy answer, and the logits [steps, V] each token was chosen from."""

    question: str
    text: str
    ids: tuple[int, ...]
    logits: NDArray[Any]


def from_npz(path: Path, entries: Mapping[str, EntrySpec]) -> list[Case]:
    """Arrays named ``INPUT`` for a model of one entry, ``ENTRY/INPUT`` otherwise. ``InputError`` says what is wrong."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, BadZipFile) as error:
        raise InputError(f"{path} is not a readable .npz: {error}", fix="write it with numpy.savez") from error
    found: dict[str, Arrays] = {}
    for key, array in arrays.items():
        entry, slash, name = key.partition("/")
        if not slash:
            entry, name = (next(iter(entries)) if len(entries) == 1 else ""), key
        if entry not in entries:
            raise InputError(
                f"{path}: array {key!r} belongs to no entry", fix=f"name it ENTRY/INPUT; entries: {', '.join(entries)}"
            )
        found.setdefault(entry, {})[name] = array
    return [Case(entry, path.stem, inputs) for entry, inputs in found.items()]


def at_random(entries: Mapping[str, EntrySpec], model: ModelDescription | None, seed: int) -> list[Case]:
    """Normal floats, small integers; for a language model a real mask and real positions, half the past in use."""
    rng = np.random.default_rng(seed)
    steps = {graph.name: graph for graph in model.llm} if model else {}
    cases = []
    for entry, spec in entries.items():
        inputs = {t.name: _random(t, rng) for t in spec.inputs}
        if model and entry in steps:
            inputs |= _positions(model, steps[entry], spec)
        cases.append(Case(entry, f"random-{seed}", inputs))
    return cases


def fitted(case: Case, spec: EntrySpec) -> Arrays:
    """The inputs in the element types of ``spec``; floats and integers are cast among themselves only."""
    found = {}
    for tensor in spec.inputs:
        if tensor.name not in case.inputs:
            raise InputError(f"case {case.name} has no array for input {tensor}")
        array = case.inputs[tensor.name]
        try:
            wanted = tensor.dtype.numpy
        except TypeError:
            wanted = array.dtype
        if array.dtype.kind != wanted.kind:
            raise InputError(f"case {case.name}: input {tensor} got {array.dtype}{list(array.shape)}")
        found[tensor.name] = np.ascontiguousarray(array, wanted)
    return found


def captured(program: Program, question: str, image: Path | None, tokens: int, label: str) -> tuple[list[Case], Spoken]:
    """Ask, and keep the inputs of the first call of every entry that ran, with the answer."""
    recorder = Recorder(program)
    with Pipeline(cast(Program, recorder)) as pipeline, pipeline.chat() as chat:
        answer = chat.ask(question, [image] if image else [], max_new_tokens=tokens)
    cases = [Case(entry, label, inputs) for entry, inputs in recorder.first.items()]
    logits = np.stack(recorder.logits[-len(answer.ids) :]).reshape(len(answer.ids), -1)
    return cases, Spoken(question, answer.text, answer.ids, logits)


class Recorder:
    """Stands in for a program in a pipeline: keeps the first inputs of each entry, and all logits."""

    def __init__(self, program: Program) -> None:
        self.artifact, self.entries, self.device = program.artifact, program.entries, program.device
        self.entry = program.entry
        self.program = program
        self.first: dict[str, Arrays] = {}
        self.logits: list[NDArray[Any]] = []

    def bind(self, entry: str, inputs: Mapping[str, Buffer | View], outputs: Mapping[str, Buffer | View]) -> Any:
        """A binding that is watched."""
        return _Watched(self, entry, self.program.bind(entry, inputs, outputs), dict(inputs), outputs.get("logits"))


class _Watched:
    def __init__(
        self,
        recorder: Recorder,
        entry: str,
        binding: Binding,
        inputs: Mapping[str, Buffer | View],
        logits: Buffer | View | None,
    ) -> None:
        self._recorder, self._entry, self._inputs, self._logits = recorder, entry, inputs, logits
        self._spec = recorder.entry(entry)
        self._binding, self.close, self.rebind = binding, binding.close, binding.rebind

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def execute(self) -> None:
        if self._entry not in self._recorder.first:
            self._recorder.first[self._entry] = {s.name: _read(self._inputs[s.name], s) for s in self._spec.inputs}
        self._binding.execute()
        if self._logits is not None:
            spec = next(s for s in self._spec.outputs if s.name == "logits")
            self._recorder.logits.append(_read(self._logits, spec))


def _read(memory: Buffer | View, spec: TensorSpec) -> NDArray[Any]:
    data = bytearray(spec.nbytes)
    memory.read_into(data)
    return as_array(data, spec)


def _random(tensor: TensorSpec, rng: np.random.Generator) -> NDArray[Any]:
    try:
        dtype = tensor.dtype.numpy
    except TypeError as error:
        raise InputError(f"cannot make random {tensor}", fix="give --inputs FILE.npz with raw bytes") from error
    if dtype.kind == "f":
        return rng.standard_normal(tensor.shape).astype(dtype)
    return rng.integers(0, 2, tensor.shape).astype(dtype)


def _positions(model: ModelDescription, graph: LlmEntry, spec: EntrySpec) -> Arrays:
    types = {t.name: t.dtype.numpy for t in spec.inputs}
    past, text = (graph.context - graph.tokens) // 2, model.text
    cos, sin = rope_table(text.rope_theta, text.head_dim, graph.context, types["cos"])
    rows = slice(past, past + graph.tokens)
    shape: Sequence[int] = (1, 1, graph.tokens, text.head_dim // 2)
    mask = Mask(graph.tokens, graph.context, model.mask_value, types["attention_mask"]).show(past)
    found = {
        "attention_mask": mask.reshape(1, 1, graph.tokens, graph.context).copy(),
        "cos": cos[rows].reshape(shape),
        "sin": sin[rows].reshape(shape),
    }
    if "last_index" in types:
        found["last_index"] = np.array([graph.tokens - 1], types["last_index"])
    return found
