import enum

import attrs
import pytest
from isthmus.errors import InputError
from isthmus.options import describe_options, parse_options
from isthmus.spi import NoOptions


class Mode(enum.Enum):
    FAST = "fast"
    SMALL = "small"


@attrs.frozen
class Options:
    count: int = attrs.field(default=1, metadata={"help": "how many"})
    ratio: float = 0.5
    on: bool = False
    name: str = ""
    mode: Mode = Mode.FAST
    limit: int | None = None
    even: int = attrs.field(default=2)

    @even.validator
    def _check(self, attribute, value):
        if value % 2:
            raise ValueError(f"{value} is odd")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Options()),
        ({"count": "3", "ratio": "1e-3", "on": "yes"}, Options(3, 1e-3, True)),
        ({"count": 3, "ratio": 2, "on": 0}, Options(3, 2.0, False)),
        ({"mode": "small", "name": "none"}, Options(mode=Mode.SMALL, name="none")),
        ({"mode": Mode.SMALL}, Options(mode=Mode.SMALL)),
        ({"limit": "none"}, Options()),
        ({"limit": ""}, Options()),
        ({"limit": "0x"[:1]}, Options(limit=0)),
        ({"limit": None}, Options()),
        ({"on": "OFF"}, Options()),
    ],
)
def test_strings_and_values_become_what_the_field_is(given, expected):
    parsed = parse_options(Options, given, "option")
    assert parsed == expected
    assert [type(getattr(parsed, f.name)) for f in attrs.fields(Options)] == [
        type(getattr(expected, f.name)) for f in attrs.fields(Options)
    ]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"coutn": 1}, "did you mean 'count'"),
        ({"zzz": 1}, "use one of: count"),
        ({"count": "x"}, "give a int"),
        ({"count": "1.5"}, "'1.5'"),
        ({"count": 1.5}, "1.5"),
        ({"count": True}, "True"),
        ({"count": None}, "needs a value"),
        ({"count": "9" * 5000}, "count"),
        ({"count": [1]}, "count"),
        ({"ratio": "nan"}, "nan"),
        ({"ratio": float("inf")}, "inf"),
        ({"ratio": 10**400}, "ratio"),
        ({"ratio": True}, "True"),
        ({"on": "maybe"}, "'maybe'"),
        ({"on": 2}, "2"),
        ({"mode": "slow"}, r"fast\|small"),
        ({"mode": []}, "mode"),
        ({"name": 5}, "5"),
        ({"even": 3}, "3 is odd"),
        ({"even": 2, "EVEN": 4}, "unknown"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(given, match):
    with pytest.raises(InputError, match=match):
        parse_options(Options, given, "option of x")


def test_dashes_are_underscores_and_two_spellings_are_not_two_options():
    @attrs.frozen
    class Dashed:
        two_words: int = 0

    assert parse_options(Dashed, {"two-words": "1"}, "option") == Dashed(1)
    with pytest.raises(InputError, match="twice"):
        parse_options(Dashed, {"two-words": "1", "two_words": "2"}, "option")


def test_a_backend_without_options_takes_none():
    assert parse_options(NoOptions, {}, "option") == NoOptions()
    with pytest.raises(InputError, match="use one of: none"):
        parse_options(NoOptions, {"x": 1}, "option")


def test_options_describe_themselves():
    described = {o["name"]: o for o in describe_options(Options)}
    assert described["count"] == {"name": "count", "type": "int", "default": 1, "help": "how many"}
    assert described["mode"]["type"] == "fast|small"
    assert described["mode"]["default"] == "fast"
    assert described["limit"]["type"] == "int"
