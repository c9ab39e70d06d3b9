"""Damaged model files: an error, never a crash or a hang. The library runs in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from isthmus_ascend_cann.simulator._build import OWN_HEADERS, compile_command

CHILD = """
import ctypes as ct, random, struct, sys

lib = ct.CDLL(sys.argv[1])
good, count, loads = open(sys.argv[2], "rb").read(), int(sys.argv[3]), int(sys.argv[4])
lib.aclmdlCreateDesc.restype = ct.c_void_p
for name in ("aclmdlGetNumInputs", "aclmdlGetNumOutputs"):
    getattr(lib, name).restype = ct.c_size_t
assert lib.aclInit(None) == 0 and lib.aclrtSetDevice(0) == 0
random = random.Random(int(sys.argv[5]))
HOSTILE = [0, 1, 7, 8, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
work, weight, model = ct.c_size_t(), ct.c_size_t(), ct.c_uint32()
dims = ct.create_string_buffer(300000)


def damage():
    data = bytearray(good)
    for _ in range(random.choice([1, 1, 2, 4, 16])):
        at = random.randrange(len(data) if random.random() < 0.5 else min(len(data), 700))
        kind = random.randrange(4)
        if kind == 0:
            data[at] = random.randrange(256)
        elif kind == 1:
            value = random.choice(HOSTILE)
            patch = struct.pack("<Q", value)[: random.choice([4, 8])]
            data[at : at + len(patch)] = patch
        elif kind == 2:
            del data[at : at + random.randrange(64)]
        else:
            data[at:at] = bytes(random.randrange(256) for _ in range(random.randrange(32)))
        if not data:
            data = bytearray(1)
    if random.random() < 0.8 and len(data) >= 256:  # get past the length check
        data[184:192] = struct.pack("<Q", len(data) - 256)
    return bytes(data)


def size(value):
    return ct.c_size_t(value & (2**64 - 1))


codes = {}
for index in range(count):
    data = damage()
    code = lib.aclmdlQuerySizeFromMem(data, size(len(data)), ct.byref(work), ct.byref(weight))
    codes[code] = codes.get(code, 0) + 1
    desc = ct.c_void_p(lib.aclmdlCreateDesc())
    if lib.aclmdlGetDescFromMem(desc, data, size(len(data))) == 0:
        for i in range(min(lib.aclmdlGetNumInputs(desc), 50)):
            lib.aclmdlGetInputDims(desc, size(i), dims)
            lib.aclmdlGetInputDimsV2(desc, size(i), dims)
            lib.aclmdlGetInputDimsRange(desc, size(i), dims)
        for i in range(min(lib.aclmdlGetNumOutputs(desc), 50)):
            lib.aclmdlGetOutputDims(desc, size(i), dims)
        lib.aclmdlGetDynamicBatch(desc, dims)
        lib.aclmdlGetDynamicHW(desc, size(-1), dims)
        lib.aclmdlGetInputDynamicGearCount(desc, size(-1), ct.byref(work))
        if 0 < work.value < 100:
            lib.aclmdlGetInputDynamicDims(desc, size(-1), dims, work)
    lib.aclmdlDestroyDesc(desc)
    if index < loads and lib.aclmdlLoadFromMem(data, size(len(data)), ct.byref(model)) == 0:
        lib.aclmdlUnload(model)
lib.isthmus_sim_used.restype = lib.isthmus_sim_live.restype = ct.c_size_t
print(len(codes), codes.get(0, 0), lib.isthmus_sim_used(0), lib.isthmus_sim_live())
"""


def fuzz(library: Path, om: Path, count: int, loads: int, seed: int, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(library), str(om), str(count), str(loads), str(seed)],
        env={**os.environ, "ISTHMUS_ASCEND_SIM_CAPACITY": "1G", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kinds, good, used, live = map(int, done.stdout.split())
    assert kinds > 1
    assert good < count
    assert (used, live) == (0, 0)


@pytest.mark.parametrize("kind", ["linear", "batches"])
def test_damaged_files_are_errors(sim_path, request, kind):
    fuzz(sim_path, request.getfixturevalue(kind)[0], 1500, 60, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "batches"])
def test_ten_thousand_damaged_files_under_the_address_sanitizer(request, tmp_path, kind):
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    if not Path(runtime.strip()).is_absolute():
        pytest.skip("unavailable here: libasan")
    checked = tmp_path / "libascendcl.so"
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", str(checked)]
    subprocess.run([*compile_command(OWN_HEADERS), *flags], check=True)
    om = request.getfixturevalue(kind)[0]
    fuzz(checked, om, 10_000, 300, 2, LD_PRELOAD=runtime.strip(), ASAN_OPTIONS="detect_leaks=0")
