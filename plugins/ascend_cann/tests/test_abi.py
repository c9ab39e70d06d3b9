"""The ctypes table equals the vendor's headers: against committed figures always, against wheels when asked."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from isthmus_ascend_cann import _abi
from isthmus_ascend_cann.simulator._build import OWN_HEADERS

CONSTANTS = {n: v for n, v in vars(_abi).items() if n.startswith("ACL_") and isinstance(v, int)}
ALL = {**_abi.PROTOTYPES, **_abi.OPTIONAL}

# from the ACL headers of torch-npu 2.9 and 2.14 (`-m slow` compares with the wheels themselves)
FACTS = """
ACL_SUCCESS 0 ACL_ERROR_INVALID_PARAM 100000 ACL_ERROR_REPEAT_INITIALIZE 100002 ACL_ERROR_RT_CONTEXT_NULL 107002
ACL_ERROR_RT_STREAM_SYNC_TIMEOUT 507046
ACL_MEM_MALLOC_HUGE_FIRST 0 ACL_MEM_MALLOC_HUGE_ONLY 1 ACL_MEM_MALLOC_NORMAL_ONLY 2 ACL_MEM_MALLOC_HUGE_FIRST_P2P 3
ACL_MEM_MALLOC_HUGE_ONLY_P2P 4 ACL_MEM_MALLOC_NORMAL_ONLY_P2P 5 ACL_MEM_MALLOC_HUGE1G_ONLY 6
ACL_MEM_MALLOC_HUGE1G_ONLY_P2P 7
ACL_DDR_MEM 0 ACL_HBM_MEM 1 ACL_DDR_MEM_HUGE 2 ACL_DDR_MEM_NORMAL 3 ACL_HBM_MEM_HUGE 4 ACL_HBM_MEM_NORMAL 5
ACL_MEMCPY_HOST_TO_HOST 0 ACL_MEMCPY_HOST_TO_DEVICE 1 ACL_MEMCPY_DEVICE_TO_HOST 2 ACL_MEMCPY_DEVICE_TO_DEVICE 3
ACL_DEVICE 0 ACL_HOST 1 ACL_EVENT_TIME_LINE 8
ACL_FLOAT 0 ACL_FLOAT16 1 ACL_INT8 2 ACL_INT32 3 ACL_UINT8 4 ACL_INT16 6 ACL_UINT16 7 ACL_UINT32 8 ACL_INT64 9
ACL_UINT64 10 ACL_DOUBLE 11 ACL_BOOL 12 ACL_BF16 27 ACL_INT4 29
ACL_MDL_LOAD_TYPE_SIZET 1 ACL_MDL_PATH_PTR 2 ACL_MDL_WEIGHT_ADDR_PTR 5 ACL_MDL_WEIGHT_SIZET 6
ACL_MDL_WORKSPACE_ADDR_PTR 7 ACL_MDL_WORKSPACE_SIZET 8 ACL_MDL_LOAD_FROM_FILE_WITH_MEM 2
ACL_MAX_DIM_CNT 128 ACL_MAX_TENSOR_NAME_LEN 128
"""


def test_constants_are_those_of_the_headers() -> None:
    assert {n: int(v) for n, v in re.findall(r"(\w+) (\d+)", FACTS)} == CONSTANTS


def test_the_one_struct_has_the_layout_of_the_headers() -> None:
    assert ctypes.sizeof(_abi.aclmdlIODims) == 1160
    assert (_abi.aclmdlIODims.dimCount.offset, _abi.aclmdlIODims.dims.offset) == (128, 136)


def test_no_function_is_in_both_tables() -> None:
    assert not _abi.PROTOTYPES.keys() & _abi.OPTIONAL.keys()


def declared(headers: Path) -> dict[str, tuple[str, list[str]]]:
    """Result and argument types of every acl function, by gcc's own parser: preprocess, then split."""
    text = subprocess.run(
        ["cc", "-E", "-P", f"-I{headers}", "-"],
        input='#include "acl/acl.h"\n',
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {}
    for match in re.finditer(
        r"([\w \*]+?)\b(acl\w+)\s*\(([^;{]*?)\)\s*;", re.sub(r"__attribute__\s*\(\(.*?\)\)\)?", "", text)
    ):
        arguments = [a.strip() for a in match.group(3).replace("\n", " ").split(",")]
        found[match.group(2)] = (match.group(1).strip(), [] if arguments in ([""], ["void"]) else arguments)
    return found


def kind(c_type: str) -> str:
    """How a C type travels: pointer, or its size class."""
    if "*" in c_type or re.search(r"\b(aclrtContext|aclrtStream|aclrtEvent)\b", c_type):
        return "pointer"
    if re.search(r"\b(size_t|uint64_t|int64_t)\b", c_type):
        return "64"
    return "float" if "float" in c_type else "32"


def stated(argument: object) -> str:
    """The same for a type of the table."""
    if argument in (ctypes.c_void_p, ctypes.c_char_p, _abi.aclCreated) or hasattr(argument, "contents"):
        return "pointer"
    if argument in (ctypes.c_size_t, ctypes.c_uint64):
        return "64"
    return "float" if argument is ctypes.c_float else "32"


@pytest.fixture(scope="session")
def wheel_headers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Include directory of a torch-npu wheel: downloaded, unpacked, never imported."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip is None:
        pytest.skip("unavailable here: no pip in PATH")
    command = [pip, "download", "--no-deps", "--quiet", "--only-binary", ":all:", "--python-version", "311"]
    platforms = ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64", "--abi", "cp311"]
    done = subprocess.run(
        [*command, *platforms, "-d", str(directory), request.param],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"unavailable here: {request.param} cannot be downloaded: {done.stderr.strip()[-200:]}")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = "torch_npu/include/third_party/acl/inc/"
        archive.extractall(directory, [n for n in archive.namelist() if n.startswith(inside)])
    return directory / inside


def differences(headers: Path) -> list[str]:
    """Functions of the table whose prototype in the headers is another; an optional one may be absent."""
    functions = declared(headers)
    found = []
    for name, (result, *arguments) in ALL.items():
        if name not in functions:
            found += [f"{name} is missing"] if name in _abi.PROTOTYPES else []
            continue
        c_result, c_arguments = functions[name]
        if [kind(c_result), *map(kind, c_arguments)] != [stated(result), *map(stated, arguments)]:
            found.append(f"{name}: {c_result} ({', '.join(c_arguments)})")
    return found


def run_probe(headers: Path, directory: Path) -> dict[str, int]:
    """What the headers say of constants and layout, by compiling a program against them."""
    source, program = directory / "probe.c", directory / "probe"
    source.write_text(constants_probe())
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", f"-I{headers}", "-o", program, source], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in said.splitlines())}


LAYOUT = {
    "aclmdlIODims": ctypes.sizeof(_abi.aclmdlIODims),
    "dimCount": _abi.aclmdlIODims.dimCount.offset,
    "dims": _abi.aclmdlIODims.dims.offset,
}


@pytest.mark.skipif(shutil.which("cc") is None, reason="unavailable here: no C compiler")
def test_prototypes_are_those_that_the_simulator_declares() -> None:
    assert differences(OWN_HEADERS) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="unavailable here: no C compiler")
