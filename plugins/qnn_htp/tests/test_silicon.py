"""What only a chip has, against a function table of our own: the calls, their order and their structs.

Nothing here has run on silicon; on the emulator each of these is refused with status 1000.
"""

import ctypes
import os

import numpy as np
import pytest
from isthmus import open_device
from isthmus.errors import ExecutionError, OutOfMemoryError, UnavailableError, UnsupportedError
from isthmus.spi import Region
from isthmus.types import DType, Granted, Pages
from isthmus_qnn_htp import _abi, _lib, silicon
from isthmus_qnn_htp.binary import Tensor
from isthmus_qnn_htp.checks import MatchedGraph
from isthmus_qnn_htp.device_options import DeviceOptions
from isthmus_qnn_htp.memory import DspMemory
from isthmus_qnn_htp.program import Binding, LoadedGraph, Program
from isthmus_qnn_htp.session import Session

X = Tensor(3, "x", DType.FLOAT16, (2, 8), None, 0, 0x216, 0)
Y = Tensor(4, "y", DType.FLOAT16, (2, 8), None, 1, 0x216, 0)
GRAPH = MatchedGraph("g", "main", [X], [Y])


class Fake:
    """A QNN that records calls, hands out numbered handles, and fails where told."""

    def __init__(self, **failures):
        self.calls = []
        self.failures = failures
        self.handles = iter(range(1, 1000))
        self.interface = _lib.Interface({name: self.function(name) for name in _abi.CORE_SIGNATURES}, (2, 40, 0))
        self.callback = None

    def function(self, name):
        def call(*arguments):
            self.calls.append(name)
            if handler := getattr(self, name, None):
                handler(*arguments)
            return self.failures.get(name, 0)

        return call

    def hand_out(self, reference):
        reference._obj.value = next(self.handles)

    def logCreate(self, callback, level, out):  # noqa: N802
        self.hand_out(out)

    def backendCreate(self, log, config, out):  # noqa: N802
        self.hand_out(out)

    def deviceCreate(self, log, configs, out):  # noqa: N802
        self.soc_words = list((ctypes.c_uint32 * 8).from_address(configs[0].contents.customConfig))
        self.hand_out(out)

    def contextCreateFromBinary(self, backend, device, configs, data, size, out, profile):  # noqa: N802
        found = []
        while configs and configs[len(found)]:
            found.append(configs[len(found)].contents)
        self.context_configs = found
        self.hand_out(out)

    def graphRetrieve(self, context, name, out):  # noqa: N802
        self.hand_out(out)

    def signalCreate(self, backend, configs, out):  # noqa: N802
        self.timeout = configs[0].contents.option, configs[0].contents.u.timeoutDurationUs
        self.hand_out(out)

    def memRegister(self, context, descriptor, count, out):  # noqa: N802
        given = descriptor._obj
        custom = _abi.QnnMemHtp_Descriptor_t.from_address(given.u.customInfo)
        shape = list(given.memShape.dimSize[: given.memShape.numDim])
        self.registered = (
            given.memType,
            given.dataType,
            shape,
            custom.type,
            custom.size,
            custom.sharedBufferConfig.offset,
        )
        self.hand_out(out)

    def graphExecute(self, graph, inputs, n, outputs, m, profile, signal):  # noqa: N802
        self.executed = [slot.u.v1 for slot in (*inputs[:n], *outputs[:m])]
        self.signal = signal

    def graphExecuteAsync(self, graph, inputs, n, outputs, m, profile, signal, callback, parameter):  # noqa: N802
        callback(None, _abi.Qnn_NotifyStatus_t(self.failures.get("notified", 0)))


