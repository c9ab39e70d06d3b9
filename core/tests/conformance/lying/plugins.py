"""Lies told before a device is open."""

import attrs
from isthmus.errors import UnavailableError
from isthmus.types import CANONICAL, BackendInfo

from .base import Backend, breaks


@breaks("test_plugin::test_the_backend_says_who_it_is")
class HasNoVersion(Backend):
    info = BackendInfo("nameless", (1, 0), "")


@breaks("test_plugin::test_devices_have_names_targets_and_a_description")
class ListsADeviceTwice(Backend):
    def devices(self):
        return super().devices() * 2


@breaks("test_plugin::test_devices_have_names_targets_and_a_description")
class RunsNothing(Backend):
    def devices(self):
        return tuple(attrs.evolve(d, targets=()) for d in super().devices())


@breaks("test_plugin::test_listing_devices_twice_gives_the_same")
class CountsItsCalls(Backend):
    calls = 0

    def devices(self):
        self.calls += 1
        return tuple(attrs.evolve(d, description=f"listed {self.calls} times") for d in super().devices())


@breaks("test_plugin::test_every_target_has_a_dialect")
class SpeaksNoDialect(Backend):
    def dialect(self, target):
        return None


@breaks("test_plugin::test_devices_run_what_the_compiler_compiles")
class CompilesForOthers(Backend):
    def devices(self):
        return tuple(attrs.evolve(d, targets=("other",)) for d in super().devices())


@breaks("test_plugin::test_an_unknown_target_is_an_input_error")
class TakesAnyTarget(Backend):
    def dialect(self, target):
        return CANONICAL


@breaks("test_plugin::test_the_doctor_always_answers_in_words")
class IsIll(Backend):
    def doctor(self):
        raise UnavailableError("no driver")


@attrs.frozen
class Bare:
    level: int = 1


@attrs.frozen
class Demanding:
    level: int = attrs.field(metadata={"help": "no default"})


@breaks("test_plugin::test_every_option_has_a_default_and_a_help")
class ExplainsNoOption(Backend):
    compile_options = Bare


@breaks("test_plugin::test_every_option_has_a_default_and_a_help")
class DemandsAnOption(Backend):
    device_options = Demanding


@breaks("test_plugin::test_a_foreign_file_is_not_described")
class DescribesEverything(Backend):
    def inspect(self, file):
        return {"bytes": file.stat().st_size}


@breaks("test_plugin::test_opening_a_device_opens_the_one_asked_for")
class ListsWhatItCannotOpen(Backend):
    def devices(self):
        (only,) = super().devices()
        return (only, attrs.evolve(only, name="1"))

    def open(self, device, options):
        if device.name == "1":
            raise UnavailableError("device 1 does not answer")
        return super().open(device, options)
