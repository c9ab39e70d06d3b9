"""The part of the QNN C API this backend calls, as a dead table in the vendor's spelling.

Layouts hold for LP64 little endian and core API 2.27 to 2.40, checked against a C compile of API 2.32 headers and against
libraries 2.47 to 2.51 (core API 2.36 to 2.40). Structs of the core are append-only; the HTP device config is not, and
is therefore not a struct here (see ``session.soc_config``). Written from the public API documentation, 80-63442-10.
"""

from __future__ import annotations

import ctypes as C
from ctypes import POINTER as P
from ctypes import Structure, Union
from typing import Any

u8, u32, u64 = C.c_uint8, C.c_uint32, C.c_uint64
i32, f32, size_t = C.c_int32, C.c_float, C.c_size_t
ptr, chars = C.c_void_p, C.c_char_p

Qnn_ErrorHandle_t = u64  # the code is in the low 16 bits
Handle = C.c_void_p
QNN_DEFINITION_UNDEFINED = 0x7FFFFFFF
QNN_BACKEND_ID_HTP = 6

# ---------------------------------------------------------------- versions and interfaces


class Qnn_Version_t(Structure):
    _fields_ = [("major", u32), ("minor", u32), ("patch", u32)]


class Qnn_ApiVersion_t(Structure):
    _fields_ = [("coreApiVersion", Qnn_Version_t), ("backendApiVersion", Qnn_Version_t)]


class QnnInterface_t(Structure):  # the function table follows
    _fields_ = [("backendId", u32), ("providerName", chars), ("apiVersion", Qnn_ApiVersion_t)]


class QnnSystemInterface_t(Structure):  # the function table follows
    _fields_ = [("backendId", u32), ("providerName", chars), ("systemApiVersion", Qnn_Version_t)]


# ---------------------------------------------------------------- tensors


class Qnn_ScaleOffset_t(Structure):
    _fields_ = [("scale", f32), ("offset", i32)]


class Qnn_AxisScaleOffset_t(Structure):
    _fields_ = [("axis", i32), ("numScaleOffsets", u32), ("scaleOffset", P(Qnn_ScaleOffset_t))]


class Qnn_BwScaleOffset_t(Structure):
    _fields_ = [("bitwidth", u32), ("scale", f32), ("offset", i32)]


class Qnn_BwAxisScaleOffset_t(Structure):
    _fields_ = [("bitwidth", u32), ("axis", i32), ("numElements", u32), ("scales", P(f32)), ("offsets", P(i32))]


class Qnn_QuantizeParams_u(Union):
    _fields_ = [
        ("scaleOffsetEncoding", Qnn_ScaleOffset_t),
        ("axisScaleOffsetEncoding", Qnn_AxisScaleOffset_t),
        ("bwScaleOffsetEncoding", Qnn_BwScaleOffset_t),
        ("bwAxisScaleOffsetEncoding", Qnn_BwAxisScaleOffset_t),
    ]


class Qnn_QuantizeParams_t(Structure):
    _fields_ = [("encodingDefinition", u32), ("quantizationEncoding", u32), ("u", Qnn_QuantizeParams_u)]


class Qnn_ClientBuffer_t(Structure):
    _fields_ = [("data", ptr), ("dataSize", u32)]


class Qnn_Mem_u(Union):
    _fields_ = [("clientBuf", Qnn_ClientBuffer_t), ("memHandle", Handle), ("retrieveRaw", ptr)]


class Qnn_TensorV1_t(Structure):
    _fields_ = [
        ("id", u32),
        ("name", chars),
        ("type", u32),
        ("dataFormat", u32),
        ("dataType", u32),
        ("quantizeParams", Qnn_QuantizeParams_t),
        ("rank", u32),
        ("dimensions", P(u32)),
        ("memType", u32),
        ("mem", Qnn_Mem_u),
    ]


class Qnn_SparseParams_t(Structure):
    _fields_ = [("type", u32), ("numSpecifiedElements", u32), ("numSparseDimensions", u32)]


class Qnn_TensorV2_t(Structure):
    _fields_ = [
        *Qnn_TensorV1_t._fields_,
        ("isDynamicDimensions", P(u8)),
        ("sparseParams", Qnn_SparseParams_t),
        ("isProduced", u8),
    ]


class Qnn_Tensor_u(Union):
    _fields_ = [("v1", Qnn_TensorV1_t), ("v2", Qnn_TensorV2_t)]


