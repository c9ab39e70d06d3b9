"""Isthmus: one model on Snapdragon (QNN HTP), Ascend (CANN) and CPU. Start at ARCHITECTURE.md.

>>> import isthmus
>>> artifact = isthmus.compile("cpu", "model.onnx", "compiled")          # doctest: +SKIP
>>> with isthmus.open_device("cpu") as device:                            # doctest: +SKIP
...     with device.load(artifact) as program:
...         result = program.run("main", {"x": x})
"""

from .api import Binding, Buffer, Device, Program, View, compile, open_device
from .artifact import Artifact, Manifest
from .errors import IsthmusError
from .graphset import GraphSet
from .hookspecs import hookimpl
from .registry import registry
from .types import (
    Capability,
    DeviceInfo,
    Dialect,
    DType,
    EntrySpec,
    Granted,
    MemoryInfo,
    MemoryRequirements,
    Pages,
    Quantization,
    Reality,
    TensorSpec,
)

__all__ = [
    "Artifact",
    "Binding",
    "Buffer",
    "Capability",
    "DType",
    "Device",
    "DeviceInfo",
    "Dialect",
    "EntrySpec",
    "Granted",
    "GraphSet",
    "IsthmusError",
    "Manifest",
    "MemoryInfo",
    "MemoryRequirements",
    "Pages",
    "Program",
    "Quantization",
    "Reality",
    "TensorSpec",
    "View",
    "compile",
    "hookimpl",
    "open_device",
    "registry",
]
