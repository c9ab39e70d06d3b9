"""Promises the core keeps for every backend: here it does not."""

import isthmus
from isthmus import _lifetime, api, artifact, device, spi
from isthmus.errors import ClosedError

from .base import breaks_core


@breaks_core("test_plugin::test_unknown_options_are_refused")
def options_are_ignored(monkeypatch):
    monkeypatch.setattr(api, "parse_options", lambda cls, given, what: cls())


@breaks_core("test_plugin::test_an_unknown_device_is_refused_with_those_there_are")
def any_device_will_do(monkeypatch):
    original = api.open_device
    monkeypatch.setattr(isthmus, "open_device", lambda name, **kwargs: original(name.partition(":")[0], **kwargs))


@breaks_core("test_memory::test_a_fork_leaves_the_parent_s_device_alone")
def forks_are_not_noticed(monkeypatch):
    monkeypatch.setattr(_lifetime.Ledger, "foreign", False)


@breaks_core("test_caller_memory::test_lent_memory_is_pinned_while_the_program_is_loaded")
def nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(_lifetime.Child, "_use", lambda self, uses: None)


@breaks_core("test_caller_memory::test_lent_memory_that_is_too_small_is_refused")
def sizes_are_not_compared(monkeypatch):
    def lendable(self, what, memory, need, alignment):
        return memory and spi.Region(memory._region.handle, memory._region.offset, min(need, memory.size))

    monkeypatch.setattr(device.Device, "_lendable", lendable)


@breaks_core("test_artifacts::test_an_artifact_for_another_target_is_refused")
def targets_are_not_compared(monkeypatch):
    monkeypatch.setattr(device.Device, "_check_artifact", lambda self, artifact: None)


@breaks_core("test_artifacts::test_a_changed_byte_is_found_in_any_file")
@breaks_core("test_artifacts::test_a_torn_or_missing_file_is_found")
def files_are_not_hashed(monkeypatch):
    monkeypatch.setattr(artifact, "_verify", lambda file, name, record: None)


@breaks_core("test_lifetimes::test_closing_is_final_and_may_be_repeated")
def closing_twice_is_an_error(monkeypatch):
    original = _lifetime.Ledger.close

    def close(self):
        if self.closed:
            raise ClosedError("closed already")
        original(self)

    monkeypatch.setattr(_lifetime.Ledger, "close", close)
