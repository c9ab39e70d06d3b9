"""The engine of ``isthmus explain``, with tables of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isthmus.explain import Cause, Explanation, decode, general

ROWS = (
    Explanation("catch", "many things", "here", codes=(1002,), symbols=("X_ERROR_MANY",), catch_all=True),
    Explanation("code", "one thing", "here", (Cause("why", "isthmus doctor"),), codes=(5005, 507011)),
    Explanation("symbol", "an E-code", "here", symbols=("E19010",)),
    Explanation("line", "a line", "here", pattern=r"limit is \d+ KB"),
)


def _ids(text):
    return [f.explanation.id for f in decode(text.splitlines(), {"x": ROWS})]


@pytest.mark.parametrize(
    "text",
    [
        "5005",
        "0x138d",
        "5005 (X)",
        "Error code: 5005",
        "Code: 5005",
        "err 5005",
        "error=5005",
        "ERROR(5005)",
        "status 0x138D;",
        "QnnContext_create returns 5005",
        "retCode is 5005",
        "failed with error code is 507011",
        "Error507011",
        "rtModelExecute, 507011",
        "E (0x138d)",
    ],
)
def test_a_code_is_found_where_a_code_may_stand(text):
    assert _ids(text) == ["code"]


@pytest.mark.parametrize(
    "text",
    [
        "took 5005 ms",
        "step=5005",
        "with 5005 tokens",
        "decode 5005 tokens",
        "tokens 5005 of 9000",
        "line 5005 of the file",
        "0x138dff",
        "error 50051",
        "error 5005.5",
        "a5005",
    ],
)
def test_a_number_anywhere_else_is_not_a_code(text):
    assert _ids(text) == []


def test_a_line_goes_before_a_code_and_a_code_before_a_catch_all():
    assert _ids("X_ERROR_MANY\nerror 5005\nE19010: no\n9 KB, limit is 8 KB") == ["line", "code", "symbol", "catch"]


def test_a_symbol_is_a_whole_word():
    assert _ids("X_ERROR_MANY_MORE") == []
    assert _ids("E190100") == []


def test_the_vendors_own_first_line_is_kept_and_the_others_are_counted():
    (found,) = decode(["noise", "  [QNN] failed, error 5005 ", "again: error 5005"], {"x": ROWS})
    assert (found.line, found.number, found.count) == ("[QNN] failed, error 5005", 2, 2)


def test_the_same_code_of_two_vendors_is_explained_by_both():
    found = decode(["error 5005"], {"x": ROWS, "y": ROWS})
    assert [f.backend for f in found] == ["x", "y"]


@given(st.text(max_size=300))
def test_no_text_breaks_it_and_nothing_is_explained_that_is_not_there(text):
    for found in decode(text.splitlines(), {"any": general(), "x": ROWS}):
        assert found.line in text


@pytest.mark.parametrize(
    ("fragment", "row"),
    [
        ("libfoo.so: cannot open shared object file", "library-missing"),
        ("load library failed", "library-missing"),
        ("undefined symbol: _ZTVN9mindspore12TypeAnythingE", "undefined-symbol"),
        ("host OOM: oom-kill of the compiler", "host-memory"),
        ("Unable to dump external data", "disk-full"),
        ("QnnFloatToHalf(src=0x0) SIGSEGV", "crash"),
        ("assign 58 multimodal tokens to 59 placeholders", "image-tokens"),
        ("65 = 65 multimodal tokens to 3905 placeholders", "image-tokens"),
        ("7 x 256 = 1792 multimodal tokens to 506 placeholders", "image-tokens"),
        ("13 x 256 = 3328 multimodal tokens to 0 placeholders", "image-tokens"),
        ("6 x 256 = 1536 image tokens to 466 placeholders", "image-tokens"),
        ("Mismatch in number of image tokens and image embedding size", "image-tokens"),
        ("!!!!", "degenerate-text"),
        ("GGGGG", "degenerate-text"),
        ("QNN execution provider is not supported in this build", "no-such-backend"),
        ("cannot import name 'GenieContext'; Unable to find a valid interface", "no-such-backend"),
        ("TracerWarning: this value will be treated as a constant", "traced-constant"),
        ("assert qkv.dtype in [torch.float16, torch.bfloat16]", "flash-attention"),
    ],
)
def test_fragments_that_any_backend_may_meet(fragment, row):
    (first, *_) = decode([fragment], {"any": general()})
    assert first.explanation.id == row
