"""SoC names, gears and compile options: what is refused, with which rule, before ATC is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import isthmus
import pytest
from isthmus.errors import CompileError, InputError, IsthmusError, UnsupportedError
from isthmus.options import parse_options
from isthmus_ascend_cann import soc, source
from isthmus_ascend_cann.atc_checks import check_options, gear_specs, input_shapes, parse_input_shape
from isthmus_ascend_cann.atc_options import CompileOptions, Precision
from isthmus_ascend_cann.gears import GearKind, Gears, entry_name, parse_gears

A2 = soc.find("Ascend910B4")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Ascend910B", "first-generation"),
        ("Ascend310P", "Ascend310P3"),
        ("Ascend310B", "B1 to B4"),
        ("Ascend910C", "A3"),
        ("910B3", "Ascend910B3"),
        ("ascend910b3", "Ascend910B3"),
        ("Ascend910_93", "four digits"),
        ("Ascend910B9", "did you mean"),
        ("", "use one of"),
    ],
)
def test_a_wrong_soc_name_is_explained(name: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        isthmus.registry().backend("ascend").dialect(name)
    assert says in str(caught.value)


def test_the_first_generation_910b_has_a_name_that_cannot_be_meant_by_mistake() -> None:
    assert soc.find("Ascend910B-gen1").version == "Ascend910B"
    assert soc.of_version("Ascend910B").name == "Ascend910B-gen1"


def test_chips_of_the_installed_toolkit_are_targets_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "x86_64-linux" / "data" / "platform_config"
    config.mkdir(parents=True)
    (config / "Ascend950PR_9599.ini").touch()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert "Ascend950PR_9599" in isthmus.registry().backend("ascend").targets()
    assert soc.find("Ascend950PR_9599").range_shapes is None


def test_the_dialect_is_one_that_atc_parses() -> None:
    dialect = isthmus.registry().backend("ascend").dialect("Ascend310P3")
    assert (dialect.opset, dialect.rms_norm, dialect.gelu, dialect.rope) == (17, "l2", "erf", "split")


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (GearKind.BATCH, "1", "E10035"),
        (GearKind.BATCH, "1,2,2", "E10039"),
        (GearKind.BATCH, "1,-2", "E10038"),
        (GearKind.BATCH, "1,x", "E10012"),
        (GearKind.BATCH, ",".join(map(str, range(1, 102))), "E10036"),
        (GearKind.IMAGE, "224,224;448", "E10037"),
        (GearKind.IMAGE, "224,224,3;448,448,3", "E10037"),
        (GearKind.DIMS, "1,2;3", "E10037"),
    ],
)
def test_a_gear_rule_that_is_broken_is_named(kind: GearKind, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_gears(kind, text)


def test_gears_fill_the_dynamic_dimensions() -> None:
    batch = parse_gears(GearKind.BATCH, "1,8")
    assert batch.flag() == "1,8"
    assert batch.shape((8,), [(-1, 3), (-1,), (2,)]) == [(8, 3), (8,), (2,)]
    image = parse_gears(GearKind.IMAGE, "224,448;448,224")
    assert image.flag() == "224,448;448,224"
    assert image.shape((224, 448), [(1, 3, -1, -1)]) == [(1, 3, 224, 448)]
    dims = Gears(GearKind.DIMS, ((1, 128, 7),))
    assert dims.shape((1, 128, 7), [(-1, -1), (2, -1)]) == [(1, 128), (2, 7)]
    with pytest.raises(InputError, match="dynamic dimensions"):
        dims.shape((1, 128, 7), [(-1, -1)])
    assert entry_name("main", (224, 448)) == "main@224x448"


@pytest.fixture
def graph_of(graph: Callable[..., Path]) -> Callable[..., source.Source]:
    return lambda **about: source.read_source("main", graph(**about))


def options(**given: object) -> CompileOptions:
    return parse_options(CompileOptions, given, "compile option of ascend")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dynamic_batch_size": "1,2", "dynamic_dims": "1;2"}, "E10009"),
        ({"dynamic_batch_size": "1,2"}, "needs input_shape"),
        ({"dynamic_batch_size": "1,2", "input_shape": "x:4,64"}, "E10040"),
        ({"dynamic_batch_size": "1,2", "input_shape": "x:-1,64", "enable_single_stream": True}, "exclude each other"),
        ({"dynamic_dims": "1;2", "input_shape": "x:-1,64", "input_format": "NCHW"}, "needs input_format ND"),
        ({"input_shape": "x:4"}, "E10049"),
        ({"input_shape": "x:4,65"}, "E10049"),
        ({"input_shape": "z:4,64"}, "E10016"),
        ({"input_shape": "4,64"}, "E10002"),
        ({"input_shape": "x:0,64"}, "E10011"),
        ({"input_shape": "x:4,64;x:4,64"}, "twice"),
        ({"keep_dtype": "/nowhere"}, "is not a file"),
        ({"modify_mixlist": __file__}, "needs a mixed precision"),
        ({"keep_dtype": __file__, "precision": "must_keep_origin_dtype"}, "no effect"),
        ({"keep_dtype": __file__, "customize_dtypes": __file__}, "would win without a word"),
        ({"precision": "cube_hif8"}, "no hifloat8"),
        ({"optypelist_for_implmode": "MatMul"}, "needs op_select_implmode"),
        ({"op_select_implmode": "high_precision", "op_precision_mode": __file__}, "exclude each other"),
        ({"op_debug_level": 7}, "give 0 to 4"),
        ({"compile_jobs": 33}, "1 to 32"),
        ({"timeout_s": 0}, "must be positive"),
        ({"host_env_cpu": "aarch64"}, "needs host_env_os"),
        ({"op_compiler_cache_dir": "/tmp"}, "needs op_compiler_cache_mode"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, object], says: str, graph_of: Any) -> None:
    rows = "n" if str(given.get("input_shape", "")).startswith("x:-1") else 4
    with pytest.raises(InputError, match=says):
        check_options(options(**given), A2, [graph_of(rows=rows)])


@pytest.mark.parametrize(
    ("target", "given", "kind", "says"),
    [
        ("Ascend310B1", {"input_shape": "x:1~8,64"}, InputError, "does not run"),
        ("Ascend310", {"input_shape": "x:1~8,64"}, InputError, "EZ3002"),
        ("Ascend910B4", {"input_shape": "x:1~8,64"}, UnsupportedError, "fixed shapes"),
        ("Ascend310P3", {"precision": "allow_mix_precision_bf16"}, InputError, "no bfloat16"),
    ],
)
def test_what_a_chip_cannot_do_is_refused(
    target: str, given: dict[str, object], kind: type[IsthmusError], says: str, graph_of: Any
) -> None:
    with pytest.raises(kind, match=says):
        check_options(options(**given), soc.find(target), [graph_of(rows="n")])


def test_dynamic_aipp_is_refused_since_nothing_could_feed_it(tmp_path: Path, graph_of: Any) -> None:
    (tmp_path / "aipp.cfg").write_text("aipp_op { aipp_mode: dynamic }")
    with pytest.raises(UnsupportedError, match="dynamic AIPP"):
        check_options(options(insert_op_conf=str(tmp_path / "aipp.cfg")), A2, [graph_of()])


def test_gears_are_for_one_graph(graph_of: Any) -> None:
    one = graph_of(rows="n")
    with pytest.raises(InputError, match="for a single graph"):
        check_options(options(input_shape="x:-1,64", dynamic_batch_size="1,2"), A2, [one, one])


def test_a_dynamic_input_that_nothing_fixes_is_refused(graph_of: Any) -> None:
    with pytest.raises(InputError, match="E11005"):
        input_shapes(options(), A2, graph_of(rows="n"))


def test_input_shape_fixes_a_dynamic_input(graph_of: Any) -> None:
    one = graph_of(rows="n")
    shapes = input_shapes(options(input_shape="x:4,64"), A2, one)
    assert shapes == ((4, 64),)
    ((_, inputs),) = gear_specs(one, shapes, None).items()
    assert str(one.outputs_of(inputs)[0]) == "y: float32[4, 64]"


def test_names_with_colons_and_scalars_can_be_given_shapes() -> None:
    assert parse_input_shape("a:0:1,3;b:", A2) == {"a:0": (1, 3), "b": ()}


def test_options_become_flags_of_atc() -> None:
    flags = options(
        precision="allow_fp32_to_fp16",
        allow_hf32=False,
        external_weight="files",
        host_env_os="linux",
        host_env_cpu="aarch64",
    ).flags()
    assert "--precision_mode=allow_fp32_to_fp16" in flags
    assert "--allow_hf32=false" in flags
    assert "--external_weight=1" in flags
    assert "--host_env_cpu=aarch64" in flags
    assert "--disable_reuse_memory=0" in flags
    assert not any(f.startswith(("--timeout_s", "--compile_jobs", "--input_shape")) for f in flags)
    assert "--precision_mode_v2=mixed_hif8" in options(precision="mixed_hif8").flags()


def test_every_flag_is_one_that_atc_has() -> None:
    known = {row.split("\t")[0] for row in FLAGS.split()}
    assert {flag.removeprefix("--").split("=")[0] for flag in all_flags()} <= known


def all_flags() -> list[str]:
    values = {"precision": Precision.MIXED_HIF8}
    full = CompileOptions(**{f.name: values.get(f.name, f.default if f.default is not None else "1") for f in CompileOptions.__attrs_attrs__})  # type: ignore[attr-defined]  # fmt: skip
    return [*full.flags(), "--precision_mode=x"]


# from `api/atc/atc_flags.cc`, hicann/ge, August 2026
FLAGS = """
model output framework input_shape op_precision_mode allow_hf32 precision_mode precision_mode_v2 modify_mixlist keep_dtype
input_format input_fp16_nodes output_type op_select_implmode optypelist_for_implmode disable_reuse_memory soc_version
virtual_type aicore_num buffer_optimize fusion_switch_file compression_optimize_conf customize_dtypes dynamic_batch_size
dynamic_image_size dynamic_dims enable_small_channel sparsity enable_single_stream log op_debug_level op_compiler_cache_dir
op_compiler_cache_mode atomic_clean_policy external_weight deterministic host_env_os host_env_cpu is_weight_clip
insert_op_conf
"""


def test_precision_is_stated_with_its_consequence() -> None:
    for precision in Precision:
        assert options(precision=precision).notes()[0].startswith(f"precision {precision.value}: ")
    assert "65504" in options().notes()[0]


@pytest.mark.parametrize(("about", "says"), [({"opset": 19}, "parses up to 18"), ({"op": "Gelu", "opset": 18}, "Gelu")])
def test_operators_without_a_parser_are_refused(graph: Any, about: dict[str, Any], says: str) -> None:
    with pytest.raises(CompileError, match=says):
        source.check_operators(source.read_source("main", graph(**about)))


def test_external_data_that_is_cut_short_is_found_before_the_compile(tmp_path: Path, graph: Any) -> None:
    import onnx

    file = graph(inner=256, columns=256)
    onnx.save(onnx.load(file), tmp_path / "side.onnx", save_as_external_data=True, location="weights.data")
    whole = source.read_source("main", tmp_path / "side.onnx")
    assert whole.weight_bytes == 256 * 256 * 4
    data = tmp_path / "weights.data"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(InputError, match="has 1000 bytes"):
        source.read_source("main", tmp_path / "side.onnx")
    data.unlink()
    with pytest.raises(InputError, match="is missing"):
        source.read_source("main", tmp_path / "side.onnx")


def test_a_file_that_is_not_onnx_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not onnx at all")
    with pytest.raises(InputError, match="cannot be read as ONNX"):
        source.read_source("main", tmp_path / "bad.onnx")