class Qnn_Tensor_t(Structure):
    _fields_ = [("version", u32), ("u", Qnn_Tensor_u)]


QNN_TENSORMEMTYPE_RAW = 0
QNN_TENSORMEMTYPE_MEMHANDLE = 1
QNN_QUANTIZATION_ENCODING_SCALE_OFFSET = 0
QNN_DEFINITION_DEFINED = 1

# ---------------------------------------------------------------- context


class QnnContext_AsyncExecutionQueueDepth_t(Structure):
    _fields_ = [("type", u32), ("depth", u32)]


class QnnContext_Config_u(Union):
    _fields_ = [
        ("customConfig", ptr),
        ("priority", u32),
        ("asyncExeQueueDepth", QnnContext_AsyncExecutionQueueDepth_t),
        ("memoryLimitHint", u64),
    ]


class QnnContext_Config_t(Structure):
    _fields_ = [("option", u32), ("u", QnnContext_Config_u)]


class QnnHtpContext_GroupRegistration_t(Structure):
    _fields_ = [("firstGroupHandle", Handle), ("maxSpillFillBuffer", u64)]


class QnnHtpContext_CustomConfig_u(Union):
    _fields_ = [("groupRegistration", QnnHtpContext_GroupRegistration_t), ("u64", u64)]


class QnnHtpContext_CustomConfig_t(Structure):
    _fields_ = [("option", u32), ("u", QnnHtpContext_CustomConfig_u)]


QNN_CONTEXT_CONFIG_OPTION_CUSTOM = 0
QNN_CONTEXT_CONFIG_OPTION_PRIORITY = 1
QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH = 4
QNN_CONTEXT_ASYNC_EXECUTION_QUEUE_DEPTH_TYPE_NUMERIC = 0
QNN_HTP_CONTEXT_CONFIG_OPTION_REGISTER_MULTI_CONTEXTS = 2

# ---------------------------------------------------------------- device and power


class QnnDevice_Config_t(Structure):
    _fields_ = [("option", u32), ("customConfig", ptr)]


class QnnDevice_CoreInfoV1_t(Structure):
    _fields_ = [("coreId", u32), ("coreType", u32), ("coreInfoExtension", ptr)]


class QnnDevice_CoreInfo_t(Structure):
    _fields_ = [("version", u32), ("v1", QnnDevice_CoreInfoV1_t)]


class QnnDevice_HardwareDeviceInfoV1_t(Structure):
    _fields_ = [
        ("deviceId", u32),
        ("deviceType", u32),
        ("numCores", u32),
        ("cores", P(QnnDevice_CoreInfo_t)),
        ("deviceInfoExtension", ptr),
    ]


class QnnDevice_HardwareDeviceInfo_t(Structure):
    _fields_ = [("version", u32), ("v1", QnnDevice_HardwareDeviceInfoV1_t)]


class QnnDevice_PlatformInfoV1_t(Structure):
    _fields_ = [("numHwDevices", u32), ("hwDevices", P(QnnDevice_HardwareDeviceInfo_t))]


class QnnDevice_PlatformInfo_t(Structure):
    _fields_ = [("version", u32), ("v1", QnnDevice_PlatformInfoV1_t)]


class QnnHtpDevice_OnChipDeviceInfoExtension_t(Structure):
    _fields_ = [
        ("vtcmSize", size_t),
        ("socModel", u32),
        ("signedPdSupport", C.c_bool),
        ("dlbcSupport", C.c_bool),
        ("arch", u32),
    ]


class QnnHtpDevice_DeviceInfoExtension_t(Structure):
    _fields_ = [("devType", u32), ("onChipDevice", QnnHtpDevice_OnChipDeviceInfoExtension_t)]


class QnnHtpPerfInfrastructure_DcvsV3_t(Structure):
    _fields_ = [
        ("contextId", u32),
        ("setDcvsEnable", u32),
        ("dcvsEnable", u32),
        ("powerMode", u32),
        ("setSleepLatency", u32),
        ("sleepLatency", u32),
        ("setSleepDisable", u32),
        ("sleepDisable", u32),
        ("setBusParams", u32),
        ("busVoltageCornerMin", u32),
        ("busVoltageCornerTarget", u32),
        ("busVoltageCornerMax", u32),
        ("setCoreParams", u32),
        ("coreVoltageCornerMin", u32),
        ("coreVoltageCornerTarget", u32),
        ("coreVoltageCornerMax", u32),
    ]


