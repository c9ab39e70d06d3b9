"""``isthmus memory``: who holds what while a pipeline answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer
from rich.live import Live
from rich.table import Table

from . import flags
from .answer import open_pipeline, reality_of
from .models import bundled_package
from .output import emit, human, label, note, stderr, table

if TYPE_CHECKING:
    from ..memory import MemoryReport
    from ..memory.soak import SoakResult
    from ..pipeline import Pipeline


def memory(
    model: flags.Model = None,
    backend: flags.Backend = "cpu",
    target: flags.Target = None,
    device: flags.Device = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the books on stderr while it runs.")] = False,
    sites: Annotated[bool, typer.Option("--sites", help="Name the line of Python behind every allocation.")] = False,
    image: Annotated[Path | None, typer.Option("--image", "-i", help="Picture; default: a bundled one.")] = None,
    question: Annotated[str, typer.Option("--question", "-q")] = "What is in the picture?",
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Conversations of one question each.")] = 3,
    budget: Annotated[str | None, typer.Option("--budget", help="Refuse to take more, e.g. 2GiB.")] = None,
    contexts: flags.Contexts = None,
    prefill: flags.Prefill = None,
    dtype: flags.DTypeName = "float32",
    option: flags.CompileOption = None,
    device_option: flags.DeviceOption = None,
    simulator: flags.Simulator = False,
    json: flags.Json = False,
) -> None:
    """Answer a few questions and show the memory: live, peak, what each phase left, and what stays behind."""
    from ..memory import MemoryBudget

    flags.use_simulator(backend, simulator)
    build = flags.build(backend, target, option, contexts, prefill, dtype)
    limit = flags.byte_size(budget, "--budget")

    def prepare(opened: Any) -> None:
        opened.memory.sites = sites
        opened.memory.budget = None if limit is None else MemoryBudget(limit)

    with open_pipeline(model, build, device, device_option, prepare=prepare) as (opened, pipeline, artifact):
        ledger = opened.memory
        ask = one_question(pipeline, image, question)
        with _live(ledger.report) if watch else nullcontext(lambda: None) as refresh:
            for _ in range(repeat):
                with ledger.phase("answer"):
                    ask(32, refresh)
                refresh()
        report, free = ledger.report(), opened.memory_info().free
        reality = reality_of(opened, artifact)
    left = ledger.records()
    title = f"{backend} {artifact.manifest.target}{label(reality)}"
    tables: list[Any] = [_books(report, title), _phases(report), f"free on the device: {human(free)}"]
    if sites:
        rows = [(r.book, r.owner, human(r.size), r.granted.value, r.site) for r in report.allocations]
        tables.append(table("Live allocations", ("book", "owner", "size", "pages", "asked for at"), rows))
    tables.append(f"live allocations after closing: {len(left)}")
    data = attrs.asdict(report, value_serializer=lambda _, __, value: getattr(value, "value", value))
    emit({**data, "free": free, "left": len(left), "reality": reality.value}, *tables)
    if left:
        raise typer.Exit(1)


def one_question(
    pipeline: Pipeline, image: Path | None, question: str
) -> Callable[[int, Callable[[], object]], object]:
    """A function that asks in a conversation of its own: tokens at most, and what to call after each piece of text."""
    picture = image or next(iter(sorted((bundled_package() / "eval" / "images").glob("caption_*.png"))))
    images = [picture] if pipeline.model.image else []

    def ask(tokens: int, seen: Callable[[], object]) -> object:
        with pipeline.chat() as chat:
            return chat.ask(question, images, max_new_tokens=tokens, on_text=lambda _: seen())

    return ask


def soak_tables(found: SoakResult, title: str) -> list[Any]:
    """A soak for people."""
    rows = [
        (t.name, human(int(t.first)), human(int(t.last)), f"{t.per_request:.3g} ± {t.error:.2g}", _verdict(t.leaking))
        for t in found.trends
    ]
    columns = ("memory", "after warm-up", "at the end", "bytes per request", "verdict")
    return [
        table(f"{title}, {found.requests} requests", columns, rows),
        f"live allocations after closing: {found.left}",
        _verdict(found.leaking),
    ]


def _verdict(leaking: bool) -> str:
    return "leaks" if leaking else "no leak"


@contextmanager
def _live(report: Callable[[], MemoryReport]) -> Iterator[Callable[[], None]]:
    """Books on a terminal, redrawn; one line at a time elsewhere."""
    if not sys.stderr.isatty():
        yield _line_by_line(report)
        return
    with Live(console=stderr, refresh_per_second=8, transient=True) as live:
        yield lambda: live.update(_books(report(), "now"))


def _line_by_line(report: Callable[[], MemoryReport]) -> Callable[[], None]:
    """A line whenever the books have changed."""
    shown = ""

    def show() -> None:
        nonlocal shown
        line = ", ".join(f"{name} {human(b.live)}" for name, b in report().books.items() if b.live)
        if line != shown:
            note(line)
        shown = line

    return show


def _books(report: MemoryReport, title: str) -> Table:
    rows = [(name, human(b.live), human(b.peak)) for name, b in report.books.items() if b.peak]
    return table(title, ("book", "live", "peak"), [*rows, ("all", human(report.live), human(report.peak))])


def _phases(report: MemoryReport) -> Table:
    rows = [(p.name, f"{'-' if p.delta < 0 else '+'}{human(abs(p.delta))}", human(p.peak)) for p in report.phases]
    return table("Phases", ("phase", "left behind", "peak"), rows)
