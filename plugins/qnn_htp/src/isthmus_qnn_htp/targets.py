"""Snapdragon chips: what ``--target`` may name, and what each chip's compiler accepts.

Source of the table, row by row: QAIRT 2.51.0 (onnxruntime-qnn 2.7.0) itself. One quantised graph was compiled for every
SoC id from 0 to 139; the name, "supports FP16" and the VTCM size are lines of the compiler's own log, the architecture
is the ``dspArch`` recorded in the binary it wrote. Ids of chips older than v68, which have no HTP, are left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import attrs
from isthmus.errors import InputError
from isthmus.types import Dialect

DEFAULT = "sm8650"


@attrs.frozen
class Target:
    """One SoC."""

    soc: int
    """Qualcomm's SoC model id."""
    name: str
    """The SDK's name, e.g. ``SM8650``."""
    arch: int
    """Hexagon architecture, e.g. 75."""
    vtcm_mb: int
    """Tightly coupled memory of the HTP, MiB."""
    fp16: bool
    """The compiler takes float graphs for it (log line "SocModel supports FP16")."""

    @property
    def float_graphs(self) -> bool:
        """Whether we compile float graphs for it: fp16, and from v73 on.

        The library also takes them for v69 and two v68 chips, but ExecuTorch's notes on the chips say fp16 does not
        exist on v68 and is partial on v69, and on the emulator their arithmetic differs from v73's (64.7 dB, not
        53.8, on one MatMul). Unproven on silicon, so refused.
        """
        return self.fp16 and self.arch >= 73

    @property
    def bf16(self) -> bool:
        """bfloat16 graphs. Source: 2.51 took ``htp_bf16_enable`` for SoC 88 alone of the 23 ids tried from v73 up."""
        return self.soc == 88

    @property
    def weight_sharing(self) -> bool:
        """Several graphs of one binary share weights. Source: ExecuTorch and AI Hub notes, from v73."""
        return self.arch >= 73

    @property
    def lpbq(self) -> bool:
        """Low-power blockwise 4-bit weights. Source: ExecuTorch's notes say v73, its code v69; the stricter one."""
        return self.arch >= 73

    @property
    def matmul16(self) -> bool:
        """A 16-bit second operand of MatMul, so 16-bit keys and values. Source: ExecuTorch and AI Hub, from v73."""
        return self.arch >= 73

    def __str__(self) -> str:
        return f"{self.name} (SoC {self.soc}, v{self.arch})"


def parse(text: str) -> Target:
    """The chip meant by ``sm8650`` (a name), ``v75`` (an architecture: its flagship) or ``soc:57`` (an id).

    ``InputError`` for anything else, with the nearest name.
    """
    wanted = text.strip().lower()
    if match := re.fullmatch(r"soc:(\d+)", wanted):
        found = _BY_ID.get(int(match[1]))
    elif match := re.fullmatch(r"v(\d+)", wanted):
        found = _BY_ID.get(_FLAGSHIPS.get(int(match[1]), -1))
    else:
        found = _BY_NAME.get(wanted)
    if found is None:
        raise _unknown(text, wanted)
    return found


def names() -> Sequence[str]:
    """All names ``parse`` takes, the default first, then flagships from the newest on; ``soc:ID`` works besides."""
    newest = sorted(_FLAGSHIPS.items(), reverse=True)
    first = [DEFAULT, *(_BY_ID[soc].name.lower() for _, soc in newest)]
    return list(dict.fromkeys([*first, *(f"v{arch}" for arch, _ in newest), *sorted(_BY_NAME)]))


def dialect(target: str) -> Dialect:
    """How graphs for the HTP are spelled, measured on the emulator in fp16.

    RMSNorm as an L2 norm: ``x * x`` overflows fp16 in real models. GELU as the Div-Erf-Add-Mul-Mul pattern, which the
    compiler fuses; a lone Erf it refuses. The mask value is finite, because fp16 HTP misreads infinities.
    """
    parse(target)
    return Dialect("qnn_htp", opset=17, rms_norm="l2", gelu="erf", silu="sigmoid", rope="split", mask_value=-1e4)


def _unknown(text: str, wanted: str) -> InputError:
    near = difflib.get_close_matches(wanted, names(), n=1)
    return InputError(
        f"backend qnn_htp has no target {text!r}",
        why=f"did you mean {near[0]!r}?" if near else None,
        fix="give a chip (sm8650), an architecture (v75) or a SoC id (soc:57); list them: isthmus backends --json",
    )


