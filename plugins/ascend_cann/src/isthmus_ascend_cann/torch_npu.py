"""For teams that run torch_npu and a program of ours in one process: its allocator settings, and which versions fit.

``PYTORCH_NPU_ALLOC_CONF`` is ``key:value,key:value``. Two generations of rules exist: 2.9 (``CachingAllocatorConfig`` of
torch_npu itself) and newer ones, where torch core parses the keys it knows. A wrong value ends the process at the first
allocation, and some are switched off with no more than a warning; both are found here beforehand.
Source: ``torch_npu/csrc/core/npu/NPUAllocatorConfig.cpp``, tag v7.3.1-pytorch2.9.0 and master.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import attrs
from isthmus.errors import InputError

from . import _tables

VARIABLE = "PYTORCH_NPU_ALLOC_CONF"
OTHER_VARIABLE = "PYTORCH_ALLOC_CONF"


class Release(enum.Enum):
    """Generation of the rules."""

    V2_9 = "2.9"
    NEWER = "newer"

    @classmethod
    def of(cls, version: str) -> Release:
        """The generation of a torch_npu version. 2.10 and later are taken as newer."""
        major, minor = (int(v) for v in version.split(".")[:2])
        return cls.NEWER if (major, minor) > (2, 9) else cls.V2_9


@attrs.frozen
class AllocConf:
    """The settings, typed. ``None`` is not set. ``str(conf)`` is the variable's value."""

    max_split_size_mb: int | None = attrs.field(default=None, metadata={"above": 20})
    garbage_collection_threshold: float | None = attrs.field(default=None, metadata={"between": (0, 1)})
    expandable_segments: bool | None = None
    base_addr_aligned_kb: int | None = attrs.field(default=None, metadata={"range": (0, 16)})
    page_size: str | None = attrs.field(default=None, metadata={"one_of": ("1g",)})
    segment_size_mb: int | None = attrs.field(default=None, metadata={"range": (20, 512)})
    roundup_power2_divisions: str | None = None
    pinned_mem_register: bool | None = None
    pin_memory_expandable_segments: bool | None = None
    large_segment_size_mb: int | None = attrs.field(default=None, metadata={"newer": True})
    max_non_split_rounding_mb: int | None = attrs.field(default=None, metadata={"newer": True})
    pinned_use_background_threads: bool | None = attrs.field(default=None, metadata={"newer": True})
    pinned_max_round_threshold_mb: int | None = attrs.field(default=None, metadata={"newer": True})
    pinned_max_cached_size_mb: int | None = attrs.field(default=None, metadata={"newer": True})
    pinned_reserve_segment_size_mb: int | None = attrs.field(default=None, metadata={"newer": True})
    multi_stream_lazy_reclaim: bool | None = attrs.field(default=None, metadata={"newer": True})
    per_process_memory_fraction: float | None = attrs.field(default=None, metadata={"newer": True, "range": (0, 1)})
    release_lock_on_npumalloc: bool | None = attrs.field(default=None, metadata={"newer": True})
    throw_on_npumalloc_oom: bool | None = attrs.field(default=None, metadata={"newer": True})

    def __str__(self) -> str:
        return ",".join(f"{k}:{v}" for k, v in attrs.asdict(self).items() if v is not None)

    def problems(self, release: Release) -> list[str]:
        """What this release would refuse, or quietly change. Empty: all is well."""
        found = [p for field in attrs.fields(type(self)) if (p := _problem(field, getattr(self, field.name), release))]
        if self.expandable_segments:
            for name in ("max_split_size_mb", "garbage_collection_threshold"):
                if getattr(self, name) is not None:
                    found.append(
                        f"expandable_segments:True and {name} exclude each other: torch_npu stops with an error"
                    )
        if self.pin_memory_expandable_segments and self.pinned_mem_register:
            found.append("pin_memory_expandable_segments:True switches pinned_mem_register off")
        if self.page_size is not None and self.segment_size_mb is not None:
            found.append("page_size:1g replaces segment_size_mb")
        if self.segment_size_mb is not None and release is Release.NEWER:
            found.append("segment_size_mb is deprecated; use large_segment_size_mb")
        if self.roundup_power2_divisions is not None and (p := _bad_divisions(self.roundup_power2_divisions)):
            found.append(p)
        return found

    def checked(self, release: Release) -> AllocConf:
        """Itself, or ``InputError`` with all problems."""
        if problems := self.problems(release):
            raise InputError(f"{VARIABLE}={self}: {'; '.join(problems)}", fix="correct the settings named")
        return self


