"""The simulator against the vendor's own headers, and against ours where there are none."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from isthmus.errors import UnavailableError
from isthmus_ascend_cann.simulator import _build, library
from isthmus_ascend_cann.simulator._build import OWN_HEADERS, compile_command

OWN = (OWN_HEADERS / "acl" / "acl.h").read_text()
RELEASES = ["torch-npu==2.9.0.post9", "torch-npu"]


def test_it_compiles_without_a_warning_against_our_declarations(sim_path):
    assert sim_path.name == "libascendcl.so"
    assert library(OWN_HEADERS).read_bytes() == sim_path.read_bytes()


def test_a_changed_prototype_does_not_compile(tmp_path, monkeypatch):
    monkeypatch.setattr(_build, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(_build, "_FLAGS", (*_build._FLAGS, "-fsyntax-only"))  # the parser finds it
    shutil.copytree(OWN_HEADERS, tmp_path / "include")
    header = tmp_path / "include" / "acl" / "acl.h"
    header.write_text(
        OWN.replace(
            "aclError aclrtMalloc(void **devPtr, size_t size", "aclError aclrtMalloc(void **devPtr, unsigned size"
        )
    )
    with pytest.raises(UnavailableError) as caught:
        library(tmp_path / "include")
    assert "conflicting types for ‘aclrtMalloc’" in str(caught.value).replace("'", "‘", 1).replace("'", "’", 1)
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UnavailableError, match="needs a C compiler") as caught:
        library(OWN_HEADERS)
    assert "apt-get install" in str(caught.value)


def test_headers_of_an_installed_wheel_are_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "torch_npu"
    (package / "include" / "acl").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert _build.vendor_headers() is None  # a wheel without the headers, or with older ones that are C++
    (package / "include" / "acl" / "acl.h").write_text(OWN)
    assert _build.vendor_headers() == package / "include"


def constants() -> list[tuple[str, str]]:
    """Every constant of our header with its value."""
    return [*re.findall(r"#define (ACL_\w+) (\d+)", OWN), *re.findall(r"\b(ACL_\w+) = (-?\d+)", OWN)]


def structures() -> list[str]:
    return re.findall(r"^\} (acl\w+);", OWN, re.MULTILINE)


@pytest.fixture(scope="module", params=RELEASES)
def wheel_headers(request, tmp_path_factory) -> Path:
    """The headers out of a wheel, which is neither installed nor imported."""
    directory = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(directory), request.param],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        done = subprocess.run(
            ["pip", "download", "-q", "--no-deps", "--python-version", "3.11", "--only-binary=:all:", "--dest",
             str(directory), request.param],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"unavailable here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [n for n in archive.namelist() if n.startswith("torch_npu/include/acl/")])
    return directory / "torch_npu" / "include"


@pytest.mark.slow
def test_it_compiles_without_a_warning_against_a_wheels_headers(wheel_headers, tmp_path):
    done = subprocess.run(
        [*compile_command(wheel_headers), "-o", str(tmp_path / "x.so")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_drift_of_a_wheels_header_does_not_compile(wheel_headers, tmp_path):
    shutil.copytree(wheel_headers, tmp_path / "include")
    for header in (tmp_path / "include" / "acl").glob("*.h"):
        text = header.read_text()
        header.write_text(re.sub(r"(aclrtMalloc\(void \*\*devPtr,\s*)size_t", r"\1unsigned", text))
    done = subprocess.run(
        [*compile_command(tmp_path / "include"), "-o", str(tmp_path / "x.so")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "conflicting types" in done.stderr


@pytest.mark.slow
def test_our_declarations_have_the_vendors_values_and_sizes(wheel_headers, tmp_path):
    """Sizes are taken from ours by compiling a program, and asserted in a unit that sees theirs."""
    names = structures()
    assert len(constants()) > 90
    assert {"aclmdlIODims", "aclmdlHW", "aclrtMallocConfig", "aclDataType"} <= set(names)
    printer = "".join(f'printf("{n} %zu\\n", sizeof({n}));' for n in names)
    (tmp_path / "sizes.c").write_text(
        f'#include <stdio.h>\n#include "acl/acl.h"\nint main(void) {{ {printer} return 0; }}'
    )
    subprocess.run(["cc", f"-I{OWN_HEADERS}", "sizes.c", "-o", "sizes"], cwd=tmp_path, check=True)
    sizes = subprocess.run(["./sizes"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split()
    asserted = [f"sizeof({n}) == {size}" for n, size in zip(sizes[::2], sizes[1::2])]
    checks = "".join(f"  if (!({c})) {{ puts({c!r}); bad = 1; }}\n".replace("'", '"') for c in asserted)
    checks += "".join(f'  if ({n} != {v}) {{ printf("{n} is %d\\n", (int){n}); bad = 1; }}\n' for n, v in constants())
    (tmp_path / "check.c").write_text(
        f'#include <stdio.h>\n#include "acl/acl.h"\nint main(void) {{\n  int bad = 0;\n{checks}  return bad;\n}}\n'
    )
    subprocess.run(["cc", f"-I{wheel_headers}", "check.c", "-o", "check"], cwd=tmp_path, check=True)
    done = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
