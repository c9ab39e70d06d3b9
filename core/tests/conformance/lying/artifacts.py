"""Lies about what is on disk."""

import json
from pathlib import Path

import attrs
from isthmus.errors import CompileError, IncompatibleError, InputError
from isthmus_example.driver import PROGRAM

from .base import Backend, Driver, breaks


class Noting(Backend):
    """Writes ``note(source, out)`` beside the program."""

    def compile(self, source, target, out, options):
        report = super().compile(source, target, out, options)
        (out / "note.txt").write_text(self.note(source, out))
        return report


class StaysDriver(Driver):
    def load(self, artifact, memory):
        if artifact.file("note.txt").read_text() != artifact.path.name:
            raise IncompatibleError(f"{artifact.path} is not where it was compiled")
        return super().load(artifact, memory)


@breaks("test_artifacts::test_an_artifact_works_wherever_it_is_moved")
class StaysWhereItWasMade(Noting):
    driver = StaysDriver

    def note(self, source, out):
        return out.name


@breaks("test_artifacts::test_an_artifact_is_not_changed_by_being_used")
class CachesBesideTheProgram(Driver):
    def load(self, artifact, memory):
        (artifact.path / "cache.bin").write_bytes(b"kernel cache")
        return super().load(artifact, memory)


@breaks("test_artifacts::test_a_manifest_that_lies_about_the_binary_is_refused")
class BelievesTheManifest(Driver):
    def load(self, artifact, memory):
        text = json.loads(artifact.file(PROGRAM).read_text())
        known = {name: artifact.entries[name] for name in text if name in artifact.entries}
        try:
            return super().load(attrs.evolve(artifact, manifest=attrs.evolve(artifact.manifest, entries=known)), memory)
        except IncompatibleError:
            return object()


@breaks("test_artifacts::test_a_manifest_that_lies_about_the_binary_is_refused")
class RefusesInItsOwnWords(Driver):
    def load(self, artifact, memory):
        try:
            return super().load(artifact, memory)
        except IncompatibleError as error:
            raise KeyError("main") from error


@breaks("test_artifacts::test_a_failed_load_leaves_the_device_usable")
class TakesOffence(Driver):
    offended = False

    def load(self, artifact, memory):
        try:
            if self.offended:
                raise IncompatibleError("no more")
            return super().load(artifact, memory)
        except IncompatibleError:
            self.offended = True
            raise


class LooksBackDriver(Driver):
    def load(self, artifact, memory):
        if not Path(artifact.file("note.txt").read_text()).exists():
            raise IncompatibleError("the graphs are gone")
        return super().load(artifact, memory)


@breaks("test_artifacts::test_an_artifact_needs_nothing_of_its_graphs")
class LooksBack(Noting):
    driver = LooksBackDriver

    def note(self, source, out):
        return str(source.path)


@breaks("test_artifacts::test_compiling_leaves_the_graphs_alone")
class OptimisesTheSource(Backend):
    def compile(self, source, target, out, options):
        report = super().compile(source, target, out, options)
        (source.path / "main.optimised.onnx").write_bytes(b"better")
        return report


@breaks("test_artifacts::test_garbage_is_refused_and_leaves_nothing")
class ChokesOnGarbage(Backend):
    def compile(self, source, target, out, options):
        try:
            return super().compile(source, target, out, options)
        except InputError as error:
            raise RuntimeError("parse error at byte 0") from error


@breaks("test_artifacts::test_an_unknown_operator_is_refused_by_name")
class NamesNothing(Backend):
    def compile(self, source, target, out, options):
        try:
            return super().compile(source, target, out, options)
        except CompileError as error:
            raise CompileError("the model cannot be compiled") from error


@breaks("test_artifacts::test_a_shape_that_is_not_fixed_is_refused")
class TripsOverSymbols(Backend):
    def compile(self, source, target, out, options):
        try:
            return super().compile(source, target, out, options)
        except CompileError as error:
            raise ValueError("invalid literal for int(): 'batch'") from error


@breaks("test_artifacts::test_paths_may_hold_spaces_and_letters_of_any_language")
class ReadsAsciiPaths(Backend):
    def compile(self, source, target, out, options):
        if not str(out).isascii():
            raise CompileError(f"cannot write {out}")
        return super().compile(source, target, out, options)


@breaks("test_artifacts::test_a_lone_onnx_file_with_its_weights_inside_compiles")
class WantsExternalWeights(Backend):
    def compile(self, source, target, out, options):
        if not (source.path / "weights.data").exists():
            raise CompileError("no weights.data beside the graph")
        return super().compile(source, target, out, options)
