"""Find in a compiler's log what went wrong: nodes it refused, limits it hit, lines it calls errors.

ONNX Runtime's exception says "Code: 1002" or "nodes are assigned to the default CPU EP"; the reason is only in the log,
partly at verbose level. Tables below are data; the lines were measured on QNN 2.51, older wordings are from public
reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs


@attrs.frozen
class RefusedNode:
    """A node that would not run on the HTP."""

    name: str
    op_type: str
    reason: str
    """The execution provider's sentence."""
    vendor: tuple[str, ...]
    """What the QNN library said while it validated the node."""


@attrs.frozen
class Cause:
    """A line that names the cause, and what it means."""

    line: str
    why: str
    fix: str


@attrs.frozen
class Findings:
    """What a log says."""

    refused: tuple[RefusedNode, ...]
    causes: tuple[Cause, ...]
    errors: tuple[str, ...]
    """Error lines of the vendor that are not in ``causes``, oldest first, each once."""
    reached: str
    """Where the compiler was when the log ended: a node it was adding, or a stage."""


# Pattern of a line, what it means, what to do. The first match of a line counts.
CAUSES = (
    (
        r"not sufficiently tiled to fit in TCM. Requires \d+ bytes",
        "an operator works on a row that is larger than the on-chip memory (VTCM) and cannot be cut",
        "reshape or split the tensor so that its last dimension is smaller; do not lower vtcm_mb",
    ),
    (
        r"requires 0x[0-9a-fA-F]+ bytes of TCM",
        "a single operator needs more on-chip memory (VTCM) than the chip has",
        "reshape or split the tensor it works on",
    ),
    (
        r"graph requires estimated allocation of \d+ KB, limit is \d+ KB",
        "one graph's weights and activations are over the compiler's limit per graph",
        "split the model into several graphs, or quantise its weights",
    ),
    (
        r"SocModel doesn't support \w+",
        "the chip has no such arithmetic",
        "choose another target, or compile a quantised (QDQ) graph",
    ),
    (
        r"Unsupported input/output datatypes requested",
        "the HTP has this operator, but not for these element types",
        "change the element type: float32, float16, or a quantised form that the lines above list",
    ),
    (
        r"has incorrect Rank \d+",
        "the HTP takes tensors of at most 5 dimensions, most operators of 4",
        "reshape the tensor to fewer dimensions around the node",
    ),
    (
        r"Could not allocate|std::bad_alloc|Cannot allocate memory",
        "this machine ran out of memory; compiling takes about four times the weights",
        "compile on a machine with more memory, or split the graph",
    ),
)

# QNN's catch-all codes as ONNX Runtime prints them, in the compiler's context.
CODES = {
    1000: "the library does not support what was asked",
    1002: (
        'the library\'s catch-all for a graph that it could not finalise, in spite of its name "memory allocation";'
        " memory only if a line of the log says so"
    ),
    1100: "the library's general error",
    3110: "the library refused an operator's configuration",
    4000: "the backend could not be initialised",
    5005: "the context could not be created",
    6000: "a graph call got an invalid argument",
    14001: "this version of the library does not know the SoC",
}

# What to write instead of an operator that the HTP does not have. From the ONNX backend tests on QNN 2.51.
HINTS = {
    "Erf": "spell GELU as Div, Erf, Add, Mul, Mul, which the compiler fuses, or as Gelu of opset 20",
    "Range": "fold it into a constant: shapes are fixed",
    "ConstantOfShape": "fold it into a constant: shapes are fixed",
    "NonZero": "move it to the host: the size of its output depends on data",
    "Trilu": "multiply by a constant mask",
    "Loop": "unroll it",
    "Scan": "unroll it",
    "Dropout": "export the model in inference mode",
    "DequantizeLinear": "weights quantised by blocks with float activations: use MatMulNBits",
}