class FakeRpc:
    """libcdsprpc with memfds for DSP memory."""

    def __init__(self, broken=False):
        self.mappings, self.freed, self.broken = {}, [], broken
        self.rpcmem_alloc = self._function(self._allocate)
        self.rpcmem_to_fd = self._function(lambda address: self.mappings[address][0])
        self.rpcmem_free = self._function(self.freed.append)

    @staticmethod
    def _function(body):
        def function(*arguments):
            return body(*arguments)

        return function

    def _allocate(self, heap, flags, size):
        assert (heap, flags) == (25, 1)
        if self.broken:
            return None
        fd = os.memfd_create("dsp")
        os.ftruncate(fd, size)
        array = np.asarray(_lib.map_shared(fd, size))
        self.mappings[array.ctypes.data] = fd, array
        return array.ctypes.data


def session(fake, **options):
    return Session(fake.interface, _lib.Interface({}, (1, 15, 0)), DeviceOptions(**options))


@pytest.fixture
def dsp():
    return DspMemory(_lib.RpcMemory(FakeRpc()))


def program(fake, opened, tmp_path, **options):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(b"binary")
    options = {"registered": False, "spill_fill": 0, **options}
    return Program(opened, _abi.Handle(1), tmp_path, {"a.bin": [GRAPH], "b.bin": []}, **options)


def test_handles_are_freed_newest_first_and_the_soc_is_named_at_both_places_of_the_struct():
    fake = Fake()
    opened = session(fake)
    opened.device(57)
    assert fake.soc_words == [0, 57, 57, 0, 0, 0, 0, 0]
    opened.close()
    opened.close()
    assert fake.calls[-3:] == ["deviceFree", "backendFree", "logFree"]
    assert fake.calls.count("logFree") == 1


def test_a_backend_that_cannot_be_created_leaves_no_log_behind():
    fake = Fake(backendCreate=1008)
    with pytest.raises(Exception, match="libraries of different releases"):
        session(fake)
    assert fake.calls[-1] == "logFree"


def test_dsp_memory_is_shared_by_descriptor_and_freed_by_its_driver(dsp):
    memory = dsp.allocate(100, Pages.NORMAL, 1 << 14)
    rpc = dsp._rpc._library
    assert memory.address % (1 << 14) == 0
    assert memory.granted is Granted.UNKNOWN
    fd = memory.fd
    memory.close_fd()
    assert memory.fd == fd, "the descriptor is the driver's"
    memory.bytes[:4] = b"dsp!"
    assert os.pread(fd, 4, memory.offset) == b"dsp!"
    base = memory.address - memory.offset
    memory.release()
    assert rpc.freed == [base]


def test_dsp_memory_that_is_used_up_is_out_of_memory():
    with pytest.raises(OutOfMemoryError):
        DspMemory(_lib.RpcMemory(FakeRpc(broken=True))).allocate(100, Pages.NORMAL, 64)


def test_a_region_is_registered_once_and_deregistered_with_its_memory(dsp):
    fake = Fake()
    memory = dsp.allocate(8192, Pages.NORMAL, 64)
    buffers = silicon.RegisteredBuffers(fake.interface, _abi.Handle(9))
    slot = _abi.Qnn_Tensor_t()
    for offset in (64, 128, 64):
        buffers.attach(slot, X, memory, offset)
    assert fake.calls == ["memRegister"] * 2
    assert slot.u.v1.memType == 1
    assert slot.u.v1.mem.memHandle == 1
    buffers.attach(slot, X, memory, 128)
    assert slot.u.v1.mem.memHandle == 2
    assert fake.registered == (2, 0x216, [2, 8], 1, memory.length, memory.offset + 128)
    buffers.forget(memory)
    assert fake.calls[2:] == ["memDeRegister"] * 2
    buffers.close()
    assert len(fake.calls) == 4


def test_a_program_deregisters_before_it_frees_its_contexts(dsp, tmp_path):
    fake = Fake()
    opened = session(fake)
    loaded = program(fake, opened, tmp_path, registered=True)
    memory = dsp.allocate(4096, Pages.NORMAL, 64)
    x, y = Region(memory, 0, 32), Region(memory, 64, 32)
    binding = Binding(opened, loaded.entries["main"], [x], [y], None)
    binding.execute()
    assert [tensor.memType for tensor in fake.executed] == [1, 1]
    loaded.unload()
    assert fake.calls[-4:] == ["contextFree", "memDeRegister", "memDeRegister", "contextFree"]


