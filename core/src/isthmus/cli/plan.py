"""``isthmus plan``: will it fit, and what would make it fit, before anything is loaded, compiled or downloaded whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from ..api import open_device
from ..artifact import MANIFEST, Artifact
from ..errors import InputError
from ..graphset import FILE as GRAPHSET_FILE
from ..graphset import GraphSet
from ..options import parse_options
from ..registry import registry
from ..types import MemoryInfo
from . import flags
from .models import bundled_package
from .output import emit, human, table

if TYPE_CHECKING:
    from ..memory.limits import Misfit, Room
    from ..memory.plan import MemoryPlan, Need
    from ..memory.plan_changes import Change, Planner
    from ..memory.plan_model import Compiler

_KV = {None: None, "float32": 32, "float16": 16, "int8": 8}


def plan(
    model: flags.ModelArgument = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: Annotated[str | None, typer.Option("--device", help="Ask this device what is free (cpu: always).")] = None,
    context: Annotated[
        str | None, typer.Option("--context", "--contexts", help="Context lengths of the graphs, e.g. 512,2048.")
    ] = None,
    prefill: flags.Prefill = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Conversations held at once.")] = 1,
    images: Annotated[int | None, typer.Option("--images", min=0, help="Pictures in one conversation.")] = None,
    max_tiles: Annotated[int | None, typer.Option("--max-tiles", min=1, help="Tiles a picture is cut into.")] = None,
    dtype: flags.DTypeName = "float32",
    weights: Annotated[str | None, typer.Option("--weights", help="What if matrices were int8 or int4.")] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="What if keys and values were float16 or int8.")] = None,
    parts: Annotated[int, typer.Option("--parts", min=1, help="Language model in parts that are loaded in turn.")] = 1,
    budget: Annotated[str | None, typer.Option("--budget", help="The most it may take, e.g. 2GiB.")] = None,
    free: Annotated[str | None, typer.Option("--free", help="Free memory of the device, instead of asking it.")] = None,
    traffic: Annotated[
        Path | None, typer.Option("--traffic", help="JSON lines of request lengths: choose contexts for them.")
    ] = None,
    buckets: Annotated[int, typer.Option("--buckets", min=1, help="Contexts to choose with --traffic.")] = 3,
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Say whether a model fits before it is loaded. Exit code 1 if it does not.

    MODEL may be an artifact, a graph set, a checkpoint, or only a checkpoint's config.json.
    """
    from ..memory import limits, plan_changes
    from ..memory.plan import Use, make_plan
    from ..memory.plan_model import Shape

    flags.use_simulator(backend, simulator)
    plugin = registry().backend(backend)
    target = target or next(iter(plugin.targets()), "")
    options = {key: str(value) for key, value in flags.pairs(option).items()}
    if kv not in _KV:
        raise InputError(f"--kv is {kv!r}", fix="choose float32, float16 or int8")
    use = Use(batch, 1 if images is None else images, max_tiles, _KV[kv])
    have = _free(backend, device, free, device_option)
    limit = flags.byte_size(budget, "--budget")
    room = limits.Room(plugin.memory_rules.limits(target), have, limit)
    path = model or bundled_package() / "checkpoint"
    changes: Sequence[Change] = ()
    if fixed := _fixed(path, backend, lambda: _compiler(backend, target, options)):
        given = {"--context": context, "--prefill": prefill, "--weights": weights, "--parts": parts - 1}
        _refuse_choices(path, given)
        made = make_plan(fixed, use, plugin.memory_rules)
        left = limits.misfits(made, room)
    else:
        contexts = flags.numbers(context, "--context")
        shape = Shape(contexts, flags.numbers(prefill, "--prefill"), dtype, _weights(weights), parts)
        planner = _planner(path, backend, target, room)
        case = plan_changes.Case(shape, use, options)
        made, left = planner.plan(case)
        if left:
            changes = planner.changes(case)
    found = _traffic(traffic, buckets, made, limit) if traffic is not None else None
    fits = not any(m.hard for m in left)
    emit(
        _as_json(made, left, changes, have, limit, fits, backend, target) | ({"traffic": found[0]} if found else {}),
        *_tables(made, left, changes, have, limit, f"{path.name} on {backend} {target}"),
        *(found[1] if found else ()),
    )
    if not fits:
        raise typer.Exit(1)


def _fixed(path: Path, backend: str, compiler: Any) -> Need | None:
    """What an artifact or a graph set needs; ``None`` for a checkpoint."""
    from ..memory.plan import of_artifact
    from ..memory.plan_model import of_graphs

    if not path.exists():
        raise InputError(f"{path} does not exist")
    if (path / MANIFEST).is_file():
        artifact = Artifact.open(path)
        if artifact.manifest.backend != backend:
            raise InputError(f"{path} was compiled for backend {artifact.manifest.backend}, not {backend}")
        return of_artifact(artifact)
    if (path / GRAPHSET_FILE).is_file() or path.suffix == ".onnx":
        return of_graphs(GraphSet.open(path), compiler())
    return None


def _planner(path: Path, backend: str, target: str, room: Room) -> Planner:
    from ..memory.plan_changes import Planner
    from ..memory.plan_shapes import read_shapes

    return Planner(read_shapes(path), lambda options: _compiler(backend, target, options), room)


def _compiler(backend: str, target: str, options: Mapping[str, str]) -> Compiler:
    from ..memory.plan_model import Compiler

    plugin = registry().backend(backend)
    parsed: Any = parse_options(plugin.compile_options, options, f"compile option of {backend}")
    return Compiler(plugin.memory_rules, target, parsed, plugin.dialect(target))