def test_a_prototype_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (_abi.aclError, *_abi.PROTOTYPES["aclrtMalloc"][1:2], ctypes.c_uint32, ctypes.c_int)
    monkeypatch.setitem(ALL, "aclrtMalloc", wrong)
    assert [d.split(":")[0] for d in differences(OWN_HEADERS)] == ["aclrtMalloc"]


@pytest.mark.slow
@pytest.mark.parametrize("wheel_headers", ["torch-npu==2.9.*", "torch-npu"], indirect=True)
def test_the_table_equals_the_headers_of_a_wheel(wheel_headers: Path, tmp_path: Path) -> None:
    assert differences(wheel_headers) == []
    assert run_probe(wheel_headers, tmp_path) == {**LAYOUT, **CONSTANTS}


def constants_probe() -> str:
    """C that prints every constant and the layout of the struct as the headers have them.

    Some wheels' headers use C++'s constexpr in what is else C.
    """
    prints = "".join(f'  printf("{n} %lld\\n", (long long)({n}));\n' for n in CONSTANTS)
    layout = "".join(f'  printf("{f} %zu\\n", offsetof(aclmdlIODims, {f}));\n' for f in ("dimCount", "dims"))
    return (
        '#include <stddef.h>\n#include <stdio.h>\n#define constexpr const\n#include "acl/acl.h"\nint main(void)\n{\n'
        f'  printf("aclmdlIODims %zu\\n", sizeof(aclmdlIODims));\n{layout}{prints}  return 0;\n}}\n'
    )