def parse(text: str) -> AllocConf:
    """Read the variable's value. ``InputError``: not key:value, an unknown key, or a value of the wrong type."""
    values: dict[str, object] = {}
    fields = {f.name: f for f in attrs.fields(AllocConf)}
    for item in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", re.sub(r"\s", "", text)):
        key, colon, value = item.partition(":")
        if not colon or not value:
            raise InputError(f"{VARIABLE}: {item!r} is not key:value")
        if key not in fields:
            raise InputError(f"{VARIABLE}: unknown key {key!r}", fix=f"use one of: {', '.join(fields)}")
        values[key] = _typed(key, value, str(fields[key].type))
    return AllocConf(**values)  # type: ignore[arg-type]


def check_environment(environment: Mapping[str, str], version: str) -> list[str]:
    """Problems of the allocator settings in an environment, for a torch_npu version."""
    text = environment.get(VARIABLE) or environment.get(OTHER_VARIABLE)
    if not text:
        return []
    both = (
        [f"{VARIABLE} and {OTHER_VARIABLE} are both set"]
        if VARIABLE in environment and OTHER_VARIABLE in environment
        else []
    )
    try:
        return both + parse(text).problems(Release.of(version))
    except InputError as error:
        return [*both, error.what]


def check_room(free: int, cached: int, need: int) -> None:
    """A program allocates outside torch_npu's cache. ``InputError``: it does not fit beside what the cache holds.

    ``free`` is the device's free memory, ``cached`` what torch_npu reserves and does not use, ``need`` what the program
    needs (``MemoryRequirements.own_load``); all in bytes.
    """
    if need <= free:
        return
    if need <= free + cached:
        fix = "torch.npu.empty_cache() before load"
        raise InputError(f"{need} bytes are needed, {free} free; torch_npu's cache holds {cached} more", fix=fix)
    raise InputError(
        f"{need} bytes are needed, {free} free and {cached} in torch_npu's cache",
        why="also an empty cache would not make room",
        fix="set per_process_memory_fraction, or free tensors",
    )


def judge(torch: str | None, torch_npu: str | None, cann: str | None) -> str:
    """One sentence on the versions as a set; ``None`` is not installed."""
    if torch_npu is None:
        return "torch_npu is not installed"
    wanted_torch = re.sub(r"\.(?:post|rc).*$", "", torch_npu)
    if torch is None:
        return f"torch_npu {torch_npu} needs torch {wanted_torch}, which is not installed"
    if torch.split("+")[0] != wanted_torch:
        return f"MISMATCH: torch_npu {torch_npu} needs torch {wanted_torch}, found {torch}; pip install torch=={wanted_torch}"
    row = next((r for r in _tables.rows("torch_npu.tsv") if r["torch_npu"] == torch_npu), None)
    if row is None:
        return f"torch_npu {torch_npu} and torch {torch} fit; their CANN is not in our table"
    if cann is None:
        return f"torch_npu {torch_npu} is for CANN {row['cann']}; no CANN was found"
    if cann.lower() != row["cann"].lower():
        return f"MISMATCH: torch_npu {torch_npu} is for CANN {row['cann']}, found {cann}"
    return f"torch {torch}, torch_npu {torch_npu} and CANN {cann} fit"


def _typed(key: str, value: str, kind: str) -> object:
    if kind.startswith("bool"):
        if value not in ("True", "False"):
            raise InputError(f"{VARIABLE}: {key} is {value!r}", fix="True or False, spelled like that")
        return value == "True"
    try:
        return int(value) if kind.startswith("int") else float(value) if kind.startswith("float") else value
    except ValueError:
        raise InputError(f"{VARIABLE}: {key} is {value!r}", fix=f"give a {kind.split(' ')[0]}") from None


def _problem(field: attrs.Attribute[object], value: object, release: Release) -> str | None:
    about, name = field.metadata, field.name
    if value is None:
        return None
    if about.get("newer") and release is Release.V2_9:
        return f"{name} is unknown to torch_npu 2.9: it stops with an error"
    if "one_of" in about and value not in about["one_of"]:
        return f"{name} is {value}; it can only be {' or '.join(about['one_of'])}"
    number = float(value) if isinstance(value, int | float) else 0.0
    if "above" in about and number <= about["above"]:
        return f"{name} is {value}; it must be above {about['above']}"
    if "range" in about and not about["range"][0] <= number <= about["range"][1]:
        return f"{name} is {value}; it must be from {about['range'][0]} to {about['range'][1]}"
    if "between" in about and not about["between"][0] < number < about["between"][1]:
        return f"{name} is {value}; it must be between {about['between'][0]} and {about['between'][1]}"
    return None


def _bad_divisions(text: str) -> str | None:
    """One power of two (or 0), or ``[256:1,512:2,>:8]`` with powers of two on both sides."""
    pairs = re.fullmatch(r"\[((?:\d+|>):\d+(?:,(?:\d+|>):\d+)*)\]", text)
    numbers = re.findall(r"\d+", text) if pairs or re.fullmatch(r"\d+", text) else ["3"]
    bad = [n for n in numbers if int(n) & (int(n) - 1)]
    return f"roundup_power2_divisions is {text}; it takes powers of two" if bad else None