def _free(backend: str, device: str | None, stated: str | None, options: list[str] | None) -> MemoryInfo | None:
    """What is free: as stated; else asked, where that costs nothing or where a device was named."""
    if (size := flags.byte_size(stated, "--free")) is not None:
        return MemoryInfo(size, size)
    if device is None and backend != "cpu":
        return None
    with open_device(flags.device_id(backend, device), options=flags.pairs(options)) as opened:
        return opened.memory_info()


def _refuse_choices(path: Path, given: Mapping[str, object]) -> None:
    if made := [name for name, value in given.items() if value]:
        raise InputError(
            f"{path} has its shapes already; {', '.join(made)} cannot change them",
            fix="give the checkpoint to see other shapes",
        )


def _weights(name: str | None) -> str | None:
    from ..memory.plan_model import WEIGHT_BITS

    if name is not None and name not in WEIGHT_BITS:
        raise InputError(f"--weights is {name!r}", fix=f"choose one of: {', '.join(WEIGHT_BITS)}")
    return name


def _traffic(path: Path, buckets: int, made: MemoryPlan, limit: int | None) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Contexts for a log of request lengths, as JSON and for people."""
    from ..memory.traffic import choose, read_lengths

    if not made.kv_bytes_per_token:
        raise InputError("--traffic needs a language model")
    chosen = choose(read_lengths(path), buckets, made.kv_bytes_per_token)
    rows = [
        (b.context, b.requests, f"{b.requests / chosen.requests:.1%}", human(b.context * chosen.bytes_per_token))
        for b in chosen.buckets
    ]
    contexts = ",".join(str(b.context) for b in chosen.buckets)
    saved = f"{human(int(chosen.saved))} of KV cache less ({1 - chosen.mean_slots / chosen.largest:.0%})"
    lines = [
        f"an average conversation holds {chosen.mean_slots:.0f} slots instead of {chosen.largest}: {saved}",
        f"use it with: --contexts {contexts}",
    ]
    data = {**chosen.to_json(), "contexts": contexts}
    rest = limit - made.run_peak + made.books["kv"] if limit is not None else 0
    if rest > 0:
        data["at_once_largest"], data["at_once_mean"] = chosen.at_once(rest)
        lines.append(
            f"{human(rest)} beside weights and workspace hold {data['at_once_largest']} conversations of the largest "
            f"context, or {data['at_once_mean']} of this mix"
        )
    return data, (table("Contexts for this traffic", ("context", "requests", "share", "KV cache"), rows), *lines)


def _as_json(
    made: MemoryPlan,
    left: Sequence[Misfit],
    changes: Sequence[Change],
    have: MemoryInfo | None,
    budget: int | None,
    fits: bool,
    backend: str,
    target: str,
) -> dict[str, Any]:
    return {
        "backend": backend,
        "target": target,
        "source": made.need.source,
        "fits": fits,
        "binding": attrs.asdict(left[0]) if left else None,
        "misfits": [attrs.asdict(m) for m in left],
        "books": dict(made.books),
        "run_peak": made.run_peak,
        "load_peak": made.load_peak,
        "activations": dict(made.activations),
        "graphs": dict(made.need.graphs),
        "mapped": made.need.mapped,
        "context": made.context,
        "context_tokens": made.context_tokens,
        "kv_bytes_per_token": made.kv_bytes_per_token,
        "free": have.free if have else None,
        "budget": budget,
        "exact": made.need.memory.exact,
        "notes": list(made.need.memory.notes),
        "changes": [
            {"what": c.what, "how": c.how, "run_peak": c.plan.run_peak, "fits": c.fits, "books": dict(c.plan.books)}
            for c in changes
        ],
    }


_BOOKS = {
    "weights": "weights, once",
    "copies": "weights again, and the runtime's own",
    "workspace": "workspace (activations)",
    "io": "inputs and outputs",
    "kv": "KV cache",
}


def _tables(
    made: MemoryPlan,
    left: Sequence[Misfit],
    changes: Sequence[Change],
    have: MemoryInfo | None,
    budget: int | None,
    title: str,
) -> list[Any]:
    rows = [(_BOOKS[name], human(size)) for name, size in made.books.items()]
    rows += [("peak when running", human(made.run_peak)), ("peak while loading", human(made.load_peak))]
    if have is not None:
        rows.append(("free on the device", human(have.free)))
    if budget is not None:
        rows.append(("budget", human(budget)))
    shown: list[Any] = [table(f"{title} (from the {made.need.source})", ("book", "size"), rows)]
    workspace = [
        (name, human(size), human(made.need.graphs.get(name)) if made.need.graphs else None)
        for name, size in made.activations.items()
    ]
    shown.append(table("Peaks per entry", ("entry", "workspace", "with weights"), workspace))
    if made.context:
        shown.append(
            f"context {made.context}: pictures and a short question take {made.context_tokens} tokens; "
            f"{human(made.kv_bytes_per_token)} of KV cache per token; embedding table mapped: {human(made.need.mapped)}"
        )
    shown += [f"note: {n}" for n in made.need.memory.notes]
    shown += [_misfit_line(m) for m in left] or ["It fits."]
    if changes:
        columns = ("change", "peak after", "fits", "how")
        cells = [(c.what, human(c.plan.run_peak), "yes" if c.fits else "no", c.how) for c in changes]
        shown.append(table("What would need less", columns, cells))
        shown.append("what-if: the plan knows the figure; quantise the graphs, or the cache, yourself before compiling")
    return shown


def _misfit_line(misfit: Misfit) -> str:
    size = human if misfit.unit == "bytes" else str
    word = "DOES NOT FIT" if misfit.hard else "may not fit"
    return (
        f"{word}: {misfit.what} is {size(misfit.need)}, {misfit.excess:.2f} times {size(misfit.limit)}: {misfit.source}"
    )
