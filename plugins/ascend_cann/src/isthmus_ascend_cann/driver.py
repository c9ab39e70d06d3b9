"""The open device: puts context, memory, programs and bindings together. See ``isthmus.spi.DeviceDriver``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from isthmus.artifact import Artifact
from isthmus.errors import IncompatibleError, OutOfMemoryError
from isthmus.spi import Allocation, CallerMemory, DeviceDriver, Handle, Region
from isthmus.types import Capability, DeviceInfo, MemoryInfo, MemoryRequirements, Pages, ProfileEvent, Reality

from . import _abi, _lib, books, sizes
from . import binding as bindings
from . import program as programs
from ._lib import Acl
from .binding import Binding
from .context import Context
from .memory import Memory
from .plan import ProgramPlan, read_plan
from .program import Model, Program


class AscendDriver(DeviceDriver):
    """One NPU (or simulated NPU) through AscendCL."""

    capabilities = frozenset(
        {Capability.CALLER_WEIGHTS, Capability.CALLER_WORKSPACE, Capability.HUGE_PAGES, Capability.PROFILE}
    )
    io_alignment = sizes.ALIGNMENT

    def __init__(self, info: DeviceInfo, context: Context, *, p2p: bool, giant_pages: bool, staging: int) -> None:
        self.info = info
        self._context = context
        self._plans: dict[tuple[object, ...], ProgramPlan] = {}
        self._bindings: list[Binding] = []
        self._memory = Memory(context, p2p=p2p, giant_pages=giant_pages, staging=staging, explain=self._explain)

    # ---- memory

    def memory_info(self) -> MemoryInfo:
        return self._memory.info()

    def allocate(self, size: int, pages: Pages, alignment: int) -> Allocation:
        block = self._memory.allocate(size, pages, alignment, books.BUFFERS)
        return Allocation(block, block.charged, block.granted)

    def free(self, handle: Handle) -> None:
        self._memory.free(handle)

    def write(self, region: Region, data: memoryview) -> None:
        self._memory.write(region, data)

    def read(self, region: Region, out: memoryview) -> None:
        self._memory.read(region, out)

    def copy(self, dst: Region, src: Region) -> None:
        self._memory.copy(dst, src)

    def _explain(self, error: OutOfMemoryError, size: int, purpose: str) -> OutOfMemoryError:
        blocks = self._memory.blocks.values()
        others = [] if self.info.reality is Reality.SIMULATED else books.other_processes()
        return books.explain(error, size, purpose, blocks, self._memory.free_by_kind(), others)

    # ---- programs

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        return self._plan(artifact).requirements(artifact.entries)

    def load(self, artifact: Artifact, memory: CallerMemory | None) -> Program:
        plan = self._plan(artifact)
        memory = memory or CallerMemory(None, None)
        self._check_fits(artifact, plan, memory)
        loaded = Program(plan, artifact.entries)
        with ExitStack() as undo:
            undo.callback(self.unload, loaded)
            weights = memory.weights or self._own(loaded, plan.weights.total, books.WEIGHTS)
            workspace = memory.workspace or self._own(loaded, plan.workspace, books.WORKSPACE)
            with self._context.entered() as acl:
                programs.fill_external(acl, artifact, plan, weights, self._memory.write)
                self._context.drain()
                for name in plan.models:
                    self._load_model(acl, artifact, name, loaded, weights, workspace)
            undo.pop_all()
        return loaded

    def _load_model(
        self, acl: Acl, artifact: Artifact, name: str, loaded: Program, weights: Region, workspace: Region
    ) -> None:
        try:
            model = programs.load_model(acl, artifact, name, loaded.plan, _address(weights), _address(workspace))
        except OutOfMemoryError as error:
            raise self._explain(error, 0, f"GE itself, while it loaded {name}") from error
        loaded.models[name] = model
        programs.check_model(acl, model, name, loaded)

    def unload(self, program: Program) -> None:
        with ExitStack() as steps:
            for block in program.owned:
                steps.callback(self._memory.free, block)
            for model in program.models.values():
                steps.callback(self._unload_model, model)
        program.owned.clear()

    def _unload_model(self, model: Model) -> None:
        with self._context.entered() as acl, self._context.drained():
            acl.aclmdlUnload(model.id)

    def _own(self, loaded: Program, size: int, purpose: str) -> Region:
        """Memory for a program that the caller lent none."""
        if not size:
            return Region(None, 0, 0)
        block = self._memory.allocate(size, Pages.PREFER_HUGE, sizes.ALIGNMENT, purpose)
        loaded.owned.append(block)
        return Region(block, 0, size)

    def _plan(self, artifact: Artifact) -> ProgramPlan:
        """The artifact's plan with the sizes that this runtime states; asking reads whole files, so once each."""
        key = (artifact.path, *(record.sha256 for record in artifact.manifest.files.values()))
        if key not in self._plans:
            self._check_made_for(artifact)
            plan = read_plan(artifact)
            with self._context.entered() as acl:
                found = {name: programs.query_sizes(acl, artifact.file(name)) for name in plan.models}
            self._plans[key] = plan.with_sizes(found)
        return self._plans[key]

    def _check_made_for(self, artifact: Artifact) -> None:
        made, here = artifact.manifest.reality, self.info.reality
        if made is not here:
            by = "the simulated atc" if made is Reality.SIMULATED else "a real atc"
            raise IncompatibleError(
                f"{artifact.path} was compiled by {by}; {self.info.id} is {here.value}",
                why="a simulated .om holds no kernels, and a real one nothing that the simulator can run",
                fix="compile it for this device: isthmus compile --backend ascend"
                + (" --simulator" if here is Reality.SIMULATED else ""),
            )

    def _check_fits(self, artifact: Artifact, plan: ProgramPlan, memory: CallerMemory) -> None:
        """Refuse before anything is allocated what cannot fit."""
        need = {}
        if memory.weights is None:
            need[books.WEIGHTS] = sizes.charged(plan.weights.total)
        if memory.workspace is None:
            need[books.WORKSPACE] = sizes.charged(plan.workspace)
        need["kernels"] = plan.device_code
        total, free = sum(need.values()), self._memory.free_by_kind()
        if free.all is not None and free.all[0] < total:
            raise books.refuse(f"loading {artifact.path}", need, total, self._memory.blocks.values(), free)

    # ---- execution

    def bind(self, program: Program, entry: str, inputs: Sequence[Region], outputs: Sequence[Region]) -> Binding:
        with self._context.entered() as acl:
            made = bindings.bind(acl, self._memory, program, entry, inputs, outputs)
        self._bindings.append(made)
        return made

    def rebind(self, binding: Binding, inputs: Mapping[int, Region], outputs: Mapping[int, Region]) -> None:
        with self._context.entered() as acl:
            bindings.rebind(acl, binding, inputs, outputs)

    def unbind(self, binding: Binding) -> None:
        with self._context.entered(), self._context.drained(), ExitStack() as steps:
            self._bindings.remove(binding)
            steps.callback(bindings.release_blocks, self._memory, binding.blocks)
            steps.push(binding.handles)

    def execute(self, binding: Binding) -> None:
        with self._context.entered() as acl:
            self._submit(acl, binding)
            self._context.wait()

    def _submit(self, acl: Acl, binding: Binding) -> None:
        self._context.queued()  # first: a part of it may be queued when it fails
        bindings.submit(acl, self._memory, binding, self._context.stream)

    def profile(self, binding: Binding) -> Sequence[ProfileEvent]:
        """Time on the device between two events, and time to submit; per operator there is only the vendor's msprof."""
        context = self._context
        with ExitStack() as release, context.entered() as acl:
            context.drain()
            start, end = (_event(acl, release) for _ in range(2))
            acl.aclrtRecordEvent(start, context.stream)
            before = time.perf_counter()
            self._submit(acl, binding)
            submit = time.perf_counter() - before
            acl.aclrtRecordEvent(end, context.stream)
            context.wait()
            milliseconds, out = _lib.new(_lib.FLOAT)
            acl.aclrtEventElapsedTime(out, start, end)
        return [ProfileEvent("execute", milliseconds.value * 1e3, "us"), ProfileEvent("submit", submit * 1e6, "us")]

    def close(self) -> None:
        with ExitStack() as steps:
            steps.callback(self._context.close)
            steps.callback(self._memory.close)
            for binding in self._bindings:  # left over only if the device is lost; they are host memory
                steps.push(binding.handles)
            steps.callback(self._context.stop)


def _address(region: Region) -> int:
    """Device address of a region; 0 for no memory."""
    return 0 if not region.size else int(region.handle.address) + region.offset


def _event(acl: Acl, release: ExitStack) -> int:
    event, out = _lib.new(_lib.POINTER)
    acl.aclrtCreateEventWithFlag(out, _abi.ACL_EVENT_TIME_LINE)
    release.callback(acl.aclrtDestroyEvent, event.value)
    return int(event.value)
