"""Without CANN; what doctor finds; the settings of torch_npu and MindSpore."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import isthmus
import pytest
from isthmus.errors import InputError, UnavailableError
from isthmus_ascend_cann import _lib, doctor, toolkit, torch_npu
from isthmus_ascend_cann.mindspore import MemorySettings, leaving_room
from isthmus_ascend_cann.torch_npu import AllocConf, Release


@pytest.fixture(autouse=True)
def no_cann(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolkit, "DEFAULTS", (str(tmp_path / "nowhere"),))
    for name in (*toolkit.ENVIRONMENT, _lib.SIMULATOR_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_without_cann_and_simulator_one_error_says_what_was_searched_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        _lib._load_real()
    text = str(caught.value)
    assert "no AscendCL library here" in text
    assert "libascendcl.so" in text
    assert str(tmp_path / "nowhere") in text
    assert "set_env.sh" in text
    assert "ISTHMUS_ASCEND_SIMULATOR=1" in text


def test_without_cann_the_rest_of_the_backend_works() -> None:
    backend = isthmus.registry().backend("ascend")
    assert backend.targets()[0] == "Ascend910B4"
    assert backend.dialect("Ascend310P3").opset == 17
    assert backend.doctor()["atc"] == "none found"
    assert backend.doctor()["untested on an NPU"].startswith("everything")


def test_the_simulator_is_never_taken_for_the_library_even_where_that_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        _lib.library(True)
    except UnavailableError as error:
        pytest.skip(f"unavailable here: {error.what}")
    from isthmus_ascend_cann import simulator

    library = tmp_path / "lib64" / _lib.NAME
    library.parent.mkdir()
    library.symlink_to(simulator.library())
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="no AscendCL library") as caught:
        _lib._load_real()
    assert f"{library}: the simulator, which is used only when it is named" in str(caught.value)


def test_a_library_that_is_too_old_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "old.c").write_text("int aclInit(const char *p) { (void)p; return 0; }\n")
    library = tmp_path / "libascendcl.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "old.c"], check=True)
    with pytest.raises(isthmus.IsthmusError, match="aclrtMalloc"):
        _lib.Acl(ctypes.CDLL(str(library)), str(library))


@pytest.mark.parametrize(("value", "named"), [("1", True), ("true", True), ("0", False), ("", False), ("off", False)])
def test_the_environment_names_the_simulator(monkeypatch: pytest.MonkeyPatch, value: str, named: bool) -> None:
    monkeypatch.setenv(_lib.SIMULATOR_VARIABLE, value)
    assert _lib.simulator_named() is named


def test_importing_the_plugin_loads_neither_onnx_nor_a_library() -> None:
    code = (
        "import sys, isthmus; b = isthmus.registry().backend('ascend'); b.targets(); "
        "sys.exit(any(m in sys.modules for m in ('onnx', 'onnxruntime', 'isthmus_ascend_cann.simulator')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


VERSIONS = {
    "ascend_toolkit_install.info": ("package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V1\n", "8.5.0"),
    "version.info": ("Version=7.6.0.1.220:8.1.RC1\nversion_dir=8.1.RC1\n", "8.1.RC1"),
    "version.cfg": ("# c\nruntime_running_version=[7.3.0.1.231:8.0.RC2]\n", "8.0.RC2"),
    "driver.info": ("Version=24.1.rc1\nascendhal_version=7.35.19\n", "24.1.rc1"),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_version_files_of_all_kinds_are_read(tmp_path: Path, name: str) -> None:
    text, version = VERSIONS[name]
    (tmp_path / name).write_text(text)
    assert toolkit.read_version(tmp_path / name) == version


def test_doctor_reports_an_installed_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "version.info").write_text("Version=7.6.0.1.220:8.1.RC1\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    found = doctor.facts()
    assert found["CANN"] == f"8.1.RC1 in {tmp_path}"
    assert found["libascendcl.so"] == str(tmp_path / "lib64" / "libascendcl.so")
    assert found["ASCEND_HOME_PATH"] == str(tmp_path)
    assert found["simulator"] == "not named, so not used"


def test_doctor_judges_the_python_packages_of_cann() -> None:
    installed = {name.lower(): "1.0" for name in doctor._PYTHON_PACKAGES}
    assert doctor.python_packages({**installed, "numpy": "1.26.4"}, "8.2.RC1") == "all there"
    assert "numpy<2" in doctor.python_packages({**installed, "numpy": "2.1.0"}, "8.2.RC1")
    assert doctor.python_packages({**installed, "numpy": "2.1.0"}, "8.5.0") == "all there"
    del installed["decorator"], installed["scipy"]
    assert doctor.python_packages(installed, None) == "missing: decorator, scipy"


@pytest.mark.parametrize(
    ("torch", "npu", "cann", "says"),
    [
        (None, None, None, "not installed"),
        ("2.9.0+cpu", "2.9.0", "8.5.0", "fit"),
        ("2.8.0", "2.8.0.post2", "8.5.0", "fit"),
        ("2.8.0", "2.8.0", "8.5.0", "MISMATCH: torch_npu 2.8.0 is for CANN 8.3.RC1, found 8.5.0"),
        ("2.8.0", "2.9.0", "8.5.0", "MISMATCH: torch_npu 2.9.0 needs torch 2.9.0, found 2.8.0"),
        (None, "2.7.1.post2", "8.5.0", "needs torch 2.7.1, which is not installed"),
        ("2.9.0", "2.9.0", None, "no CANN was found"),
        ("2.14.0", "2.14.0", "9.0.0", "not in our table"),
    ],
)
def test_torch_torch_npu_and_cann_are_judged_as_a_set(
    torch: str | None, npu: str | None, cann: str | None, says: str
) -> None:
    assert says in torch_npu.judge(torch, npu, cann)


def test_allocator_settings_are_read_and_written() -> None:
    text = "max_split_size_mb:128,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,>:8]"
    conf = torch_npu.parse(text.replace(",", " , "))
    assert conf == AllocConf(
        max_split_size_mb=128, garbage_collection_threshold=0.8, roundup_power2_divisions="[256:1,512:2,>:8]"
    )
    assert str(conf) == text
    assert conf.checked(Release.V2_9) is conf
    assert str(AllocConf(expandable_segments=True)) == "expandable_segments:True"


@pytest.mark.parametrize(
    ("text", "release", "says"),
    [
        ("max_split_size_mb:20", Release.V2_9, "above 20"),
        ("garbage_collection_threshold:1.0", Release.V2_9, "between 0 and 1"),
        ("base_addr_aligned_kb:17", Release.V2_9, "from 0 to 16"),
        ("page_size:2m", Release.V2_9, "only be 1g"),
        ("segment_size_mb:600", Release.V2_9, "from 20 to 512"),
        ("segment_size_mb:64", Release.NEWER, "deprecated"),
        ("multi_stream_lazy_reclaim:True", Release.V2_9, "unknown to torch_npu 2.9"),
        ("per_process_memory_fraction:1.5", Release.NEWER, "from 0 to 1"),
        ("expandable_segments:True,max_split_size_mb:64", Release.NEWER, "exclude each other"),
        ("pinned_mem_register:True,pin_memory_expandable_segments:True", Release.NEWER, "switches pinned_mem_register off"),
        ("page_size:1g,segment_size_mb:64", Release.V2_9, "replaces segment_size_mb"),
        ("roundup_power2_divisions:3", Release.V2_9, "powers of two"),
        ("roundup_power2_divisions:[256:3]", Release.V2_9, "powers of two"),
    ],
)  # fmt: skip
def test_allocator_settings_a_release_refuses_are_found(text: str, release: Release, says: str) -> None:
    with pytest.raises(InputError, match=says):
        torch_npu.parse(text).checked(release)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_split_size:64", "unknown key"),
        ("expandable_segments:true", "True or False"),
        ("max_split_size_mb:x", "give a int"),
        ("max_split_size_mb", "not key:value"),
    ],
)
def test_allocator_settings_that_cannot_be_read_are_refused(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        torch_npu.parse(text)
    assert says in str(caught.value)


def test_the_environment_is_checked_for_the_release_that_is_installed() -> None:
    both = {"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "x"}
    assert torch_npu.check_environment({}, "2.9.0") == []
    assert "both set" in torch_npu.check_environment(both, "2.14.0")[0]
    assert torch_npu.check_environment({"PYTORCH_NPU_ALLOC_CONF": "nonsense:1"}, "2.9.0.post9")[0].endswith(
        "'nonsense'"
    )
    assert (Release.of("2.9.0.post9"), Release.of("2.14.0")) == (Release.V2_9, Release.NEWER)


def test_the_cache_of_torch_npu_must_leave_room() -> None:
    torch_npu.check_room(free=10, cached=0, need=10)
    with pytest.raises(InputError, match="cache holds 5 more") as caught:
        torch_npu.check_room(free=6, cached=5, need=10)
    assert "empty_cache" in str(caught.value)
    with pytest.raises(InputError, match="and 1 in torch_npu's cache"):
        torch_npu.check_room(free=6, cached=1, need=10)


def test_settings_of_mindspore_are_checked_and_spelled_for_both_of_its_interfaces() -> None:
    settings = MemorySettings(memory_optimize_level="O1", max_device_memory="20GB", mempool_block_size="2GB").checked()
    assert settings.set_memory() == {"optimize_level": "O1", "max_size": "20GB", "increase_size": "2GB"}
    assert settings.set_context()["memory_optimize_level"] == "O1"
    assert MemorySettings(memory_offload=True).set_context()["memory_offload"] == "ON"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (MemorySettings(memory_optimize_level="O2"), "O0 or O1"),
        (MemorySettings(max_device_memory="20"), "form is 8GB"),
        (MemorySettings(max_device_memory="0GB"), "form is 8GB"),
        (MemorySettings(mempool_block_size="0.5GB"), "at least 1GB"),
        (MemorySettings(memory_offload=True, memory_optimize_level="O1"), "needs memory_optimize_level O0"),
    ],
)
def test_settings_mindspore_refuses_are_found(settings: MemorySettings, says: str) -> None:
    with pytest.raises(InputError, match=says):
        settings.checked()


def test_mindspore_leaves_room_for_a_program() -> None:
    assert leaving_room(32 << 30, 5 << 30).max_device_memory == "27GB"
    with pytest.raises(InputError, match="at least 1 GB"):
        leaving_room(8 << 30, 8 << 30)