def test_contexts_of_one_program_share_the_spill_fill_buffer_of_the_first(tmp_path):
    fake, seen = Fake(), []
    create = fake.contextCreateFromBinary

    def remember(backend, device, configs, data, size, out, profile):
        create(backend, device, configs, data, size, out, profile)
        (config,) = fake.context_configs
        custom = _abi.QnnHtpContext_CustomConfig_t.from_address(config.u.customConfig)
        group = custom.u.groupRegistration
        seen.append((config.option, custom.option, group.firstGroupHandle, group.maxSpillFillBuffer, out._obj.value))

    fake.contextCreateFromBinary = remember
    program(fake, session(fake), tmp_path, spill_fill=1 << 20)
    (_, _, first, size, handle), second = seen
    assert (first, size) == (None, 1 << 20)
    assert second[:4] == (0, 2, handle, 1 << 20)


def test_a_program_that_fails_half_way_frees_what_it_loaded(tmp_path):
    fake = Fake(graphRetrieve=6003)
    opened = session(fake)
    with pytest.raises(ExecutionError, match="find graph g"):
        program(fake, opened, tmp_path)
    assert fake.calls[-1] == "contextFree"


def test_asynchronous_execution_waits_for_its_notification(tmp_path):
    fake = Fake()
    opened = session(fake, async_depth=2)
    loaded = program(fake, opened, tmp_path)
    (depth,) = fake.context_configs
    assert (depth.option, depth.u.asyncExeQueueDepth.type, depth.u.asyncExeQueueDepth.depth) == (4, 0, 2)
    binding = Binding(opened, loaded.entries["main"], [], [], None)
    binding.execute()
    assert fake.calls[-1] == "graphExecuteAsync"
    fake.failures["notified"] = 6031
    with pytest.raises(ExecutionError) as caught:
        binding.execute()
    assert (caught.value.status.call, caught.value.status.code) == ("graphExecuteAsync", 6031)


def test_a_time_limit_is_a_signal_given_to_every_execute(tmp_path):
    fake = Fake()
    opened = session(fake)
    signal = silicon.TimeoutSignal(fake.interface, opened.backend, 1.5)
    assert fake.timeout == (2, 1_500_000)
    loaded = program(fake, opened, tmp_path)
    binding = Binding(opened, loaded.entries["main"], [], [], signal)
    binding.execute()
    assert fake.signal is signal.handle
    fake.failures["graphExecute"] = 6033
    with pytest.raises(ExecutionError, match="abort_seconds"):
        binding.execute()
    signal.close()
    assert fake.calls[-1] == "signalFree"


def test_an_empty_set_of_tensors_is_a_graph_too():
    assert LoadedGraph(_abi.Handle(1), MatchedGraph("g", "e", [], []), silicon.ClientBuffers())


@pytest.mark.parametrize("isolation", ["child", "in_process"])
def test_the_emulator_refuses_what_it_lacks_instead_of_going_without(isolation, artifact, contexts, case):
    made, options = artifact(case(contexts, "fp32").binary), {"isolation": isolation}
    with pytest.raises(UnavailableError, match="libcdsprpc"):
        open_device("qnn_htp", options={**options, "io_memory": "registered"})
    with pytest.raises(UnsupportedError, match="limit the time of an execute"):
        open_device("qnn_htp", options={**options, "abort_seconds": 1})
    with open_device("qnn_htp", options={**options, "async_depth": 2}) as device, device.load(made) as program:
        with pytest.raises(UnsupportedError) as caught:
            program.run("main", case(contexts, "fp32").inputs)
        assert caught.value.status.call == "graphExecuteAsync"
