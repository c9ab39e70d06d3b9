"""What the plugin tells of itself."""

from __future__ import annotations

import pytest
from isthmus.errors import InputError
from isthmus.types import CANONICAL, Reality
from isthmus_cpu_ref import isthmus_backends
from isthmus_cpu_ref.options import CompileOptions


@pytest.fixture
def backend():
    (found,) = isthmus_backends()
    return found


def test_it_has_a_fast_device_and_a_true_one(backend):
    devices = {d.id: (d.targets, d.reality) for d in backend.devices()}
    assert devices == {"cpu:0": (("host",), Reality.REAL), "cpu:reference": (("reference",), Reality.REAL)}
    assert tuple(backend.targets()) == ("host", "reference")


def test_it_takes_canonical_graphs_and_no_unknown_target(backend):
    assert backend.dialect("host") == backend.dialect("reference") == CANONICAL
    with pytest.raises(InputError, match=r"'sm8650'.*host, reference"):
        backend.dialect("sm8650")


def test_doctor_tells_versions_instructions_and_huge_pages(backend):
    facts = backend.doctor()
    assert "CPUExecutionProvider" in facts["onnxruntime"]
    assert facts["transparent huge pages"] in ("always", "madvise", "never")
    assert "free" in facts["huge pages"]
    assert {"onnx", "cpu", "instructions", "memory"} <= facts.keys()


LISTED = """
import json, sys
from isthmus.registry import registry
backend = registry().backend("cpu")
backend.devices(), backend.targets(), backend.dialect("host")
print(json.dumps("onnxruntime" in sys.modules))
"""


def test_listing_it_loads_no_runtime(in_child):
    assert in_child(LISTED) is False


def test_every_option_has_a_default_and_a_help_text(backend):
    from isthmus.options import describe_options

    for options in (backend.compile_options, backend.device_options):
        options()
        assert all(o["help"] for o in describe_options(options))
    assert CompileOptions().optimization.value == "extended"
