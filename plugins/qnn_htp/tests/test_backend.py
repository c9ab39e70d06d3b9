"""What the backend says of itself, of files, and of its options; and how its processes talk."""

import contextlib
import json
import logging
import resource
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus import open_device
from isthmus.errors import (
    DeviceLostError,
    IncompatibleError,
    InputError,
    IntegrityError,
    OutOfMemoryError,
    UnavailableError,
)
from isthmus.options import describe_options
from isthmus.registry import registry
from isthmus.spi import Region
from isthmus.types import Reality, VendorStatus
from isthmus_qnn_htp import targets, wire
from isthmus_qnn_htp.checks import Chip, _version
from isthmus_qnn_htp.child import Child
from isthmus_qnn_htp.device_options import DeviceOptions, Power
from isthmus_qnn_htp.libraries import find
from isthmus_qnn_htp.power import _MODES, _configs


@pytest.fixture
def backend():
    return registry().backend("qnn_htp")


def test_the_emulator_is_listed_as_such_and_runs_every_target_however_it_is_spelled(backend):
    (device,) = backend.devices()
    assert (device.id, device.reality) == ("qnn_htp:0", Reality.EMULATED)
    assert device.targets[0] == targets.DEFAULT
    assert {"sm8650", "v75", "soc:57", "sm8850", "v81"} <= set(device.targets)
    assert next(iter(backend.targets())) == targets.DEFAULT


def test_a_chip_runs_what_was_compiled_for_it_or_for_its_architecture():
    from isthmus_qnn_htp.backend import _names

    assert _names(Chip(False, 57, 75, "2.51.0")) == ("sm8650", "v75", "soc:57")


def test_inspect_tells_a_binarys_graphs_tensors_and_memory(backend, contexts, case):
    facts = backend.inspect(case(contexts, "two").binary)
    json.dumps(facts)
    assert (facts["soc"], facts["arch"], len(facts["graphs"])) == (57, 75, 2)
    assert facts["graphs"][0]["inputs"] == ["x: float32[2, 64]"]
    assert facts["graphs"][0]["const"] > 0


def test_inspect_says_what_a_quantised_number_means(backend, contexts, case):
    (graph,) = backend.inspect(case(contexts, "u8").binary)["graphs"]
    assert graph["inputs"] == ["x: uint8[4, 64] = (q - 128) * 0.0313726"]


def test_inspect_leaves_other_files_alone_and_names_damaged_ones(backend, contexts, case, tmp_path):
    assert backend.inspect(contexts / "fp32.onnx") is None
    assert backend.inspect(contexts / "fp32.npz") is None
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(case(contexts, "fp32").binary.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"damaged\.bin is a damaged context binary"):
        backend.inspect(damaged)


def test_a_file_that_kills_the_reader_is_an_input_error(backend, contexts, case, hook):
    hook("crash_while_reading")
    with pytest.raises(InputError, match="reading it failed") as caught:
        backend.inspect(case(contexts, "fp32").binary)
    assert "SIGSEGV" in caught.value.why


def test_a_reader_that_cannot_start_is_not_blamed_on_the_file(backend, contexts, case, hook):
    hook("fail_to_start")
    with pytest.raises(DeviceLostError, match="ended with status 3"):
        backend.inspect(case(contexts, "fp32").binary)
    with pytest.raises(UnavailableError, match="ended with status 3 during open"):
        open_device("qnn_htp")


def test_no_descriptor_left_to_start_a_process_with_is_unavailable(backend):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    try:
        with pytest.raises(UnavailableError, match="no process can be started"):
            open_device("qnn_htp")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(Path("/proc/self/fd").iterdir())) == used


