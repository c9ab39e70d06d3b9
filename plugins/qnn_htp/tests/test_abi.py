"""Layouts, against sizes and offsets of a C compile of the QNN headers (API 2.32, LP64), written down by us."""

import ctypes

import pytest
from isthmus_qnn_htp import _abi

SIZES = {
    "QnnInterface_t": 40,  # where the core's table begins
    "QnnSystemInterface_t": 32,  # likewise, padded
    "Qnn_Version_t": 12,
    "Qnn_ApiVersion_t": 24,
    "Qnn_ScaleOffset_t": 8,
    "Qnn_BwScaleOffset_t": 12,
    "Qnn_AxisScaleOffset_t": 16,
    "Qnn_BwAxisScaleOffset_t": 32,
    "Qnn_QuantizeParams_t": 40,
    "Qnn_ClientBuffer_t": 16,
    "Qnn_TensorV1_t": 112,
    "Qnn_TensorV2_t": 136,
    "Qnn_Tensor_t": 144,
    "Qnn_SparseParams_t": 12,
    "QnnContext_Config_t": 16,
    "QnnHtpContext_CustomConfig_t": 24,
    "QnnHtpContext_GroupRegistration_t": 16,
    "QnnDevice_Config_t": 16,
    "QnnDevice_CoreInfo_t": 24,
    "QnnDevice_CoreInfoV1_t": 16,
    "QnnDevice_HardwareDeviceInfo_t": 40,
    "QnnDevice_HardwareDeviceInfoV1_t": 32,
    "QnnDevice_PlatformInfo_t": 24,
    "QnnDevice_PlatformInfoV1_t": 16,
    "QnnHtpDevice_DeviceInfoExtension_t": 32,
    "QnnHtpDevice_OnChipDeviceInfoExtension_t": 24,
    "QnnHtpDevice_Infrastructure_t": 40,
    "QnnHtpDevice_PerfInfrastructure_t": 32,
    "QnnHtpPerfInfrastructure_PowerConfig_t": 68,
    "QnnHtpPerfInfrastructure_DcvsV3_t": 64,
    "Qnn_MemShape_t": 24,
    "Qnn_MemDescriptor_t": 48,
    "Qnn_MemDmaBufInfo_t": 16,
    "QnnMemHtp_Descriptor_t": 32,
    "QnnHtpMem_SharedBufferConfig_t": 16,
    "QnnProfile_EventData_t": 24,
    "QnnSignal_Config_t": 16,
    "Qnn_NotifyStatus_t": 8,
    "QnnSystemContext_GraphInfoV1_t": 40,
    "QnnSystemContext_GraphInfoV2_t": 56,
    "QnnSystemContext_GraphInfoV3_t": 80,
    "QnnSystemContext_GraphInfo_t": 88,
    "QnnSystemContext_BinaryInfoV1_t": 128,
    "QnnSystemContext_BinaryInfoV2_t": 136,
    "QnnSystemContext_BinaryInfoV3_t": 136,
    "QnnSystemContext_BinaryInfo_t": 144,
    "QnnHtpSystemContext_GraphBlobInfo_t": 40,
    "QnnHtpSystemContext_GraphBlobInfoV1_t": 32,
    "QnnHtpSystemContext_GraphBlobInfoV2_t": 72,
    "QnnHtpSystemContext_ContextBlobInfo_t": 8,
}

OFFSETS = {
    ("Qnn_TensorV1_t", "name"): 8,
    ("Qnn_TensorV1_t", "dataType"): 24,
    ("Qnn_TensorV1_t", "quantizeParams"): 32,
    ("Qnn_TensorV1_t", "rank"): 72,
    ("Qnn_TensorV1_t", "dimensions"): 80,
    ("Qnn_TensorV1_t", "memType"): 88,
    ("Qnn_TensorV1_t", "mem"): 96,
    ("Qnn_TensorV2_t", "isDynamicDimensions"): 112,
    ("Qnn_TensorV2_t", "sparseParams"): 120,
    ("Qnn_TensorV2_t", "isProduced"): 132,
    ("Qnn_Tensor_t", "u"): 8,
    ("Qnn_MemDescriptor_t", "u"): 32,
    ("QnnMemHtp_Descriptor_t", "sharedBufferConfig"): 16,
    ("QnnHtpPerfInfrastructure_PowerConfig_t", "u"): 4,
    ("QnnHtpPerfInfrastructure_DcvsV3_t", "coreVoltageCornerMax"): 60,
    ("QnnHtpDevice_OnChipDeviceInfoExtension_t", "arch"): 16,
    ("QnnSystemContext_GraphInfoV3_t", "graphBlobInfo"): 64,
    ("QnnSystemContext_BinaryInfoV1_t", "graphs"): 120,
    ("QnnSystemContext_BinaryInfoV3_t", "graphs"): 96,
    ("QnnSystemContext_BinaryInfoV3_t", "contextMetadata"): 120,
    ("QnnSystemContext_BinaryInfoV3_t", "socModel"): 128,
    ("QnnHtpSystemContext_GraphBlobInfoV2_t", "sharedWeightsSize"): 64,
}

POSITIONS = {
    "propertyHasCapability": 0,
    "backendFree": 8,
    "contextCreateFromBinary": 13,
    "graphExecute": 21,
    "logCreate": 25,
    "profileGetEvents": 30,
    "memRegister": 35,
    "deviceCreate": 40,
    "signalCreate": 44,
    "errorGetMessage": 48,
    "globalConfigSet": 67,
    "backendRegisterOpPackageFromBinary": 74,
}


@pytest.mark.parametrize("name", SIZES)
def test_a_struct_has_the_size_of_the_c_struct(name):
    assert ctypes.sizeof(getattr(_abi, name)) == SIZES[name]


@pytest.mark.parametrize(("name", "field"), OFFSETS)
def test_a_field_has_the_offset_of_the_c_field(name, field):
    assert getattr(getattr(_abi, name), field).offset == OFFSETS[name, field]


def test_every_struct_of_the_table_is_checked_here():
    structs = {
        name
        for name, kind in vars(_abi).items()
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
    }
    asynchronous = "QnnContext_AsyncExecutionQueueDepth_t"  # two words
    assert structs - {asynchronous} == set(SIZES)


def test_the_core_table_has_the_order_of_the_header():
    names = " ".join(_abi.CORE_FUNCTIONS).split()
    assert len(names) == len(set(names)) == 75
    assert {name: names.index(name) for name in POSITIONS} == POSITIONS
    assert set(_abi.CORE_SIGNATURES) <= set(names)


def test_what_is_called_exists_in_the_oldest_version_accepted():
    oldest = _abi.CORE_GUARANTEED[-1][1]
    assert set(_abi.CORE_SIGNATURES) <= set(" ".join(_abi.CORE_FUNCTIONS).split()[:oldest])
