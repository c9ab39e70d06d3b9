"""AscendCL as a table: constants, one struct, prototypes. Written by us; no logic.

Checked against the ACL headers inside torch-npu wheels by ``tests/test_abi.py``. Values and layouts are the same in
CANN 8.1.RC1, torch-npu 2.9 and 2.14.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

ACL_SUCCESS = 0
ACL_ERROR_INVALID_PARAM = 100000
ACL_ERROR_REPEAT_INITIALIZE = 100002
ACL_ERROR_RT_CONTEXT_NULL = 107002
ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046

ACL_MEM_MALLOC_HUGE_FIRST = 0
ACL_MEM_MALLOC_HUGE_ONLY = 1
ACL_MEM_MALLOC_NORMAL_ONLY = 2
ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3
ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4
ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5
ACL_MEM_MALLOC_HUGE1G_ONLY = 6
ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7

ACL_DDR_MEM = 0
ACL_HBM_MEM = 1
ACL_DDR_MEM_HUGE = 2
ACL_DDR_MEM_NORMAL = 3
ACL_HBM_MEM_HUGE = 4
ACL_HBM_MEM_NORMAL = 5

ACL_MEMCPY_HOST_TO_HOST = 0
ACL_MEMCPY_HOST_TO_DEVICE = 1
ACL_MEMCPY_DEVICE_TO_HOST = 2
ACL_MEMCPY_DEVICE_TO_DEVICE = 3

ACL_DEVICE = 0
ACL_HOST = 1

ACL_EVENT_TIME_LINE = 8

ACL_FLOAT = 0
ACL_FLOAT16 = 1
ACL_INT8 = 2
ACL_INT32 = 3
ACL_UINT8 = 4
ACL_INT16 = 6
ACL_UINT16 = 7
ACL_UINT32 = 8
ACL_INT64 = 9
ACL_UINT64 = 10
ACL_DOUBLE = 11
ACL_BOOL = 12
ACL_BF16 = 27
ACL_INT4 = 29

ACL_MDL_LOAD_TYPE_SIZET = 1
ACL_MDL_PATH_PTR = 2
ACL_MDL_WEIGHT_ADDR_PTR = 5
ACL_MDL_WEIGHT_SIZET = 6
ACL_MDL_WORKSPACE_ADDR_PTR = 7
ACL_MDL_WORKSPACE_SIZET = 8

ACL_MDL_LOAD_FROM_FILE_WITH_MEM = 2

ACL_MAX_DIM_CNT = 128
ACL_MAX_TENSOR_NAME_LEN = 128
ACL_DYNAMIC_TENSOR_NAME = b"ascend_mbatch_shape_data"


class aclmdlIODims(Structure):
    _fields_ = [
        ("name", c_char * ACL_MAX_TENSOR_NAME_LEN),
        ("dimCount", c_size_t),
        ("dims", c_int64 * ACL_MAX_DIM_CNT),
    ]


class aclError(c_int):
    """A type of its own, so that a status is never taken for a returned enumerator."""


class aclCreated(c_void_p):
    """A new handle: null when it could not be made."""


_handle = c_void_p
"""aclmdlDesc*, aclmdlDataset*, aclDataBuffer*, aclmdlConfigHandle*, aclrtContext, aclrtStream, aclrtEvent: opaque."""

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    # name: (result, *arguments)
    "aclInit": (aclError, c_char_p),
    "aclGetRecentErrMsg": (c_char_p,),
    "aclrtGetVersion": (aclError, POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)),
    "aclrtGetSocName": (c_char_p,),
    "aclrtGetDeviceCount": (aclError, POINTER(c_uint32)),
    "aclrtSetDevice": (aclError, c_int32),
    "aclrtResetDevice": (aclError, c_int32),
    "aclrtGetRunMode": (aclError, POINTER(c_int)),
    "aclrtCreateContext": (aclError, POINTER(_handle), c_int32),
    "aclrtDestroyContext": (aclError, _handle),
    "aclrtSetCurrentContext": (aclError, _handle),
    "aclrtGetCurrentContext": (aclError, POINTER(_handle)),
    "aclrtCreateStream": (aclError, POINTER(_handle)),
    "aclrtDestroyStream": (aclError, _handle),
    "aclrtSynchronizeStreamWithTimeout": (aclError, _handle, c_int32),
    "aclrtCreateEventWithFlag": (aclError, POINTER(_handle), c_uint32),
    "aclrtRecordEvent": (aclError, _handle, _handle),
    "aclrtEventElapsedTime": (aclError, POINTER(c_float), _handle, _handle),
    "aclrtDestroyEvent": (aclError, _handle),
    "aclrtMalloc": (aclError, POINTER(c_void_p), c_size_t, c_int),
    "aclrtFree": (aclError, c_void_p),
    "aclrtMallocHost": (aclError, POINTER(c_void_p), c_size_t),
    "aclrtFreeHost": (aclError, c_void_p),
    "aclrtMemcpy": (aclError, c_void_p, c_size_t, c_void_p, c_size_t, c_int),
    "aclrtMemcpyAsync": (aclError, c_void_p, c_size_t, c_void_p, c_size_t, c_int, _handle),
    "aclrtGetMemInfo": (aclError, c_int, POINTER(c_size_t), POINTER(c_size_t)),
    "aclmdlQuerySize": (aclError, c_char_p, POINTER(c_size_t), POINTER(c_size_t)),
    "aclmdlLoadFromFileWithMem": (
        aclError,
        c_char_p,
        POINTER(c_uint32),
        c_void_p,
        c_size_t,
        c_void_p,
        c_size_t,
    ),
    "aclmdlCreateConfigHandle": (aclCreated,),
    "aclmdlDestroyConfigHandle": (aclError, _handle),
    "aclmdlSetConfigOpt": (aclError, _handle, c_int, c_void_p, c_size_t),
    "aclmdlLoadWithConfig": (aclError, _handle, POINTER(c_uint32)),
    "aclmdlUnload": (aclError, c_uint32),
    "aclmdlCreateDesc": (aclCreated,),
    "aclmdlDestroyDesc": (aclError, _handle),
    "aclmdlGetDesc": (aclError, _handle, c_uint32),
    "aclmdlGetNumInputs": (c_size_t, _handle),
    "aclmdlGetNumOutputs": (c_size_t, _handle),
    "aclmdlGetInputNameByIndex": (c_char_p, _handle, c_size_t),
    "aclmdlGetInputSizeByIndex": (c_size_t, _handle, c_size_t),
    "aclmdlGetOutputSizeByIndex": (c_size_t, _handle, c_size_t),
    "aclmdlGetInputDataType": (c_int, _handle, c_size_t),
    "aclmdlGetOutputDataType": (c_int, _handle, c_size_t),
    "aclmdlCreateDataset": (aclCreated,),
    "aclmdlDestroyDataset": (aclError, _handle),
    "aclmdlAddDatasetBuffer": (aclError, _handle, _handle),
    "aclCreateDataBuffer": (aclCreated, c_void_p, c_size_t),
    "aclUpdateDataBuffer": (aclError, _handle, c_void_p, c_size_t),
    "aclDestroyDataBuffer": (aclError, _handle),
    "aclmdlExecuteAsync": (aclError, c_uint32, _handle, _handle, _handle),
    "aclmdlSetDynamicBatchSize": (aclError, c_uint32, _handle, c_size_t, c_uint64),
    "aclmdlSetDynamicHWSize": (aclError, c_uint32, _handle, c_size_t, c_uint64, c_uint64),
    "aclmdlSetInputDynamicDims": (aclError, c_uint32, _handle, c_size_t, POINTER(aclmdlIODims)),
}

OPTIONAL: dict[str, tuple[Any, ...]] = {
    # not in every CANN from 8.1.RC1 on
    "aclrtDestroyStreamForce": (aclError, _handle),
    "aclFinalizeReference": (aclError, POINTER(c_uint64)),
    "aclmdlSetExternalWeightAddress": (aclError, _handle, c_char_p, c_void_p, c_size_t),
}
