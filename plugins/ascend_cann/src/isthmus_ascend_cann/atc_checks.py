"""Rules between options, chip and graph, checked before ATC starts: each says which rule, with ATC's E-code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.errors import InputError, UnsupportedError
from isthmus.types import TensorSpec

from .atc_options import CompileOptions, InputFormat, Precision
from .gears import GearKind, Gears, entry_name
from .soc import Soc
from .source import Source

_FILES = (
    "keep_dtype",
    "customize_dtypes",
    "modify_mixlist",
    "op_precision_mode",
    "compression_optimize_conf",
    "insert_op_conf",
    "fusion_switch_file",
)


def check_options(options: CompileOptions, soc: Soc, sources: Sequence[Source]) -> None:
    """``InputError`` (or ``UnsupportedError``) for the first rule that is broken."""
    _check_files(options)
    _check_precision(options, soc)
    _check_numbers(options)
    _check_pairs(options)
    gears = options.gears
    if (gears is not None or options.input_shape) and len(sources) > 1:
        raise InputError(
            f"input_shape and gears are for a single graph; this set has {len(sources)}: "
            f"{', '.join(s.entry for s in sources)}",
            fix="compile the graph alone, or build one entry per shape: isthmus export",
        )
    _check_gears(options, gears)
    for source in sources:
        input_shapes(options, soc, source)


def input_shapes(options: CompileOptions, soc: Soc, source: Source) -> tuple[tuple[int, ...], ...]:
    """Shape of each input, with -1 where gears fill in. ``InputError``: a dynamic dimension that nothing fixes."""
    given = parse_input_shape(options.input_shape, soc) if options.input_shape else {}
    if unknown := set(given) - {v.name for v in source.inputs}:
        raise InputError(
            f"input_shape names {sorted(unknown)}, the inputs are {[v.name for v in source.inputs]} (E10016)",
            fix="isthmus inspect shows the names",
        )
    shapes = []
    for value in source.inputs:
        shape = given.get(value.name, value.shape)
        if len(shape) != len(value.shape):
            raise InputError(f"input_shape gives {value.name} rank {len(shape)}, it has {len(value.shape)} (E10049)")
        if any(have not in (-1, want) for have, want in zip(value.shape, shape)):
            raise InputError(
                f"input_shape gives {value.name} {list(shape)}, the graph fixes {list(value.shape)} (E10049)"
            )
        shapes.append(tuple(shape))
    gears = options.gears
    if gears is None and any(-1 in s for s in shapes):
        raise InputError(
            f"entry {source.entry!r} has dynamic inputs: "
            f"{', '.join(f'{v.name}{list(s)}' for v, s in zip(source.inputs, shapes) if -1 in s)} (E11005)",
            fix="give input_shape, or gears, or build it with fixed shapes: isthmus export",
        )
    if gears is not None and not any(-1 in s for s in shapes):
        raise InputError(f"{gears.kind.value} is given, but no input has a dynamic dimension (E10040)")
    return tuple(shapes)


def parse_input_shape(text: str, soc: Soc) -> Mapping[str, tuple[int, ...]]:
    """Read ``name:1,3,224,224;name2:1``. A name may hold colons; a scalar is ``name:``."""
    shapes: dict[str, tuple[int, ...]] = {}
    for part in filter(None, text.split(";")):
        name, colon, dims = part.rpartition(":")
        if not colon or not name:
            raise InputError(f"input_shape {part!r} has no name (E10002)", fix="its form is name:1,3,224,224;name2:1")
        if "~" in dims:
            _refuse_range(part, soc)
        try:
            shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        except ValueError:
            raise InputError(
                f"input_shape {part!r} cannot be read (E10002)", fix="its form is name:1,3,224,224"
            ) from None
        if any(d < 1 and d != -1 for d in shape):
            raise InputError(f"input_shape {part!r} has a dimension that is not positive (E10011)")
        if name in shapes:
            raise InputError(f"input_shape names {name} twice (E10002)")
        shapes[name] = shape
    return shapes


def _refuse_range(part: str, soc: Soc) -> None:
    if soc.range_shapes is False:
        raise InputError(
            f"input_shape {part!r} is a range, which {soc.name} does not run (EZ3002)",
            why=f"chips of family {soc.family} have no range shapes",
            fix="give the shapes as gears: dynamic_dims=1,128;1,256",
        )
    raise UnsupportedError(
        f"input_shape {part!r} is a range; entries have fixed shapes",
        why="a range model allocates its workspace while it runs, so nothing can be said of its memory",
        fix="give the shapes as gears: dynamic_dims=1,128;1,256",
    )


def gear_specs(
    source: Source, shapes: Sequence[Sequence[int]], gears: Gears | None
) -> dict[str, tuple[TensorSpec, ...]]:
    """The input specs of each entry an ``.om`` gives: one, or one per gear."""
    if gears is None:
        return {source.entry: tuple(v.fixed(s) for v, s in zip(source.inputs, shapes))}
    return {
        entry_name(source.entry, gear): tuple(v.fixed(s) for v, s in zip(source.inputs, gears.shape(gear, shapes)))
        for gear in gears.values
    }


def _exclusive(one: str, other: str, why: str) -> InputError:
    return InputError(f"compile options {one} and {other} exclude each other ({why})", fix="keep one of them")


def _check_files(options: CompileOptions) -> None:
    for name in _FILES:
        file = getattr(options, name)
        if file is not None and not Path(file).is_file():
            raise InputError(f"compile option {name}: {file} is not a file")
    if options.insert_op_conf is not None:
        text = Path(options.insert_op_conf).read_text("utf-8", errors="replace")
        if re.search(r"aipp_mode\s*:\s*dynamic", text):
            raise UnsupportedError(
                "dynamic AIPP takes its parameters as an extra input at run time, which entries do not have",
                fix="use aipp_mode: static",
            )
        if options.dynamic_dims is not None:
            raise _exclusive("dynamic_dims", "insert_op_conf", "E10047")


def _check_precision(options: CompileOptions, soc: Soc) -> None:
    if options.modify_mixlist is not None and not options.precision.mixed:
        raise InputError(
            f"modify_mixlist needs a mixed precision, not {options.precision.value} (E10057)",
            fix=f"precision={Precision.ALLOW_MIX_PRECISION_FP16.value}",
        )
    if options.keep_dtype is not None and options.precision is Precision.MUST_KEEP_ORIGIN_DTYPE:
        raise InputError("keep_dtype has no effect with must_keep_origin_dtype", fix="drop keep_dtype")
    if options.keep_dtype is not None and options.customize_dtypes is not None:
        raise _exclusive("keep_dtype", "customize_dtypes", "customize_dtypes would win without a word")
    if "bf16" in options.precision.value and soc.bf16 is False:
        raise InputError(f"{soc.name} has no bfloat16", fix=f"precision={Precision.ALLOW_MIX_PRECISION_FP16.value}")
    if options.precision.flag == "precision_mode_v2" and soc.family is not None:
        raise InputError(f"{soc.name} has no hifloat8; Ascend950 has", fix=f"precision={Precision.FORCE_FP16.value}")
    if options.optypelist_for_implmode is not None and options.op_select_implmode is None:
        raise InputError("optypelist_for_implmode needs op_select_implmode (E10057)")
    if options.op_select_implmode is not None and options.op_precision_mode is not None:
        raise _exclusive("op_select_implmode", "op_precision_mode", "E10009")


def _check_numbers(options: CompileOptions) -> None:
    if not 0 <= options.op_debug_level <= 4:
        raise InputError(f"op_debug_level is {options.op_debug_level}", fix="give 0 to 4")
    for name in ("compile_jobs", "timeout_s", "memory_limit_mib"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; it must be positive")
    if options.compile_jobs is not None and options.compile_jobs > 32:
        raise InputError(f"compile_jobs is {options.compile_jobs}; TE_PARALLEL_COMPILER takes 1 to 32")


def _check_pairs(options: CompileOptions) -> None:
    if options.host_env_cpu is not None and options.host_env_os is None:
        raise InputError("host_env_cpu needs host_env_os (E10057)", fix="host_env_os=linux")
    if options.op_compiler_cache_dir is not None and options.op_compiler_cache_mode is None:
        raise InputError("op_compiler_cache_dir needs op_compiler_cache_mode", fix="op_compiler_cache_mode=enable")


def _check_gears(options: CompileOptions, gears: Gears | None) -> None:
    if gears is None:
        return
    if options.enable_single_stream:
        raise _exclusive(gears.kind.value, "enable_single_stream", "static models only")
    if gears.kind is GearKind.DIMS and options.input_format not in (None, InputFormat.ND):
        raise InputError("dynamic_dims needs input_format ND")
    if gears.kind is GearKind.IMAGE and options.input_format not in (None, InputFormat.NCHW):
        raise InputError("dynamic_image_size needs input_format NCHW")
    if not options.input_shape:
        raise InputError(f"{gears.kind.value} needs input_shape with -1 where it fills in (E10057)")
