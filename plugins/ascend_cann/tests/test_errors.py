"""Codes and texts of the vendor become errors with a cause and a next step."""

from __future__ import annotations

import pytest
from isthmus.errors import (
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    InputError,
    IsthmusError,
    OutOfMemoryError,
    UnavailableError,
)
from isthmus_ascend_cann import _tables, books, errors

NEW = "[PID: 7] 2026-12-01-10:00:00.000.000 Memory_Allocation_Failure(EL0004): Failed to allocate memory.\n  Possible Cause: full"
OLD = "EL0004: [PID: 7] 2025-01-01-10:00:00.000.000 Failed to allocate memory."


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (207001, OutOfMemoryError),
        (207018, OutOfMemoryError),
        (245000, OutOfMemoryError),
        (200000, OutOfMemoryError),
        (107002, ExecutionError),
        (145000, IncompatibleError),
        (145002, InputError),
        (107001, UnavailableError),
        (100039, UnavailableError),
        (507010, DeviceLostError),
        (507054, DeviceLostError),
        (507015, ExecutionError),
        (999999, ExecutionError),
    ],
)
def test_a_code_decides_the_kind_of_error(code: int, kind: type[IsthmusError]) -> None:
    error = errors.error("aclCall", code, "")
    assert type(error) is kind
    assert error.status is not None
    assert (error.status.call, error.status.code) == ("aclCall", code)


@pytest.mark.parametrize("text", [NEW, OLD])
def test_out_of_memory_is_recognised_in_the_text_of_another_code(text: str) -> None:
    error = errors.error("aclrtSetDevice", 507033, text)
    assert isinstance(error, OutOfMemoryError)
    assert "npu-smi info" in (error.fix or "")


def test_both_layouts_of_a_message_give_its_codes() -> None:
    assert errors.message_codes(f"{NEW}\n{OLD}\nE10001: bad\n  x (EZ3002): y") == ["EL0004", "E10001", "EZ3002"]
    assert errors.message_codes("nothing; E1 and (E10001) are no codes") == []


def test_the_most_specific_row_explains_a_message_code() -> None:
    found = [errors.message_meaning(c) for c in ("EL0004", "EL9999", "ZZZZZZ")]
    assert [m and m.code for m in found] == ["EL0004", "EL....", None]


def test_the_message_outranks_the_code_in_the_next_step() -> None:
    error = errors.error("aclmdlLoadFromFileWithMem", 145000, "E13025: too small")
    assert error.fix == "allocate what isthmus size says"
    assert "too small" in (error.why or "")


def test_text_that_was_there_before_is_not_new() -> None:
    assert errors.new_text("old", "old") == ""
    assert errors.new_text("old", "new\nold") == "new"
    assert errors.new_text("old", "a replacement") == "a replacement"
    assert errors.new_text("", "first") == "first"
    old = "old text " * 40
    assert errors.new_text(old, "new\n" + old[:-100]) == "new"  # the vendor keeps so much and no more


def test_a_long_text_keeps_its_head_and_its_tail() -> None:
    short = errors.shorten("a" * 5000 + "end")
    assert len(short) < 2100
    assert short.endswith("end")


def test_every_row_of_the_tables_is_complete() -> None:
    codes = _tables.rows("acl_errors.tsv")
    assert len(codes) == 251
    assert len({r["code"] for r in codes}) == len(codes)
    for row in codes:
        assert row["symbol"].startswith("ACL_ERROR_")
        assert row["meaning"]
        assert type(errors.error("call", int(row["code"]), "")) in errors._KINDS.values()
        assert bool(row["cause"]) == bool(row["fix"])
    for row in _tables.rows("message_codes.tsv"):
        assert len(row["pattern"]) == 6
        assert row["meaning"]


LOGS = [
    # (what the vendor printed, code, what the error must say): tails of public reports, shortened
    ("EE9999: Inner Error! rtMemcpy ... feature not support", 507013, "staging_kib=0"),
    ("EZ3002: Optype [Resize] of Ops kernel [AIcoreEngine] is unsupported. Dynamic shape is not supported on this chip!", 500002, "range shapes"),
    ("E10001: Value [Ascend910B] for parameter [soc_version] is invalid", 145000, "doctor"),
    ("E19999: opp version of the model does not match", 500002, "same CANN"),
    ("", 507008, "driver mounts"),
    ("", 507009, "virtual NPU"),
    ("", 107002, "no current context"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "says"), LOGS)
def test_known_reports_get_their_cause(text: str, code: int, says: str) -> None:
    assert says in str(errors.error("aclCall", code, text))


NPU_SMI = """
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4242          | python3.11               | 30412                   |
| 1       0                 | 77            | mindie                   | 12                      |
+===========================+===============+====================================================+
"""


def test_other_processes_are_read_from_npu_smi() -> None:
    assert books.parse_processes(NPU_SMI, 77) == ["pid 4242 python3.11 30412 MB"]
    assert books.parse_processes("| No running processes found in NPU 0 |", 1) == []


def test_the_checks_start_with_the_processes_that_are_there() -> None:
    text = books.checks(["pid 4242 python3.11 30412 MB"])
    assert text.index("4242") < text.index("left over") < text.index("VISIBLE") < text.index("gears")