class Reader:
    """Reads metadata in a child, in a new one if that died."""

    def __init__(self):
        self.child = Child(60)

    def read(self, path):
        try:
            return self.child.call("inspect", path=str(path), library_dir=str(find().directory))
        except DeviceLostError:
            self.child.close()
            self.child = Child(60)


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.child.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_metadata_of_a_file_flipped_anywhere_is_read_or_refused_or_contained(contexts, case, reader, tmp_path, data):
    """Qualcomm's reader may take the file, or die of it (14 of 400 did); ours must survive whatever it says."""
    binary = bytearray(case(contexts, "step").binary.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        binary[data.draw(st.integers(8, 2047))] ^= 1 << data.draw(st.integers(0, 7))
    file = tmp_path / "flipped.bin"
    file.write_bytes(binary)
    with contextlib.suppress(IntegrityError, IncompatibleError):
        json.dumps(reader.read(file))


def test_options_are_typed_and_documented():
    for option in describe_options(DeviceOptions):
        assert option["help"], option["name"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"powr": "burst"}, "did you mean 'power'"),
        ({"power": "turbo"}, "burst"),
        ({"watchdog_seconds": "0"}, "watchdog_seconds must be positive"),
        ({"async_depth": "-1"}, "async_depth"),
        ({"soc": "sm9999"}, "no target 'sm9999'"),
        ({"isolation": "none"}, "child"),
    ],
)
def test_a_bad_option_is_an_input_error(options, text):
    with pytest.raises(InputError, match=text):
        open_device("qnn_htp", options=options)


def test_vendor_log_lines_of_the_child_reach_pythons_logging(caplog, artifact, contexts, case):
    with (
        caplog.at_level(logging.DEBUG, "isthmus.qnn"),
        open_device("qnn_htp", options={"log_level": "info"}) as device,
        device.load(artifact(case(contexts, "fp32").binary)),
    ):
        pass
    levels = {record.levelno for record in caplog.records if record.name == "isthmus.qnn"}
    assert {logging.INFO, logging.WARNING} <= levels


@pytest.mark.parametrize("power", [p for p in Power if p is not Power.DEFAULT])
def test_a_power_mode_votes_for_one_corner_of_bus_and_core(power):
    configs = _configs(_MODES[power], 7)
    dcvs = configs[0].u.dcvsV3Config
    corners = {getattr(dcvs, f"{part}VoltageCorner{bound}") for part in ("bus", "core") for bound in ("Min", "Max")}
    assert len(corners) == 1
    assert (dcvs.contextId, dcvs.setBusParams, dcvs.setCoreParams, dcvs.setSleepLatency) == (7, 1, 1, 1)
    polls = power in (Power.BURST, Power.SUSTAINED_HIGH, Power.HIGH)
    assert [config.option for config in configs] == ([1, 3] if polls else [1])


@given(st.lists(st.binary(max_size=300), max_size=5), st.sampled_from(list(wire.Kind)))
def test_frames_arrive_as_they_were_sent(payloads, kind):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = wire.Channel(ours), wire.Channel(theirs)
        for payload in payloads:
            sender.send(wire.frame(kind, payload))
        assert [receiver.receive() for _ in payloads] == [(kind, payload) for payload in payloads]
        ours.close()
        with pytest.raises(EOFError):
            receiver.receive()


def test_a_frame_larger_than_the_sockets_buffer_arrives_whole():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        payload = bytes(range(256)) * 20000

        thread = threading.Thread(target=wire.Channel(ours).send, args=(wire.frame(wire.Kind.CALL, payload),))
        thread.start()
        assert wire.Channel(theirs).receive() == (wire.Kind.CALL, payload)
        thread.join()


_REGIONS = st.dictionaries(st.integers(0, 2**32 - 1), st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63)))


@given(st.integers(0, 2**32 - 1), _REGIONS, _REGIONS)
def test_a_rebind_arrives_as_it_was_sent(binding, inputs, outputs):
    payload = wire.rebind_frame(binding, [inputs, outputs])[wire.HEADER.size :]
    memories = {memory: memory for side in (inputs, outputs) for memory, _ in side.values()}
    assert wire.unpack_binding(payload) == binding
    got = wire.unpack_rebind(payload, memories)
    assert got == tuple({p: Region(m, o, 0) for p, (m, o) in side.items()} for side in (inputs, outputs))


def test_an_error_arrives_as_it_was_raised():
    error = OutOfMemoryError("what", why="why", fix="fix", status=VendorStatus("call", 1002, "SYMBOL", "text"))
    again = wire.error_from_json(wire.error_to_json(error))
    assert type(again) is OutOfMemoryError
    assert (str(again), again.status) == (str(error), error.status)


@pytest.mark.parametrize(("text", "numbers"), [("v2.51.0.260929181845", (2, 51, 0)), ("2.5.13", (2, 5, 13))])
def test_releases_are_compared_as_numbers(text, numbers):
    assert _version(text) == numbers
