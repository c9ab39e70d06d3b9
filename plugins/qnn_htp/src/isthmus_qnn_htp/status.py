"""From a QNN status code to one of our errors, with cause and next step."""

from __future__ import annotations

import attrs
from isthmus.errors import (
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    IntegrityError,
    IsthmusError,
    OutOfMemoryError,
    UnavailableError,
    UnsupportedError,
)
from isthmus.types import VendorStatus


@attrs.frozen
class _Meaning:
    error: type[IsthmusError]
    why: str
    fix: str | None = None


_RECOMPILE = "compile the artifact again: isthmus compile GRAPHS --backend qnn_htp -o DIR"
_NEWER = _Meaning(
    IncompatibleError,
    "the binary is newer than this runtime, or the call got an invalid argument",
    "install a newer onnxruntime-qnn, or compile with the oldest runtime that must load the binary",
)
_NOT_A_BINARY = _Meaning(IntegrityError, "this is not an intact QNN context binary", _RECOMPILE)
_WRONG_DEVICE = _Meaning(IncompatibleError, "the binary does not fit this runtime or this chip", _RECOMPILE)

# Codes and meanings were measured on QNN 2.47 to 2.51; those of a real chip come from the public API documentation.
_MEANINGS = {
    1000: _Meaning(UnsupportedError, "this runtime does not have the feature; the x86 emulator lacks several"),
    1002: _Meaning(OutOfMemoryError, "the device or the host is out of memory", "isthmus size ARTIFACT"),
    1006: _Meaning(UnavailableError, "the platform gives no access to the DSP", "isthmus doctor"),
    1007: _Meaning(ExecutionError, "communication with the DSP failed; it may be tried again"),
    1008: _Meaning(IncompatibleError, "libraries of different releases are mixed", "isthmus doctor"),
    1011: _Meaning(DeviceLostError, "the DSP restarted", "open the device again with open_device"),
    5000: _NEWER,
    5004: _NEWER,
    5005: _WRONG_DEVICE,
    5008: _WRONG_DEVICE,
    6033: _Meaning(ExecutionError, "the time limit of the option abort_seconds passed"),
    14001: _Meaning(IncompatibleError, "this runtime does not know the SoC", "use a newer runtime or another target"),
    14002: _Meaning(UnavailableError, "there is no HTP here, or no access to it", "isthmus doctor"),
    30001: _NOT_A_BINARY,
    30010: _NOT_A_BINARY,
}


def vendor_error(call: str, code: int, text: str, doing: str) -> IsthmusError:
    """The error for ``code`` of ``call`` while ``doing`` something; ``text`` is what ``errorGetMessage`` says."""
    symbol, _, rest = text.partition(": ")
    meaning = _MEANINGS.get(code) or _Meaning(ExecutionError, "see the log of isthmus.qnn (option log_level)")
    return meaning.error(
        f"QNN refused to {doing}",
        why=meaning.why,
        fix=meaning.fix,
        status=VendorStatus(call, code, symbol if rest else "", rest or text),
    )
