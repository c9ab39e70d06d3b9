"""A recording on disk: one machine writes, another judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np

from .._files import inside, new_directory
from .._json import DAMAGE, explain, read_json, strict_converter, write_json
from ..errors import IncompatibleError, InputError
from ..types import Tolerance
from .cases import Arrays, Case, Spoken
from .judge import Call, Recording
from .side import Steadiness
from .taps import Tap

FILE = "recording.json"
FORMAT = 1
_KINDS = ("in", "out", "tap")


@attrs.frozen
class _CallRecord:
    entry: str
    label: str
    file: str
    steadiness: Steadiness


@attrs.frozen
class _SpokenRecord:
    question: str
    text: str
    ids: tuple[int, ...]
    file: str


@attrs.frozen
class _Index:
    identity: dict[str, Any]
    tolerance: Tolerance
    calls: tuple[_CallRecord, ...]
    nodes: dict[str, tuple[Tap, ...]]
    spoken: _SpokenRecord | None


def save(recording: Recording, out: Path) -> None:
    """Write the new directory ``out``: ``recording.json``, and one ``.npz`` per call. ``InputError`` if it exists."""
    with new_directory(out) as work:
        calls = []
        for number, call in enumerate(recording.calls):
            file = f"{number:04}.npz"
            arrays = zip(_KINDS, (call.case.inputs, call.outputs, call.taps))
            np.savez_compressed(work / file, **{f"{kind}/{n}": a for kind, group in arrays for n, a in group.items()})  # type: ignore[arg-type]  # no arrays in the stub's **kwargs
            calls.append(_CallRecord(call.case.entry, call.case.label, file, call.steadiness))
        spoken = None
        if recording.spoken is not None:
            said = recording.spoken
            np.savez_compressed(work / "spoken.npz", logits=said.logits)
            spoken = _SpokenRecord(said.question, said.text, said.ids, "spoken.npz")
        nodes = {entry: tuple(taps) for entry, taps in recording.nodes.items()}
        index = _Index(dict(recording.identity), recording.tolerance, tuple(calls), nodes, spoken)
        write_json(work / FILE, {"format": FORMAT, **_CONVERTER.unstructure(index)})


def load(path: Path) -> Recording:
    """Read what ``save`` wrote. ``InputError`` says what is missing or damaged."""
    again = "record it again with: isthmus compare MODEL --record DIR"
    try:
        data = read_json(path / FILE)
        version = data.pop("format", None)
        if version != FORMAT:
            raise IncompatibleError(f"{path / FILE} is of format {version!r}, this version reads {FORMAT}", fix=again)
        index = _CONVERTER.structure(data, _Index)
        calls = tuple(_call(path, record) for record in index.calls)
        spoken = None
        if index.spoken is not None:
            said = index.spoken
            logits = _arrays(path, said.file)["logits"]
            if len(logits) != len(said.ids):
                raise ValueError(f"{len(said.ids)} tokens but {len(logits)} rows of logits")
            spoken = Spoken(said.question, said.text, said.ids, logits)
    except OSError as error:
        raise InputError(f"{path} is not a recording: {error}", fix=again) from error
    except InputError:
        raise
    except (*DAMAGE, EOFError) as error:
        raise InputError(f"{path} is damaged: {explain(error)}", fix=again) from error
    return Recording(index.identity, index.tolerance, calls, index.nodes, spoken)


def is_recording(path: Path) -> bool:
    """Whether ``path`` looks like one."""
    return (path / FILE).is_file()


def _call(path: Path, record: _CallRecord) -> Call:
    groups: dict[str, Arrays] = {kind: {} for kind in _KINDS}
    for key, array in _arrays(path, record.file).items():
        kind, _, name = key.partition("/")
        groups[kind][name] = array
    case = Case(record.entry, record.label, groups["in"])
    return Call(case, groups["out"], record.steadiness, groups["tap"])


def _arrays(path: Path, name: str) -> Arrays:
    import zipfile

    try:
        with inside(path, name).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{name} is no .npz: {error}") from error


_CONVERTER = strict_converter()
