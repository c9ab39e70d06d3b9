"""Reading the compiler's log. Lines have the form measured on onnxruntime-qnn 2.7.0."""

import hypothesis
import hypothesis.strategies as st
import pytest
from isthmus_qnn_htp.vendor_log import code_in, read_findings

EP, QNN = (
    "[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport]",
    "[V:onnxruntime:Default, m.cc:519 QnnLogging]",
)


def verdict(passed, name, op, reason=""):
    lines = [f"{EP} Validation {'PASSED' if passed else 'FAILED'} for 1 nodes in OrtNodeUnit ({op}) :"]
    lines.append(f"\tOperator type: {op} Node name: {name} Node index: 3")
    return [*lines, *([f"\tREASON : {reason}"] if reason else []), ""]


def error(text):
    return [f"{QNN}  <E> {text}", ""]


def test_a_refused_node_comes_with_what_the_library_said_about_it():
    lines = [
        *error("about another node"),
        *verdict(True, "good", "Relu"),
        *error("Unsupported input/output datatypes requested for the HTP Op 'Relu' in the node 'bad'."),
        *error("Requested I/O datatype set:"),
        "   in[0]:QNN_DATATYPE_FLOAT_64",
        "   out[0]:QNN_DATATYPE_FLOAT_64",
        *error("Supported I/O datatype sets for the configuration: FP16"),
        "   in[0]:QNN_DATATYPE_FLOAT_16",
        *verdict(False, "bad", "Relu", "Failed to add node."),
    ]
    (node,) = read_findings(lines).refused
    assert (node.name, node.op_type, node.reason) == ("bad", "Relu", "Failed to add node.")
    assert node.vendor[-1] == "Requested I/O datatype set: in[0] FLOAT_64 out[0] FLOAT_64"
    assert len(node.vendor) == 2


def test_only_the_last_pass_over_the_graph_counts():
    passes = [f"{EP} GetCapability pass {n} (...)" for n in (1, 2)]
    lines = [
        passes[0],
        *verdict(False, "a", "Pool", "layout"),
        passes[1],
        *verdict(False, "b", "Erf", "no such operator"),
    ]
    assert [node.name for node in read_findings(lines).refused] == ["b"]


def test_a_reason_is_not_said_twice():
    text = "Operators of type `Erf` are not supported by QNN EP.Erf node `e` will not be assigned to QNN EP."
    (node,) = read_findings(verdict(False, "e", "Erf", text)).refused
    assert node.reason == "Operators of type `Erf` are not supported by QNN EP."


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "fa_alloc.cc:2738::ERROR:graph requires estimated allocation of 4257312 KB, limit is 3670016 KB",
            "limit per graph",
        ),
        (
            "tcm.cc:1::ERROR:Operator named q::X (0x1) not sufficiently tiled to fit in TCM. Requires 8800256 bytes",
            "VTCM",
        ),
        ('<E> A single op, "q::F" requires 0x2400000 bytes of TCM, which is greater than 0x800000!', "VTCM"),
        ("<E> The SocModel doesn't support FP16", "no such arithmetic"),
        ("<E> [4294967295] has incorrect Rank 6.", "dimensions"),
    ],
)
def test_known_limits_are_explained(line, why):
    (cause,) = read_findings([f"{QNN} {line}"]).causes
    assert why in cause.why
    assert cause.fix


def test_noise_of_a_healthy_compilation_is_no_error():
    found = read_findings([*error("unexpected GraphHtpSettings option 66"), *verdict(True, "n", "Relu")])
    assert (found.refused, found.causes, found.errors) == ((), (), ())


def test_the_node_or_stage_that_was_reached_is_kept():
    adding = "[V:] QNN node builder is trying to add node. Onnx node name: [exp] onnx node type: [Expand]."
    assert read_findings([adding]).reached == "node 'exp' (Expand)"
    assert (
        read_findings([adding, f"{QNN} Starting stage: Graph Optimizations"]).reached == "stage 'Graph Optimizations'"
    )


def test_the_code_is_found_in_the_text():
    assert code_in("EP_FAIL : Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC: ..., Code: 1002") == 1002
    assert code_in("no number here") is None


@hypothesis.given(st.lists(st.text(), max_size=20))
def test_any_text_can_be_read(lines):
    read_findings([*lines, *verdict(False, "n", "Op", "no"), *lines])