class QnnHtpPerfInfrastructure_PowerConfig_u(Union):
    _fields_ = [("dcvsV3Config", QnnHtpPerfInfrastructure_DcvsV3_t), ("value", u32), ("hmxV2", u32 * 5)]


class QnnHtpPerfInfrastructure_PowerConfig_t(Structure):
    _fields_ = [("option", u32), ("u", QnnHtpPerfInfrastructure_PowerConfig_u)]


class QnnHtpDevice_PerfInfrastructure_t(Structure):
    _fields_ = [
        ("createPowerConfigId", C.CFUNCTYPE(Qnn_ErrorHandle_t, u32, u32, P(u32))),
        ("destroyPowerConfigId", C.CFUNCTYPE(Qnn_ErrorHandle_t, u32)),
        ("setPowerConfig", C.CFUNCTYPE(Qnn_ErrorHandle_t, u32, P(P(QnnHtpPerfInfrastructure_PowerConfig_t)))),
        ("setMemoryConfig", ptr),
    ]


class QnnHtpDevice_Infrastructure_t(Structure):
    _fields_ = [("infraType", u32), ("perfInfra", QnnHtpDevice_PerfInfrastructure_t)]


QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_DCVS_V3 = 1
QNN_HTP_PERF_INFRASTRUCTURE_POWER_CONFIGOPTION_RPC_POLLING_TIME = 3

# ---------------------------------------------------------------- registered memory


class Qnn_MemShape_t(Structure):
    _fields_ = [("numDim", u32), ("dimSize", P(u32)), ("shapeConfig", chars)]


class Qnn_MemDmaBufInfo_t(Structure):
    _fields_ = [("fd", i32), ("data", ptr)]


class Qnn_MemDescriptor_u(Union):
    _fields_ = [("ionInfo", i32), ("customInfo", ptr), ("dmaBufInfo", Qnn_MemDmaBufInfo_t)]


class Qnn_MemDescriptor_t(Structure):
    _fields_ = [("memShape", Qnn_MemShape_t), ("dataType", u32), ("memType", u32), ("u", Qnn_MemDescriptor_u)]


class QnnHtpMem_SharedBufferConfig_t(Structure):
    _fields_ = [("fd", i32), ("offset", u64)]


class QnnMemHtp_Descriptor_t(Structure):
    _fields_ = [("type", u32), ("size", u64), ("sharedBufferConfig", QnnHtpMem_SharedBufferConfig_t)]


QNN_MEM_TYPE_CUSTOM = 2
QNN_HTP_MEM_SHARED_BUFFER = 1

# ---------------------------------------------------------------- profile, signal, notification


class QnnProfile_EventData_t(Structure):
    _fields_ = [("type", u32), ("unit", u32), ("value", u64), ("identifier", chars)]


class QnnSignal_Config_u(Union):
    _fields_ = [("customConfig", ptr), ("timeoutDurationUs", u64)]


class QnnSignal_Config_t(Structure):
    _fields_ = [("option", u32), ("u", QnnSignal_Config_u)]


class Qnn_NotifyStatus_t(Structure):
    _fields_ = [("error", Qnn_ErrorHandle_t)]


Qnn_NotifyFn_t = C.CFUNCTYPE(None, ptr, Qnn_NotifyStatus_t)
QnnLog_Callback_t = C.CFUNCTYPE(None, chars, u32, u64, ptr)  # a va_list is passed as a pointer on LP64 Linux
QNN_SIGNAL_CONFIG_OPTION_TIMEOUT = 2

# ---------------------------------------------------------------- metadata of a context binary


class QnnSystemContext_GraphInfoV1_t(Structure):
    _fields_ = [
        ("graphName", chars),
        ("numGraphInputs", u32),
        ("graphInputs", P(Qnn_Tensor_t)),
        ("numGraphOutputs", u32),
        ("graphOutputs", P(Qnn_Tensor_t)),
    ]


class QnnSystemContext_GraphInfoV2_t(Structure):
    _fields_ = [
        *QnnSystemContext_GraphInfoV1_t._fields_,
        ("numUpdateableTensors", u32),
        ("updateableTensors", P(Qnn_Tensor_t)),
    ]


class QnnSystemContext_GraphInfoV3_t(Structure):
    _fields_ = [
        *QnnSystemContext_GraphInfoV2_t._fields_,
        ("graphBlobInfoSize", u32),
        ("graphBlobInfo", ptr),
        ("startOpIndex", u32),
        ("endOpIndex", u32),
    ]


