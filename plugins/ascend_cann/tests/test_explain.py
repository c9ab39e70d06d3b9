"""Fragments of public reports about CANN, and what they must be taken for."""

import pytest
from isthmus.explain import decode, general
from isthmus_ascend_cann.backend import AscendBackend

TABLES = {"any": general(), "ascend": AscendBackend().explanations()}


@pytest.mark.parametrize(
    ("fragment", "row"),
    [
        ("EZ9999: unaligned UUB addresses", "unaligned"),
        ("support for Ascend910 is not implemented", "chip-not-supported"),
        ("retCode is 107017; invalid handle", "handle"),
        ("Allocation Granularity failed, runtime result = 207000", "device-memory"),
        ("supported socVersion=Ascend910B2, but the model socVersion=Ascend910B", "soc-mismatch"),
        ("socversion Ascend910B1 of bin package does not match the device Ascend310P3", "soc-mismatch"),
        ("undefined symbol in libtbe_adapter.so", "undefined-symbol"),
        ("SetPrecisionMode failed, error code is 500001", "cann-python"),
        ("ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT", "ACL 507009"),
        ("207001; register ptr failed", "device-memory"),
        ("error 207001", "ACL 207001"),
        ("Src_va is zero or not page alignment", "unaligned"),
        ("NPU out of memory. Tried to allocate 3.47 GiB", "device-memory"),
        ("call aclnnBatchMatMul failed", "kernel-failed"),
        ("Execute model failed, error:507011", "ACL 507011"),
        ("rtKernelLaunch… 507035", "ACL 507035"),
        ("runtime result = 507018", "ACL 507018"),
        ("507015; aclnnMoeGatingTopK", "kernel-failed"),
        ("E20001: StridedSliceD", "gears"),
        ("E19010: No parser is registered for MatMulInteger", "no-parser"),
        ("E19010: UnpadFlashAttentionMix", "E19010"),
        ("ai.onnx::13::Resize of this type is not supported", "no-parser"),
        ("Dynamic shape is not supported on this chip!", "chip-not-supported"),
        ("the dynamic_batch_size parameter is not specified", "gears"),
        ("CANNGRAPH failure -1: GRAPH_FAILED", "graph-failed"),
        ("500002: ACL_ERROR_GE_FAILURE … BroadcastToD", "kernel-failed"),
        ("Error507013; EE9999 … feature not support", "ACL 507013"),
        ("allow_mix_precision / allow_fp32_to_fp16", "precision-mode"),
        ("aclInit conflict", "init-twice"),
        ("aclInit returned 100002", "ACL 100002"),
        ("Memory_Allocation_Failure(EL0004): Failed to allocate memory.", "EL0004"),
        ("ggml-cann.cpp:63", "graph-failed"),
    ],
)
def test_a_fragment_is_explained_and_kept(fragment, row):
    (first, *_) = decode([fragment], TABLES)
    assert first.explanation.id == row
    assert first.line == fragment


def test_a_class_of_codes_speaks_only_where_no_row_of_its_own_does():
    assert [f.explanation.id for f in decode(["EZ9999: x"], TABLES)] == ["EZ9999"]
    assert [f.explanation.id for f in decode(["EZ1234: x"], TABLES)] == ["EZ...."]
    assert decode(["EZRIDER ELEVEN"], TABLES) == ()