_TABLE = (
    # v68
    Target(30, "SM8350", 68, 4, False),
    Target(32, "SM7350", 68, 2, False),
    Target(34, "SM8325", 68, 4, False),
    Target(35, "SM7325", 68, 2, False),
    Target(37, "SC8280X", 68, 4, False),
    Target(38, "SM7315", 68, 2, False),
    Target(39, "SA8295", 68, 8, True),
    Target(62, "SA8540", 68, 8, True),
    Target(93, "QCS6490", 68, 2, False),
    # v69
    Target(36, "SM8450", 69, 8, True),
    Target(41, "SM7450", 69, 2, True),
    Target(42, "SM8475", 69, 8, True),
    Target(53, "SXR2230P", 69, 8, True),
    Target(54, "SM7475", 69, 4, False),
    # v73
    Target(43, "SM8550", 73, 8, True),
    Target(45, "SXR1230P", 73, 2, False),
    Target(46, "SSG2115P", 73, 2, False),
    Target(50, "SM6450", 73, 2, False),
    Target(52, "SA8255", 73, 8, True),
    Target(58, "SSG2125P", 73, 2, False),
    Target(60, "SC8380XP", 73, 8, True),
    Target(61, "SM7435", 73, 2, False),
    Target(64, "SM7550", 73, 2, False),
    Target(66, "QCS8550", 73, 8, True),
    Target(68, "SM8635", 73, 4, False),
    Target(70, "SM7675", 73, 4, False),
    Target(73, "SM7635", 73, 2, False),
    Target(74, "SM6650", 73, 2, False),
    Target(76, "SM6475", 73, 2, False),
    Target(77, "QCS9100", 73, 8, True),
    Target(78, "QCM6690", 73, 2, False),
    Target(85, "SM8735", 73, 8, False),
    Target(86, "SM7750", 73, 4, False),
    Target(89, "QCM8538", 73, 8, True),
    Target(91, "SM7775", 73, 4, False),
    Target(100, "SAR1165P", 73, 2, False),
    Target(101, "SAR1180P", 73, 2, False),
    Target(102, "CQ7790M", 73, 4, False),
    Target(119, "IQX5121", 73, 8, True),
    Target(120, "SC8340XP", 73, 8, True),
    # v75
    Target(57, "SM8650", 75, 8, True),
    Target(67, "SA8620P", 75, 8, True),
    Target(82, "QCS8300", 75, 8, True),
    Target(90, "QCS8625", 75, 8, True),
    # v79
    Target(69, "SM8750", 79, 8, True),
    Target(75, "SXR2330P", 79, 8, True),
    Target(104, "CQ8725S", 79, 8, True),
    Target(105, "CQ8750S", 79, 8, True),
    # v81
    Target(72, "SA8797", 81, 16, True),
    Target(87, "SM8850", 81, 8, True),
    Target(88, "SC8480XP", 81, 8, True),
    Target(92, "SM8850L", 81, 8, True),
    Target(94, "SC8440XP", 81, 8, True),
    Target(95, "SAR2230P", 81, 4, False),
    Target(96, "SW6100", 81, 4, False),
    Target(97, "SM8845", 81, 8, True),
    Target(99, "QCM8838", 81, 8, True),
    Target(109, "QCS8845", 81, 8, True),
    Target(110, "XRV7200", 81, 4, False),
    Target(111, "XRV7205", 81, 4, False),
    Target(115, "QMX115", 81, 2, True),
    Target(117, "IPQ9650", 81, 2, True),
    Target(123, "SM7950", 81, 4, True),
    # v85
    Target(103, "SM8975", 85, 12, True),
    Target(112, "SM8975L", 85, 8, True),
    Target(113, "SM8950", 85, 8, True),
    Target(114, "SA8787", 85, 16, True),
)  # fmt: skip

# What `vNN` stands for: the phone chip of that architecture that ONNX Runtime's QNN EP takes for it too (v85: our choice).
_FLAGSHIPS = {68: 30, 69: 36, 73: 43, 75: 57, 79: 69, 81: 87, 85: 113}
_BY_ID = {target.soc: target for target in _TABLE}
_BY_NAME = {target.name.lower(): target for target in _TABLE}