class QnnSystemContext_GraphInfo_u(Union):
    _fields_ = [
        ("v1", QnnSystemContext_GraphInfoV1_t),
        ("v2", QnnSystemContext_GraphInfoV2_t),
        ("v3", QnnSystemContext_GraphInfoV3_t),
    ]


class QnnSystemContext_GraphInfo_t(Structure):
    _fields_ = [("version", u32), ("u", QnnSystemContext_GraphInfo_u)]


_BINARY_HEAD: list[Any] = [
    ("backendId", u32),
    ("buildId", chars),
    ("coreApiVersion", Qnn_Version_t),
    ("backendApiVersion", Qnn_Version_t),
    ("socVersion", chars),
]
_BINARY_CONTENT: list[Any] = [
    ("numContextTensors", u32),
    ("contextTensors", P(Qnn_Tensor_t)),
    ("numGraphs", u32),
    ("graphs", P(QnnSystemContext_GraphInfo_t)),
]


class QnnSystemContext_BinaryInfoV1_t(Structure):
    _fields_ = [
        *_BINARY_HEAD,
        ("hwInfoBlobVersion", Qnn_Version_t),
        ("contextBlobVersion", Qnn_Version_t),
        ("hwInfoBlobSize", u32),
        ("hwInfoBlob", ptr),
        ("contextBlobSize", u64),
        *_BINARY_CONTENT,
    ]


class QnnSystemContext_BinaryInfoV2_t(Structure):
    _fields_ = [*QnnSystemContext_BinaryInfoV1_t._fields_, ("platformInfo", P(QnnDevice_PlatformInfo_t))]


class QnnSystemContext_BinaryInfoV3_t(Structure):
    _fields_ = [
        *_BINARY_HEAD,
        ("contextBlobVersion", Qnn_Version_t),
        ("contextBlobSize", u64),
        *_BINARY_CONTENT,
        ("platformInfo", P(QnnDevice_PlatformInfo_t)),
        ("contextMetadataSize", u32),
        ("contextMetadata", ptr),
        ("socModel", u32),
    ]


class QnnSystemContext_BinaryInfo_u(Union):
    _fields_ = [
        ("v1", QnnSystemContext_BinaryInfoV1_t),
        ("v2", QnnSystemContext_BinaryInfoV2_t),
        ("v3", QnnSystemContext_BinaryInfoV3_t),
    ]


class QnnSystemContext_BinaryInfo_t(Structure):
    _fields_ = [("version", u32), ("u", QnnSystemContext_BinaryInfo_u)]


class QnnHtpSystemContext_GraphBlobInfoV1_t(Structure):
    _fields_ = [
        ("spillFillBufferSize", u64),
        ("vtcmSize", u32),
        ("optimizationLevel", u32),
        ("htpDlbc", u8),
        ("numHvxThreads", u64),
    ]


class QnnHtpSystemContext_GraphBlobInfo_t(Structure):
    _fields_ = [("version", u32), ("v1", QnnHtpSystemContext_GraphBlobInfoV1_t)]


class QnnHtpSystemContext_GraphBlobInfoV2_t(Structure):  # follows the struct above where there is room for it
    _fields_ = [
        ("version", u32),
        ("nativeK", u64),
        ("nativeV", u64),
        ("isSafeShareIO", u32),
        ("ioTensorSize", u64),
        ("opDataSize", u64),
        ("constSize", u64),
        ("ddrTensorSize", u64),
        ("sharedWeightsSize", u64),
    ]


class QnnHtpSystemContext_ContextBlobInfo_t(Structure):
    _fields_ = [("version", u32), ("dspArch", u32)]


# ---------------------------------------------------------------- function tables, in the order of their pointers

