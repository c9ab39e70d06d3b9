"""From whatever ``--model`` names to a compiled artifact, with a cache keyed by content."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, TypeVar

import attrs
import platformdirs
from packaging.requirements import Requirement

from .. import api
from .._files import sha256_file
from ..artifact import MANIFEST, Artifact
from ..errors import IncompatibleError, InputError, UnavailableError
from ..graphset import FILE as GRAPHSET_FILE
from ..graphset import GraphSet
from ..registry import GROUP, registry
from .output import Work, note

T = TypeVar("T")


@attrs.frozen
class Build:
    """How to turn a model into an artifact of one backend."""

    backend: str
    target: str | None = None
    options: dict[str, object] = attrs.field(factory=dict)
    contexts: tuple[int, ...] | None = None
    prefill: tuple[int, ...] | None = None
    dtype: str = "float32"


def cache_directory() -> Path:
    """Where exported and compiled models are kept: ``ISTHMUS_CACHE_DIR``, else the user's cache folder."""
    path = Path(os.environ.get("ISTHMUS_CACHE_DIR") or platformdirs.user_cache_path("isthmus"))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the cache directory {path} cannot be used: {error.strerror}",
            fix="set ISTHMUS_CACHE_DIR to a directory you may write to",
        ) from error
    return path


def bundled_package() -> Path:
    """Directory of the bundled tiny InternVL: ``checkpoint/`` and ``eval/``."""
    spec = importlib.util.find_spec("isthmus_tiny_internvl")
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(
            "the bundled model is not installed", fix="pip install isthmus-tiny-internvl, or name a model with --model"
        )
    return Path(spec.submodule_search_locations[0])


def resolve_artifact(model: Path | None, build: Build, work: Work) -> Artifact:
    """The artifact that ``model`` is, or that it becomes: exported, compiled and cached as needed."""
    if model is not None and (model / MANIFEST).is_file():
        return _check_backend(Artifact.open(model), build)
    graphs = resolve_graphs(model, build, work)
    plugin = registry().backend(build.backend)
    target = build.target or next(iter(plugin.targets()), "")
    key = _digest(graphs.digest(), build.backend, target, sorted(build.options.items()), _toolchain(build.backend))
    path = cache_directory() / "artifacts" / f"{build.backend}-{key}"

    def make() -> Artifact:
        work.step(f"compiling for {build.backend} {target}")
        return api.compile(build.backend, graphs, path, target=target or None, options=build.options)

    return _cached(path, Artifact.open, make)


def resolve_graphs(model: Path | None, build: Build, work: Work) -> GraphSet:
    """The graph set that ``model`` is, or that it becomes, in the dialect of the backend and target."""
    model = bundled_package() / "checkpoint" if model is None else model
    if not model.exists():
        raise InputError(f"{model} does not exist")
    if (model / GRAPHSET_FILE).is_file() or model.suffix == ".onnx":
        return GraphSet.open(model)
    plugin = registry().backend(build.backend)
    dialect = plugin.dialect(build.target or next(iter(plugin.targets()), ""))
    shape = (build.contexts, build.prefill, build.dtype)
    key = _digest(_content(model), attrs.asdict(dialect), shape, version("isthmus"))
    path = cache_directory() / "graphs" / key

    def make() -> GraphSet:
        from ..models.export import export  # an extra, and a second to import: only exporting needs it

        work.step(f"building graphs of {model.name}")
        return export(
            model,
            path,
            dialect=dialect,
            dtype=build.dtype,
            contexts=build.contexts,
            prefill=build.prefill,
            progress=lambda _, done, total: work.report(done, total),
        )

    return _cached(path, GraphSet.open, make)


def _cached(path: Path, reopen: Callable[[Path], T], make: Callable[[], T]) -> T:
    """What was made at ``path`` before, or what ``make`` puts there now."""
    if path.exists():
        try:
            return reopen(path)
        except (InputError, IncompatibleError) as error:
            note(f"what was cached is damaged and is built again: {error.what}")
            shutil.rmtree(path)
    try:
        return make()
    except InputError:
        if path.exists():  # another process made it meanwhile
            return reopen(path)
        raise


def _check_backend(artifact: Artifact, build: Build) -> Artifact:
    if artifact.manifest.backend != build.backend:
        raise IncompatibleError(
            f"{artifact.path} was compiled for backend {artifact.manifest.backend}, not {build.backend}",
            fix=f"use --backend {artifact.manifest.backend}, or give the checkpoint instead",
        )
    return artifact


def _content(model: Path) -> str:
    files = [model] if model.is_file() else sorted(f for f in model.iterdir() if f.is_file())
    return _digest(*((f.name, sha256_file(f)) for f in files))


def _toolchain(backend: str) -> list[tuple[str, str]]:
    """Versions of the plugin and of what it depends on: another compiler makes another artifact."""
    found = [("isthmus", version("isthmus"))]
    for entry in entry_points(group=GROUP, name=backend):
        for requirement in [entry.dist.name, *(entry.dist.requires or ())] if entry.dist else []:
            name = Requirement(requirement).name
            try:
                found.append((name, version(name)))
            except PackageNotFoundError:
                continue  # an extra or a platform that is not this one
    return found


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
