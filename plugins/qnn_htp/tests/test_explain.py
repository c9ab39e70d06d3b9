"""Fragments of public reports about QNN, and what they must be taken for."""

import pytest
from isthmus.explain import decode, general
from isthmus_qnn_htp import _lib, libraries
from isthmus_qnn_htp.backend import QnnHtp
from isthmus_qnn_htp.status import codes

TABLES = {"any": general(), "qnn_htp": QnnHtp().explanations()}


@pytest.mark.parametrize(
    ("fragment", "row"),
    [
        ("Failed to finalize QNN graph", "finalize"),
        ("could not create op: q::flat_from_vtcm; err 1002; status 0x3ea", "create-op"),
        ('"/MatMul" generated: could not create op; graph prepare failed 12', "create-op"),
        ("QNN graph execute error. Error code: 6031", "QNN 6031"),
        ("graph execute error. Error code: 6001", "QNN 6001"),
        ("graph execute error. Error code: 1100", "QNN 1100"),
        ("nodes assigned to the default CPU EP", "cpu-fallback"),
        ("session.disable_cpu_ep_fallback", "cpu-fallback"),
        ("rpcmem buffers not freed", "fastrpc-map"),
        ("REASON : Type not supported", "type-refused"),
        ("FP64 data type unsupported", "type-refused"),
        ("HTP v68 has no FP32/FP16", "v68-float"),
        ("Error code: 6005", "QNN 6005"),
        ("QNN_MEMORY_ALLOCATION_ERROR, 1002", "QNN 1002"),
        ("ort_version_supported=0", "ort-plugin-version"),
        ("invalid ort_version_supported=0 (expected at least 22)", "ort-plugin-version"),
        ("QNN_DEVICE_ERROR_INVALID_CONFIG", "QNN 14001"),
        ("RX VA 0xFFF00000 outside ELF segment", "skel-load"),
        ("Error 0x72 from an untrusted app: open a signed remote process", "signed-domain"),
        ("Failed to create device. Error: 1008", "QNN 1008"),
        ("Error code: 5005", "QNN 5005"),
        ("err 5005", "QNN 5005"),
        ("context index = 0 : err 5000", "binary-version"),
        ("Request feature arch with value 79 unsupported; 0x138d", "other-arch"),
        ("memRegister ERROR(8002); err 1002", "QNN 8002"),
        ("requires estimated allocation of 2347229 KB, limit is 2097152 KB", "graph-limit"),
        ("2741569 KB, limit is 2097152 KB", "graph-limit"),
        ("memory usage too large", "graph-limit"),
        ("QnnDevice_create returns 14001", "QNN 14001"),
        ("qnn_open=0x80000600", "skel-load"),
        ("1008 (QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE)", "QNN 1008"),
        ("unsupported ops (backend=HTP0): UPSCALE", "unsupported-op"),
        ("Different len(graphs): Found 1 vs 6", "bundle-roles"),
        ("dspqueue_read failed: 0x0000002e", "dspqueue-read"),
        ("fastrpc memory map of length: 614656 failed with error: 0x1", "fastrpc-map"),
        ("length: 440401920 failed with error: 0x1", "fastrpc-map"),
        ("qnn_open failed, 0x80000406", "skel-load"),
        ("QNN 2.25.0 detected, need 2.26.0", "binary-version"),
        ("Unsupported context binary version", "binary-version"),
        ("Failed to find available PD; context size estimate 486802688; err 1002", "process-domain"),
        ("Failed to get context binary size with err 0x7532; Error 30002", "QNN 30002"),
        ("Failed to interpret QNN context binary. Error code 30010", "QNN 30010"),
        ("Unknown QNN BinaryInfo version 3", "binary-version"),
        ("The SocModel doesn't support FP16", "compiler-4"),
        ("only supports static shape", "static-shape"),
        ("MatMul FLOAT_16 × UFIXED_POINT_8 not supported", "type-refused"),
        ("projected to use 10023 MiB vs. 8192 MiB; dspqueue_write 0x0000000e", "session-limit"),
        ("failed to open session 0 : error 0x72", "signed-domain"),
        ("buffer size 556236800 exceeds max_bufsize 268435456", "session-limit"),
        ("Int16 is not supported by QNN", "type-refused"),
        ("no properties registered for q::GroupedConv2d_w_scale", "create-op"),
        ("Unable to load Remote symbols 4000; 14001", "skel-load"),
        ("Error in verify skel version; 4000; 14001", "skel-version"),
        ("Failed to create QNN context for function qnn_partition_7; 1002", "interpret-binary"),
    ],
)
def test_a_fragment_is_explained_and_kept(fragment, row):
    (first, *_) = decode([fragment], TABLES)
    assert first.explanation.id == row
    assert first.line == fragment
    assert first.explanation.causes


def test_symbols_of_the_table_are_those_of_the_library():
    core = _lib.open_core(libraries.find().core)
    wrong = {
        c.code: said
        for c in codes().values()
        if c.symbol and (said := core.message(c.code).partition(":")[0]) != c.symbol
    }
    assert not wrong