CORE_FUNCTIONS = (
    "propertyHasCapability",
    "backendCreate backendSetConfig backendGetApiVersion backendGetBuildId backendRegisterOpPackage",
    "backendGetSupportedOperations backendValidateOpConfig backendFree",
    "contextCreate contextSetConfig contextGetBinarySize contextGetBinary contextCreateFromBinary contextFree",
    "graphCreate graphCreateSubgraph graphSetConfig graphAddNode graphFinalize graphRetrieve graphExecute",
    "graphExecuteAsync tensorCreateContextTensor tensorCreateGraphTensor logCreate logSetLogLevel logFree",
    "profileCreate profileSetConfig profileGetEvents profileGetSubEvents profileGetEventData",
    "profileGetExtendedEventData profileFree memRegister memDeRegister deviceGetPlatformInfo",
    "deviceFreePlatformInfo deviceGetInfrastructure deviceCreate deviceSetConfig deviceGetInfo deviceFree",
    "signalCreate signalSetConfig signalTrigger signalFree errorGetMessage errorGetVerboseMessage",
    "errorFreeVerboseMessage graphPrepareExecutionEnvironment graphReleaseExecutionEnvironment graphGetProperty",
    "contextValidateBinary contextCreateFromBinaryWithSignal contextCreateFromBinaryListAsync",
    "tensorUpdateGraphTensors tensorUpdateContextTensors contextGetBinarySectionSize contextGetBinarySection",
    "contextApplyBinarySection backendGetProperty contextGetProperty contextGetIncrementalBinary",
    "contextReleaseIncrementalBinary contextFinalize globalConfigSet contextCreateFromBinaryWithCallback",
    "contextGetBinarySectionUpdate contextFreeBinarySectionUpdate contextAddToDlc graphValidate",
    "graphFreeValidationResult backendRegisterOpPackageFromBinary",
)
CORE_GUARANTEED = ((40, 75), (36, 72), (32, 71), (27, 68))  # (minor of core API 2, pointers that version has)

CORE_SIGNATURES = {
    "backendCreate": [Handle, ptr, P(Handle)],
    "backendGetBuildId": [P(chars)],
    "backendFree": [Handle],
    "contextCreateFromBinary": [Handle, Handle, P(P(QnnContext_Config_t)), ptr, u64, P(Handle), Handle],
    "contextFree": [Handle, Handle],
    "graphRetrieve": [Handle, chars, P(Handle)],
    "graphExecute": [Handle, P(Qnn_Tensor_t), u32, P(Qnn_Tensor_t), u32, Handle, Handle],
    "graphExecuteAsync": [
        Handle, P(Qnn_Tensor_t), u32, P(Qnn_Tensor_t), u32, Handle, Handle, Qnn_NotifyFn_t, ptr,
    ],
    "logCreate": [QnnLog_Callback_t, u32, P(Handle)],
    "logFree": [Handle],
    "profileCreate": [Handle, u32, P(Handle)],
    "profileGetEvents": [Handle, P(P(u64)), P(u32)],
    "profileGetSubEvents": [u64, P(P(u64)), P(u32)],
    "profileGetEventData": [u64, P(QnnProfile_EventData_t)],
    "profileFree": [Handle],
    "memRegister": [Handle, P(Qnn_MemDescriptor_t), u32, P(Handle)],
    "memDeRegister": [P(Handle), u32],
    "deviceGetPlatformInfo": [Handle, P(P(QnnDevice_PlatformInfo_t))],
    "deviceFreePlatformInfo": [Handle, P(QnnDevice_PlatformInfo_t)],
    "deviceGetInfrastructure": [P(P(QnnHtpDevice_Infrastructure_t))],
    "deviceCreate": [Handle, P(P(QnnDevice_Config_t)), P(Handle)],
    "deviceFree": [Handle],
    "signalCreate": [Handle, P(P(QnnSignal_Config_t)), P(Handle)],
    "signalFree": [Handle],
    "errorGetMessage": [Qnn_ErrorHandle_t, P(chars)],
}  # fmt: skip

SYSTEM_FUNCTIONS = (
    "systemContextCreate systemContextGetBinaryInfo systemContextGetMetaData systemContextFree",
    "systemTensorGetMemoryFootprint systemLogCreate systemLogSetLogLevel systemLogFree",
)
SYSTEM_GUARANTEED = ((4, 8),)

SYSTEM_SIGNATURES = {
    "systemContextCreate": [P(Handle)],
    "systemContextGetMetaData": [Handle, ptr, u64, P(P(QnnSystemContext_BinaryInfo_t))],
    "systemContextFree": [Handle],
}

# ---------------------------------------------------------------- fastRPC shared memory (libcdsprpc.so)

RPCMEM_HEAP_ID_SYSTEM = 25
RPCMEM_DEFAULT_FLAGS = 1
RPCMEM_SIGNATURES = {
    "rpcmem_alloc": (ptr, [C.c_int, u32, C.c_int]),
    "rpcmem_to_fd": (C.c_int, [ptr]),
    "rpcmem_free": (None, [ptr]),
}
