"""What would make a model fit: every change that can be made to a checkpoint's plan, the cheapest first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from ..errors import InputError
from .limits import Misfit, Room, misfits
from .plan import MemoryPlan, Use, image_tokens, make_plan
from .plan_model import WEIGHT_BITS, Compiler, Shape, of_checkpoint
from .plan_shapes import Shapes

_SMALLEST_CHUNK = 16


@attrs.frozen
class Case:
    """All that a plan of a checkpoint depends on."""

    shape: Shape
    use: Use
    options: Mapping[str, str] = attrs.field(factory=dict)
    """Compile options, as on the command line."""


@attrs.frozen
class Change:
    """One way to need less, and what is needed then."""

    what: str
    how: str
    """The flag that does it; a word of warning where this version has none."""
    case: Case
    plan: MemoryPlan
    misfits: Sequence[Misfit]
    fits: bool
    """Nothing is left that binds; where only soft limits bound before, none of those either."""


class Planner:
    """Plans cases of one checkpoint on one backend."""

    def __init__(self, shapes: Shapes, compiler: Callable[[Mapping[str, str]], Compiler], room: Room) -> None:
        """``compiler`` parses compile options."""
        self._shapes, self._compiler, self._room = shapes, compiler, room
        self._soft = False

    def plan(self, case: Case) -> tuple[MemoryPlan, list[Misfit]]:
        """The books of a case and what does not fit."""
        compiler = self._compiler(case.options)
        plan = make_plan(of_checkpoint(self._shapes, case.shape, compiler), case.use, compiler.rules)
        return plan, misfits(plan, self._room)

    def changes(self, case: Case) -> list[Change]:
        """For every kind of change the mildest that fits by itself, else the strongest; those that fit come first.

        Kinds that make nothing smaller are left out. When none fits alone, the last change is all of them together, as
        many as it takes.
        """
        before, binding = self.plan(case)
        self._soft = not any(m.hard for m in binding)
        kinds = [_fewer_tiles, _smaller_chunk, _shorter_context, self._no_copies, self._shared_weights, _half_floats]
        kinds += [_int8_cache, _quantized, _in_parts, _fewer_conversations]
        alone = [c for kind in kinds if (c := self._best(kind(case, self._shapes), before)) is not None]
        if any(c.fits for c in alone):
            return sorted(alone, key=lambda c: not c.fits)
        return [*alone, *self._together(case, before, kinds)]

    def _best(self, steps: Iterable[Step], before: MemoryPlan) -> Change | None:
        last = None
        for step in steps:
            plan, left = self.plan(step.case)
            if plan.run_peak < before.run_peak or plan.context_tokens < before.context_tokens:
                fits = not any(m.hard or self._soft for m in left)
                last = Change(step.what, step.how, step.case, plan, left, fits)
                if last.fits:
                    break
        return last

    def _together(self, case: Case, before: MemoryPlan, kinds: Sequence[Kind]) -> Iterator[Change]:
        """Greedily: each time the kind that leaves the fewest misfits, then the smallest peak."""
        taken: list[Change] = []
        rest = list(kinds)
        while rest and not (taken and taken[-1].fits):
            tried = [(k, c) for k in rest if (c := self._best(k(case, self._shapes), before)) is not None]
            if not tried:
                break
            kind, found = min(tried, key=lambda t: (not t[1].fits, len(t[1].misfits), t[1].plan.run_peak))
            rest.remove(kind)
            taken.append(found)
            case, before = found.case, found.plan
        if len(taken) > 1:
            what, how = " + ".join(c.what for c in taken), " ".join(c.how for c in taken)
            yield attrs.evolve(taken[-1], what=what, how=how)

    def _no_copies(self, case: Case, _: Shapes) -> Iterator[Step]:
        if case.use.copies and (how := self._compiler(case.options).rules.no_copies):
            yield Step("no copies of weights", how, attrs.evolve(case, use=attrs.evolve(case.use, copies=False)))

    def _shared_weights(self, case: Case, _: Shapes) -> Iterator[Step]:
        compiler = self._compiler(case.options)
        extra = compiler.rules.sharing(compiler.target)
        if extra and not extra.items() <= case.options.items():
            how = " ".join(f"--option {k}={v}" for k, v in extra.items())
            yield Step("equal weights of entries once", how, attrs.evolve(case, options={**case.options, **extra}))


@attrs.frozen
class Step:
    """A change that is being tried."""

    what: str
    how: str
    case: Case


Kind = Callable[[Case, Shapes], Iterable[Step]]


def _fewer_tiles(case: Case, shapes: Shapes) -> Iterator[Step]:
    """Pictures in fewer tiles, and the context as short as that allows."""
    if shapes.image is None or not case.use.images:
        return
    now = case.use.max_tiles or shapes.image.max_tiles
    for tiles in (n for n in (6, 4, 2, 1) if n < now):
        use = attrs.evolve(case.use, max_tiles=tiles)
        context = min(_longest(case, shapes), _room_for(shapes, use))
        yield Step(
            f"at most {tiles} tile(s) a picture, context {context}",
            f"--max-tiles {tiles} --context {context}",
            attrs.evolve(case, use=use, shape=_with_context(case.shape, context)),
        )


def _smaller_chunk(case: Case, shapes: Shapes) -> Iterator[Step]:
    if case.shape.prefill is None or len(case.shape.prefill) != 1:
        chunk = 128
    else:
        (chunk,) = case.shape.prefill
    while (chunk := chunk // 2) >= _SMALLEST_CHUNK:
        shape = attrs.evolve(case.shape, prefill=(chunk,))
        yield Step(f"prefill in chunks of {chunk}", f"--prefill {chunk}", attrs.evolve(case, shape=shape))


def _shorter_context(case: Case, shapes: Shapes) -> Iterator[Step]:
    """Half as long, again and again, while pictures and question fit; longer where they do not."""
    needed, context = _room_for(shapes, case.use), _longest(case, shapes)
    if needed > context and needed <= shapes.text.max_positions:
        shape = _with_context(case.shape, needed)
        yield Step(f"context {needed}", f"--context {needed}", attrs.evolve(case, shape=shape))
        return
    halves = itertools.takewhile(lambda c: c > needed, (context >> n for n in itertools.count(1)))
    for slots in (*halves, *([needed] if needed < context else [])):
        shape = _with_context(case.shape, slots)
        yield Step(f"context {slots}", f"--context {slots}", attrs.evolve(case, shape=shape))


def _half_floats(case: Case, _: Shapes) -> Iterator[Step]:
    if case.shape.dtype == "float32":
        shape = attrs.evolve(case.shape, dtype="float16")
        yield Step("float16 weights, inputs and KV cache", "--dtype float16", attrs.evolve(case, shape=shape))


def _int8_cache(case: Case, _: Shapes) -> Iterator[Step]:
    if case.use.kv_bits != 8:
        use = attrs.evolve(case.use, kv_bits=8)
        yield Step(
            "KV cache in int8",
            "--kv int8 (what-if)",
            attrs.evolve(case, use=use),
        )


def _quantized(case: Case, _: Shapes) -> Iterator[Step]:
    now = WEIGHT_BITS[case.shape.weights or case.shape.dtype]
    for name in ("int8", "int4"):
        if WEIGHT_BITS[name] < now:
            shape = attrs.evolve(case.shape, weights=name)
            how = f"--weights {name} (what-if)"
            yield Step(f"matrices in {name}", how, attrs.evolve(case, shape=shape))


def _in_parts(case: Case, shapes: Shapes) -> Iterator[Step]:
    parts = case.shape.parts
    while (parts := parts * 2) <= shapes.text.layers:
        shape = attrs.evolve(case.shape, parts=parts)
        yield Step(
            f"language model in {parts} parts, loaded in turn", f"--parts {parts}", attrs.evolve(case, shape=shape)
        )


def _fewer_conversations(case: Case, _: Shapes) -> Iterator[Step]:
    count = case.use.conversations
    while (count := count // 2) >= 1:
        use = attrs.evolve(case.use, conversations=count)
        yield Step(f"{count} conversation(s) at once", f"--batch {count}", attrs.evolve(case, use=use))


def _longest(case: Case, shapes: Shapes) -> int:
    return max(case.shape.contexts or (min(2048, shapes.text.max_positions),))


def _room_for(shapes: Shapes, use: Use) -> int:
    """The smallest context, in steps of 64, for the pictures and twice as much text as a plan asks for at least."""
    return -(-(image_tokens(shapes.image, use) + 128) // 64) * 64


def _with_context(shape: Shape, context: int) -> Shape:
    """``shape`` with one context, and chunks that fit into it."""
    if context < 2:
        raise InputError(f"a context of {context} slots")
    prefill = tuple(n for n in shape.prefill or () if n <= context) or None
    return attrs.evolve(shape, contexts=(context,), prefill=prefill)
