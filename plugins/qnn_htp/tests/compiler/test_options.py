"""Compile options: everything is checked by us, because the compiler takes nonsense in silence."""

import pytest
from isthmus.errors import InputError, UnsupportedError
from isthmus.options import describe_options, parse_options
from isthmus_qnn_htp import targets
from isthmus_qnn_htp.options import CompileOptions, IoDtype, Toolchain, check_options


def parsed(**given):
    return parse_options(CompileOptions, given, "compile option of qnn_htp")


def test_strings_of_the_command_line_become_typed_values():
    options = parsed(toolchain="qairt", vtcm_mb="4", io_dtype="float16", weight_sharing="true", optimization="1")
    assert options == CompileOptions(
        Toolchain.QAIRT, io_dtype=IoDtype.FLOAT16, vtcm_mb=4, weight_sharing=True, optimization=1
    )


def test_every_option_has_a_help_text():
    assert all(option["help"] for option in describe_options(CompileOptions))


@pytest.mark.parametrize(
    "given",
    [
        {"vtcm_mb": "0"},
        {"vtcm_mb": "-1"},
        {"vtcm_mb": "abc"},
        {"vtcm_mb": "32"},
        {"optimization": "0"},
        {"optimization": "4"},
        {"hvx_threads": "9"},
        {"io_dtype": "int8"},
        {"precision": "fp32"},
        {"toolchain": "snpe"},
        {"weight_bits": "5", "calibration": "d"},
        {"activation_bits": "16"},
        {"weight_sharing": "perhaps"},
        {"vtcm": "4"},
        {"htp_arch": "75"},
    ],
)
def test_a_wrong_key_or_value_is_refused(given):
    with pytest.raises(InputError):
        parsed(**given)


@pytest.mark.parametrize(
    ("given", "target", "error", "said"),
    [
        ({"vtcm_mb": 8}, "sm7550", InputError, "SM7550 .* has 2 MiB"),
        ({"precision": "bf16"}, "sm8650", UnsupportedError, "no bfloat16"),
        ({"weight_sharing": True}, "sm8450", UnsupportedError, "cannot share weights"),
        ({"hvx_threads": 4}, "sm8650", UnsupportedError, "hvx_threads needs toolchain=qairt"),
        ({"calibration": "dir"}, "sm8650", UnsupportedError, "calibration needs toolchain=qairt"),
        ({"precision": "bf16", "toolchain": "qairt"}, "sc8480xp", UnsupportedError, "needs toolchain=ort"),
        ({"allow_cpu_nodes": True}, "sm8650", UnsupportedError, "allow_cpu_nodes"),
    ],
)
def test_what_the_chip_or_the_toolchain_cannot_do_is_refused(given, target, error, said):
    with pytest.raises(error, match=said):
        check_options(parsed(**given), targets.parse(target))


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({"vtcm_mb": 12}, "sm8975"),
        ({"precision": "bf16"}, "sc8480xp"),
        ({"hvx_threads": 4, "toolchain": "qairt", "calibration": "dir", "weight_bits": 4}, "sm8650"),
    ],
)
def test_what_they_can_do_is_not(given, target):
    check_options(parsed(**given), targets.parse(target))
