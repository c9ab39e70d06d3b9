"""Lies about memory and pages."""

import threading

from isthmus.errors import ExecutionError, OutOfMemoryError
from isthmus.spi import Allocation, Region
from isthmus.types import Granted, MemoryInfo, Pages
from isthmus_example.driver import Memory

from .base import Driver, breaks


@breaks("test_memory::test_bytes_survive_a_round_trip[4096]")
class LosesTheLastByte(Driver):
    def write(self, region, data):
        super().write(Region(region.handle, region.offset, region.size - 1), data[:-1])


@breaks("test_memory::test_an_allocation_is_charged_at_least_its_size[4096]")
class ChargesHalf(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size, pages, alignment)
        return Allocation(made.handle, size // 2, made.granted)


@breaks("test_memory::test_an_empty_allocation_is_legal")
class RefusesLittle(Driver):
    def allocate(self, size, pages, alignment):
        if size < 8:
            raise OutOfMemoryError(f"{size} bytes are too few")
        return super().allocate(size, pages, alignment)


@breaks("test_memory::test_a_write_touches_its_range_only[7-13]")
class WritesAtTheStart(Driver):
    def write(self, region, data):
        super().write(Region(region.handle, 0, region.size), data)


@breaks("test_memory::test_a_read_gives_its_range_only[7-13]")
class ReadsAtTheStart(Driver):
    def read(self, region, out):
        super().read(Region(region.handle, 0, region.size), out)


@breaks("test_memory::test_the_source_may_be_reused_as_soon_as_write_returns")
class WritesLater(Driver):
    def write(self, region, data):
        self.__dict__.setdefault("later", []).append((region, data))

    def read(self, region, out):
        for late in self.__dict__.pop("later", []):
            super().write(*late)
        super().read(region, out)


@breaks("test_memory::test_what_was_read_stays_when_the_buffer_changes")
class KeepsTheReader(Driver):
    def read(self, region, out):
        super().read(region, out)
        self.reader = out

    def write(self, region, data):
        super().write(region, data)
        if getattr(self, "reader", None) is not None and len(self.reader) == region.size:
            self.reader[:] = data


@breaks("test_memory::test_buffers_do_not_alias")
class OneForAll(Driver):
    shared = Memory(1 << 16, 64)

    def allocate(self, size, pages, alignment):
        if size > 1 << 16:
            return super().allocate(size, pages, alignment)
        return Allocation(self.shared, size, Granted.NORMAL)

    def free(self, handle):
        pass


@breaks("test_memory::test_copies_move_the_bytes_and_nothing_else")
class CopiesFromTheStart(Driver):
    def copy(self, dst, src):
        super().copy(dst, Region(src.handle, 0, src.size))


@breaks("test_memory::test_copies_within_a_buffer_work")
class CopiesBetweenBuffersOnly(Driver):
    def copy(self, dst, src):
        if dst.handle is not src.handle:
            super().copy(dst, src)


@breaks("test_memory::test_alignment_is_as_asked")
class OffByOne(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size + 1, pages, alignment)
        made.handle.bytes = made.handle.bytes[1:]
        return made


@breaks("test_memory::test_an_absurd_size_is_out_of_memory")
class RunsOutInItsOwnWords(Driver):
    def allocate(self, size, pages, alignment):
        if size > 1 << 40:
            raise MemoryError(size)
        return super().allocate(size, pages, alignment)


@breaks("test_memory::test_an_absurd_size_is_out_of_memory")
class TakesTheLow32Bits(Driver):
    def allocate(self, size, pages, alignment):
        return super().allocate(size & 0xFFFFFFFF or 1, pages, alignment)


@breaks("test_memory::test_buffers_may_be_freed_in_any_order")
class FreesTheNeighbourToo(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size, pages, alignment)
        self.__dict__.setdefault("live", []).append(made.handle)
        return made

    def free(self, handle):
        at = self.live.index(handle)
        for neighbour in self.live[at + 1 : at + 2]:
            neighbour.bytes[:8] = bytes(8)
        self.live.remove(handle)
        super().free(handle)


@breaks("test_memory::test_memory_is_given_back")
class NeverForgets(Driver):
    taken = 0

    def allocate(self, size, pages, alignment):
        self.taken += size
        if self.taken > 20 << 30:
            raise OutOfMemoryError(f"{self.taken} bytes are taken")
        return super().allocate(size, pages, alignment)


@breaks("test_memory::test_memory_figures_are_figures_or_unknown")
class CallsTheUnknownZero(Driver):
    def memory_info(self):
        return MemoryInfo(total=0, free=0)


@breaks("test_memory::test_host_views_are_the_memory_itself")
class ShowsACopy(Driver):
    def host_view(self, handle):
        return memoryview(bytearray(handle.bytes))


@breaks("test_memory::test_a_buffer_can_be_freed_while_somebody_holds_a_view")
class ClingsToItsViews(Driver):
    def host_view(self, handle):
        handle.viewed = True
        return super().host_view(handle)

    def free(self, handle):
        if getattr(handle, "viewed", False):
            raise BufferError("cannot close exported pointers exist")
        super().free(handle)


@breaks("test_memory::test_any_thread_may_use_the_device")
class BelongsToAThread(Driver):
    def __init__(self):
        super().__init__()
        self.thread = threading.get_ident()

    def write(self, region, data):
        if threading.get_ident() != self.thread:
            raise ExecutionError("no context in this thread")
        super().write(region, data)


@breaks("test_memory::test_threads_do_not_disturb_each_other")
class OneForAllThreads(Driver):
    def __init__(self):
        super().__init__()
        self.thread, self.shared = threading.get_ident(), Memory(1 << 16, 64)

    def allocate(self, size, pages, alignment):
        if threading.get_ident() == self.thread:
            return super().allocate(size, pages, alignment)
        return Allocation(self.shared, size, Granted.NORMAL)

    def free(self, handle):
        if handle is not self.shared:
            super().free(handle)


@breaks("test_pages::test_normal_pages_are_normal")
class CallsNormalPagesHuge(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size, pages, alignment)
        return Allocation(made.handle, size, Granted.HUGE)


@breaks("test_pages::test_preferring_huge_pages_always_yields_memory")
class PrefersNothingToLess(Driver):
    def allocate(self, size, pages, alignment):
        if pages is Pages.PREFER_HUGE:
            raise OutOfMemoryError(f"no huge pages for {size} bytes", fix="sysctl vm.nr_hugepages=N")
        return super().allocate(size, pages, alignment)


@breaks("test_pages::test_what_was_granted_is_what_there_is")
class AdvisesNothing(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size, Pages.NORMAL, alignment)
        return Allocation(made.handle, size, Granted.TRANSPARENT_HUGE)


@breaks("test_pages::test_required_huge_pages_are_huge_or_refused")
class FallsBackAndSaysSo(Driver):
    def allocate(self, size, pages, alignment):
        return super().allocate(size, Pages.NORMAL, alignment)


@breaks("test_pages::test_required_huge_pages_are_huge_or_refused")
class FallsBackInSilence(Driver):
    def allocate(self, size, pages, alignment):
        made = super().allocate(size, Pages.NORMAL, alignment)
        return Allocation(made.handle, size, Granted.NORMAL if pages is Pages.NORMAL else Granted.HUGE)


@breaks("test_pages::test_huge_pages_run_out_with_an_error_that_says_so")
class HasNoAdvice(Driver):
    def allocate(self, size, pages, alignment):
        if pages is Pages.REQUIRE_HUGE:
            raise OutOfMemoryError(f"no huge pages for {size} bytes")
        return super().allocate(size, pages, alignment)
