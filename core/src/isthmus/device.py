"""An open device: allocates memory, loads programs, owns both."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from . import spi
from ._lifetime import Closing, Ledger, overlap
from .artifact import Artifact
from .buffer import Buffer, View
from .errors import IncompatibleError, InputError, OutOfMemoryError, UnsupportedError
from .memory.ledger import MemoryLedger
from .memory.limits_load import check_load, load_books
from .program import Program
from .types import Capability, DeviceInfo, MemoryInfo, MemoryRequirements, Pages


class Device(Closing):
    """An open device. Made by ``open_device``. Usable from any thread, one call at a time; not from a forked child."""

    def __init__(self, info: DeviceInfo, driver: spi.DeviceDriver) -> None:
        self.info = info
        self.capabilities = driver.capabilities
        self.io_alignment = driver.io_alignment
        """Alignment of the offset of a bound input or output, in bytes."""
        self._ledger = Ledger(driver, info.id)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Device {self.info.id} ({self.info.reality.value})>"

    @property
    def closed(self) -> bool:
        """Whether the device is gone, or was left behind in the parent of a forked process."""
        return self._closed or self._ledger.closed or self._ledger.foreign

    def close(self) -> None:
        """Close everything that lives on the device, newest first, then the device. Safe to call twice.

        What fails does not stop the rest; it is raised at the end, as one ``ExceptionGroup``.
        """
        self._ledger.close()

    @property
    def memory(self) -> MemoryLedger:
        """Books of all that is allocated here: live, peak, by phase. Give it a ``budget`` to enforce a limit."""
        return self._ledger.memory

    def memory_info(self) -> MemoryInfo:
        """Free and total memory now; unknown is ``None``."""
        with self._ledger.call() as driver:
            return driver.memory_info()

    def allocate(
        self, size: int, pages: Pages = Pages.NORMAL, *, alignment: int = 64, book: str = "io", owner: str = ""
    ) -> Buffer:
        """Allocate ``size`` bytes (0 is legal). ``Buffer.granted`` says which pages it got. Contents are undefined.

        ``book`` (one of ``isthmus.memory.BOOKS``) and ``owner`` are what the ledger notes. ``OutOfMemoryError`` says
        how much was free, or left of the budget. ``UnsupportedError``: ``REQUIRE_HUGE`` on a device without.
        """
        size, alignment = operator.index(size), operator.index(alignment)
        if size < 0:
            raise InputError(f"size must not be negative: {size}")
        if alignment < 1 or alignment & (alignment - 1):
            raise InputError(f"alignment must be a power of two: {alignment}")
        if not isinstance(pages, Pages):
            raise InputError(f"pages is {pages!r}", fix="give one of isthmus.Pages: NORMAL, PREFER_HUGE, REQUIRE_HUGE")
        if pages is Pages.REQUIRE_HUGE:
            self._require(Capability.HUGE_PAGES)
        if size >> 63 or alignment >> 63:  # a C API would take the low 64 bits
            raise OutOfMemoryError(f"{size} bytes aligned to {alignment} are more than an address space")
        with self._ledger.call() as driver:
            grant = self._grant(driver, max(size, 1), pages, alignment, book, owner)
            buffer = Buffer(self, size, alignment, grant)
            self.memory.add(buffer._ticket, book, grant.size, owner, grant.granted)
            return buffer

    def _grant(
        self, driver: spi.DeviceDriver, size: int, pages: Pages, alignment: int, book: str, owner: str
    ) -> spi.Allocation:
        """Allocate within the budget. Several vendors reject empty allocations, so no driver sees one."""
        self.memory.reserve(book, size, owner)
        try:
            grant = driver.allocate(size, pages, alignment)
        except BaseException:
            self.memory.give_back(book, size)
            raise
        try:
            self.memory.reserve(book, max(grant.size - size, 0), owner)  # what rounding to pages took
        except OutOfMemoryError:
            self.memory.give_back(book, size)
            driver.free(grant.handle)
            raise
        return grant

    def memory_requirements(self, artifact: Artifact) -> MemoryRequirements:
        """What ``load`` will need: weights, workspace and I/O, without loading anything."""
        self._check_artifact(artifact)
        with self._ledger.call() as driver:
            return driver.memory_requirements(artifact)

    def load(
        self,
        artifact: Artifact,
        *,
        weights: Buffer | View | None = None,
        workspace: Buffer | View | None = None,
        force: bool = False,
    ) -> Program:
        """Load a program, into caller-owned ``weights`` and ``workspace`` memory where given.

        The buffers stay the caller's: they are pinned while the program is loaded and left alone by its ``close``.
        One workspace may serve several programs that never run at once. ``InputError``: a buffer is too small, badly
        aligned, or the two overlap. ``InUseError``: the weights of another loaded program are there.
        ``OutOfMemoryError``: it needs more than is free or left of the budget; nothing has been allocated then, and
        ``force`` turns this check into a warning.
        """
        self._check_artifact(artifact)
        lent = [memory for memory in (weights, workspace) if memory is not None]
        if weights is not None:
            self._require(Capability.CALLER_WEIGHTS)
        if workspace is not None:
            self._require(Capability.CALLER_WORKSPACE)
        with self._ledger.call() as driver:
            need = driver.memory_requirements(artifact)
            memory = self._lend(need, weights, workspace) if lent else None
            own = load_books(need, weights_lent=weights is not None, workspace_lent=workspace is not None)
            check_load(f"loading {artifact.path}", own, driver.memory_info(), self.memory, force=force)
            program = self._load_within(driver, artifact, memory, lent, own, force=force)
            if weights is not None and memory and memory.weights:
                self._ledger.lend_weights(program._ticket, weights._base, memory.weights)
            return program

    def _load_within(
        self,
        driver: spi.DeviceDriver,
        artifact: Artifact,
        memory: spi.CallerMemory | None,
        lent: Sequence[Buffer | View],
        own: Mapping[str, int],
        *,
        force: bool,
    ) -> Program:
        """Load, with what the runtime takes noted in the books; forced loads beyond the budget are noted as 0."""
        budget = self.memory.budget
        if force and budget is not None and sum(own.values()) > budget.free:
            own = dict.fromkeys(own, 0)
        name = artifact.path.name
        with ExitStack() as undo:
            for book, size in own.items():
                self.memory.reserve(book, size, name)
                undo.callback(self.memory.give_back, book, size)
            program = Program(self, artifact, driver.load(artifact, memory), [m._base for m in lent])
            undo.pop_all()
        for book, size in own.items():
            self.memory.add(program._ticket, book, size, name)
        return program

    def _lend(
        self, need: MemoryRequirements, weights: Buffer | View | None, workspace: Buffer | View | None
    ) -> spi.CallerMemory:
        memory = spi.CallerMemory(
            self._lendable("weights", weights, need.weights, need.alignment),
            self._lendable("workspace", workspace, need.peak_workspace, need.alignment),
        )
        one_buffer = weights is not None and workspace is not None and weights._base is workspace._base
        if one_buffer and memory.weights and memory.workspace and overlap(memory.weights, memory.workspace):
            raise InputError("the weights and the workspace overlap", fix="give each its own part of the buffer")
        return memory

    def _lendable(self, what: str, memory: Buffer | View | None, need: int, alignment: int) -> spi.Region | None:
        if memory is None:
            return None
        base, region = memory._base, memory._region
        if base.device is not self:
            raise InputError(f"the {what} buffer belongs to {base.device!r}, not to {self!r}")
        base._check_open()
        if region.size < need:
            raise InputError(
                f"the {what} buffer has {region.size} bytes, the artifact needs {need}",
                fix="allocate what Device.memory_requirements (isthmus size) says",
            )
        if base.alignment % alignment or region.offset % alignment:
            raise InputError(
                f"the {what} memory starts at byte {region.offset} of a buffer aligned to {base.alignment}; "
                f"the artifact needs {alignment}",
                fix="allocate with alignment=memory_requirements.alignment",
            )
        region = spi.Region(region.handle, region.offset, need)
        self._ledger.check_no_weights(base, region)
        return region

    def _check_artifact(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        if manifest.backend != self.info.backend or manifest.target not in self.info.targets:
            raise IncompatibleError(
                f"{artifact.path} was compiled for {manifest.backend} target {manifest.target}; "
                f"{self.info.id} runs {self.info.backend} targets {', '.join(self.info.targets)}",
                fix=f"isthmus compile GRAPHS --backend {self.info.backend} --target {self.info.targets[0]} -o DIR",
            )

    def _require(self, capability: Capability) -> None:
        if capability not in self.capabilities:
            raise UnsupportedError(
                f"{self.info.id} lacks {capability.value}; it has: "
                f"{', '.join(sorted(c.value for c in self.capabilities)) or 'none of the optional abilities'}"
            )
