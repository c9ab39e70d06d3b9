"""The table of chips, and what its names mean."""

import re

import pytest
from isthmus.errors import InputError
from isthmus.types import Dialect
from isthmus_qnn_htp import targets
from isthmus_qnn_htp.options import CompileOptions
from isthmus_qnn_htp.targets import Target


@pytest.mark.parametrize("spelling", ["sm8650", "SM8650", " Sm8650 ", "v75", "V75", "soc:57", "SOC:57"])
def test_a_chip_has_several_names(spelling):
    assert targets.parse(spelling) == Target(57, "SM8650", 75, 8, fp16=True)


def test_every_name_listed_can_be_parsed_and_the_first_is_the_default():
    assert targets.names()[0] == targets.DEFAULT == "sm8650"
    chips = [targets.parse(name) for name in targets.names()]
    assert len({name.lower() for name in targets.names()}) == len(chips)
    assert all(targets.parse(f"soc:{chip.soc}") == chip for chip in chips)


def test_an_architecture_means_a_chip_of_that_architecture():
    arches = [name for name in targets.names() if re.fullmatch(r"v\d+", name)]
    assert {int(name[1:]) for name in arches} == {targets.parse(name).arch for name in targets.names()}
    assert all(targets.parse(name).arch == int(name[1:]) for name in arches)


@pytest.mark.parametrize(("wrong", "near"), [("sm8651", "sm865"), ("qcs9101", "qcs9100"), ("v74", "v7")])
def test_an_unknown_name_is_refused_with_the_nearest(wrong, near):
    with pytest.raises(InputError, match=f"no target '{wrong}'") as error:
        targets.parse(wrong)
    assert near in (error.value.why or "")


@pytest.mark.parametrize("wrong", ["", "57", "soc:", "soc:9999", "soc:57x", "v", "v750", "sm8650 sm8550"])
def test_what_is_no_name_at_all_is_refused(wrong):
    with pytest.raises(InputError, match="has no target"):
        targets.dialect(wrong)


def test_float_graphs_are_for_chips_that_have_fp16_from_v73_on():
    assert targets.parse("sm8550").float_graphs
    assert not targets.parse("sm8735").float_graphs, "v73, but the compiler says it has no fp16"
    assert not targets.parse("sa8295").float_graphs, "the compiler says fp16, but it is v68"
    assert not targets.parse("sm8450").float_graphs


def test_graphs_for_htp_are_spelled_in_standard_onnx_17():
    assert targets.dialect("v81") == Dialect("qnn_htp", opset=17, rms_norm="l2", mask_value=-1e4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in targets.names() if not re.fullmatch(r"v\d+", n)])
def test_the_table_is_what_the_compiler_says(name, graphs, compiled, tmp_path):
    chip = targets.parse(name)
    log = tmp_path / "log"
    compiled(graphs.quantized_matmul(), name, log=str(log))  # refuses a binary of another SoC or architecture
    said = log.read_text(errors="replace")
    assert re.search(r"SoC model name is (\S+)", said)[1] == chip.name
    assert int(re.search(r"VTCM: total_sz=(\d+)", said)[1]) == chip.vtcm_mb << 20
    assert ("SocModel supports FP16" in said) is chip.fp16
    assert CompileOptions(vtcm_mb=chip.vtcm_mb).vtcm_mb == chip.vtcm_mb