_NOISE = re.compile(
    "unexpected GraphHtpSettings option|Please refer to the|QnnBackend_validateOpConfig failed"
    "|Failed to validate op|skipping post-prepare|RouterX86 graph prepare failed|Supported I/O datatype sets"
)
_ERROR = re.compile(r"QnnLogging\]\s+(?:<E>\s+|\S+\.(?:cc|h):\d+::ERROR:)(?P<text>.*)")
_CRASH = re.compile(r"what\(\):|std::bad_alloc")
_PASS = re.compile(r"GetCapability pass \d")
_VERDICT = re.compile(r"Validation (?P<verdict>PASSED|FAILED) for \d+ nodes")
_NODE = re.compile(r"Operator type: (?P<op>\S+) Node name: (?P<name>\S*)")
_REASON = re.compile(r"REASON : (?P<text>.*)")
_DATATYPE = re.compile(r"^\s+(?P<which>(?:in|out)\[\d+\]):QNN_DATATYPE_(?P<type>\S+)")
_ADDING = re.compile(r"trying to add node. Onnx node name: \[(?P<name>[^\]]*)\] onnx node type: \[(?P<op>[^\]]*)\]")
_STAGE = re.compile(r"Starting stage: (?P<stage>.+)")
_REPEATED = re.compile(r"(?<=\.)\w+ node `[^`]*` will not be assigned to QNN EP\.?")
_REQUESTED = "Requested I/O datatype set:"


def read_findings(lines: Iterable[str]) -> Findings:
    """Go through a log once; it may be hundreds of megabytes."""
    reader = _Reader()
    for line in lines:
        reader.feed(line)
    return reader.findings()


def code_in(text: str) -> int | None:
    """The QNN code in ONNX Runtime's text, e.g. 1002 in ``... Code: 1002``."""
    match = re.search(r"Code:\s*(\d+)", text)
    return int(match[1]) if match else None


class _Reader:
    """State of one reading. The compiler's verdict on a node follows what the library says while it validates it."""

    def __init__(self) -> None:
        self._errors: dict[str, None] = {}
        self._refused: dict[str, RefusedNode] = {}
        self._recent: list[str] = []  # vendor errors since the last verdict
        self._in_refusal = False
        self._node: re.Match[str] | None = None
        self._datatypes = False
        self._reached = ""

    def feed(self, line: str) -> None:
        if match := _ERROR.search(line):
            self._error(match["text"].strip())
        elif match := _VERDICT.search(line):
            self._in_refusal, self._node = match["verdict"] == "FAILED", None
            if not self._in_refusal:
                self._recent.clear()
        elif self._datatypes and (match := _DATATYPE.search(line)):
            self._recent[-1] += f" {match['which']} {match['type']}"
        elif self._in_refusal:
            self._refusal(line)
        elif match := _ADDING.search(line):
            self._reached = f"node {match['name']!r} ({match['op']})"
        elif match := _STAGE.search(line):
            self._reached = f"stage {match['stage'].strip()!r}"
        elif _PASS.search(line):
            self._refused.clear()  # only the last pass counts: layouts differ between them
        elif _CRASH.search(line):
            self._errors[line.strip()] = None

    def findings(self) -> Findings:
        """What was found."""
        causes = tuple(cause for text in self._errors if (cause := cause_of(text)))
        known = {cause.line for cause in causes}
        return Findings(
            tuple(self._refused.values()), causes, tuple(e for e in self._errors if e not in known), self._reached
        )

    def _error(self, text: str) -> None:
        if not text or _NOISE.search(text):
            self._datatypes = False
            return
        self._datatypes = text == _REQUESTED
        self._errors[text] = None
        self._recent.append(text)

    def _refusal(self, line: str) -> None:
        if self._node is None:
            self._node = _NODE.search(line)
        elif match := _REASON.search(line):
            name, op = self._node["name"], self._node["op"]
            reason = _REPEATED.sub("", match["text"]).strip()
            self._refused[name] = RefusedNode(name, op, reason, tuple(dict.fromkeys(self._recent)))
            self._in_refusal = False
            self._recent.clear()


def cause_of(text: str) -> Cause | None:
    """What a vendor's line means, if it is one we know."""
    return next((Cause(text, why, fix) for pattern, why, fix in CAUSES if re.search(pattern, text)), None)
