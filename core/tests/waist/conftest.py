"""A backend that only keeps books: every driver call is recorded, and any of them can be made to fail."""

from __future__ import annotations

import attrs
import onnx
import pytest
from isthmus import Artifact, Device, GraphSet
from isthmus.artifact import finish_artifact
from isthmus.spi import Allocation, Backend, CompileReport, DeviceDriver
from isthmus.types import (
    BackendInfo,
    Capability,
    DeviceInfo,
    DType,
    EntrySpec,
    Granted,
    MemoryInfo,
    MemoryRequirements,
    Reality,
    TensorSpec,
    Tolerance,
)

ADD = EntrySpec(
    (TensorSpec("a", DType.FLOAT32, (4,)), TensorSpec("b", DType.FLOAT32, (4,))),
    (TensorSpec("sum", DType.FLOAT32, (4,)), TensorSpec("copy", DType.FLOAT32, (4,))),
)
NEED = MemoryRequirements(weights=128, workspace={"add": 64}, io={"add": 64}, exact=True, own_load=192, caller_load=0)
INFO = DeviceInfo("fake", "0", ("any",), Reality.SIMULATED, "books only")


class FakeDriver(DeviceDriver):
    """Buffers are bytearrays; ``calls`` is what was called; ``fail[name]`` is raised by the call of that name."""

    capabilities = frozenset({Capability.CALLER_WEIGHTS, Capability.CALLER_WORKSPACE, Capability.HOST_VISIBLE})

    def __init__(self, extra=frozenset(), without=frozenset()):
        self.capabilities = self.capabilities - without | extra
        self.calls = []
        self.fail = {}
        self.live = []
        self.need = NEED

    def note(self, name, *args):
        self.calls.append((name, *args))
        if name in self.fail:
            raise self.fail[name]

    def names(self):
        return [call[0] for call in self.calls]

    def memory_info(self):
        self.note("memory_info")
        return MemoryInfo(None, None)

    def allocate(self, size, pages, alignment):
        self.note("allocate", size, pages, alignment)
        handle = bytearray(size)
        self.live.append(handle)
        return Allocation(handle, size, Granted.NORMAL)

    def free(self, handle):
        self.note("free", len(handle))
        self.live = [h for h in self.live if h is not handle]

    def write(self, region, data):
        self.note("write", region.offset, region.size)
        region.handle[region.offset : region.offset + region.size] = data

    def read(self, region, out):
        self.note("read", region.offset, region.size)
        out[:] = region.handle[region.offset : region.offset + region.size]

    def copy(self, dst, src):
        self.note("copy")
        dst.handle[dst.offset : dst.offset + dst.size] = src.handle[src.offset : src.offset + src.size]

    def host_view(self, handle):
        self.note("host_view")
        return memoryview(handle)

    def memory_requirements(self, artifact):
        self.note("memory_requirements")
        return self.need

    def load(self, artifact, memory):
        self.note("load", memory)
        return object()

    def unload(self, program):
        self.note("unload")

    def bind(self, program, entry, inputs, outputs):
        self.note("bind")
        return [list(inputs), list(outputs)]

    def rebind(self, binding, inputs, outputs):
        self.note("rebind")
        for side, changes in zip(binding, (inputs, outputs)):
            for position, region in changes.items():
                side[position] = region

    def unbind(self, binding):
        self.note("unbind")

    def execute(self, binding):
        self.note("execute", binding)

    def profile(self, binding):
        self.note("profile")
        return []

    def close(self):
        self.note("close")


class FakeBackend(Backend):
    info = BackendInfo("fake", (1, 0), "0")

    def devices(self):
        return (INFO,)

    def targets(self):
        return ("any",)

    def open(self, device, options):
        return FakeDriver()

    def compile(self, source, target, out, options):
        (out / "program.bin").write_bytes(b"program" * 9)
        (out / "sub").mkdir()
        (out / "sub" / "weights.bin").write_bytes(bytes(range(256)) * 40)
        return report()


def report(**changes):
    made = CompileReport({"add": ADD}, NEED, {"fake": "0"}, Tolerance(1e-6, 1e-6))
    return attrs.evolve(made, **changes)


@pytest.fixture
def fake_backend():
    return FakeBackend()


@pytest.fixture
def make_report():
    return report


@pytest.fixture
def need():
    return NEED


@pytest.fixture
def open_fake():
    """Opens fake devices, and closes what a test leaves open."""
    opened = []

    def open_device(**kwargs) -> tuple[Device, FakeDriver]:
        driver = FakeDriver(**kwargs)
        opened.append(Device(INFO, driver))
        return opened[-1], driver

    yield open_device
    for device in opened:
        device.close()


@pytest.fixture
def fake(open_fake):
    return open_fake()


@pytest.fixture
def device(fake):
    return fake[0]


@pytest.fixture
def allocate(device):
    """``Device.allocate`` of buffers that live until the test is over."""
    kept = []

    def allocate(*args, on=device, **kwargs):
        kept.append(on.allocate(*args, **kwargs))
        return kept[-1]

    yield allocate
    for buffer in reversed(kept):
        if not buffer.device.closed:
            buffer.close()


@pytest.fixture
def driver(fake):
    return fake[1]


@pytest.fixture
def graphs(tmp_path) -> GraphSet:
    root = tmp_path / "graphs"
    root.mkdir()
    (root / "add.onnx").write_bytes(onnx.ModelProto(producer_name="nothing in it").SerializeToString())
    (root / "vocab.txt").write_text("a b c")
    made = GraphSet(root, {"add": "add.onnx"}, ("vocab.txt",), source_sha256="0" * 64)
    made.save()
    return made


@pytest.fixture
def make_artifact(tmp_path, graphs, fake_backend):
    """Writes an artifact of the fake backend into a new directory."""

    def make(name="artifact", **changes) -> Artifact:
        out = tmp_path / name
        out.mkdir()
        made = fake_backend.compile(graphs, "any", out, None)
        return finish_artifact(
            out,
            graphs,
            attrs.evolve(made, **changes),
            isthmus="0",
            backend="fake",
            plugin="0",
            target="any",
            options={},
        )

    return make


@pytest.fixture
def artifact(make_artifact) -> Artifact:
    return make_artifact()


@pytest.fixture
def program(device, artifact):
    with device.load(artifact) as loaded:
        yield loaded


@pytest.fixture
def buffers(allocate):
    """Two inputs and two outputs of the entry ``add``."""
    four = {name: allocate(16) for name in ("a", "b", "sum", "copy")}
    return {n: four[n] for n in ("a", "b")}, {n: four[n] for n in ("sum", "copy")}
