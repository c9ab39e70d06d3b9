"""Bindings: fixed once, run often, several at a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from isthmus import Artifact, Capability, Device
from isthmus.conformance.cases import Case
from isthmus.conformance.cases.language import MASKED
from isthmus.conformance.trays import POISON, Tray, bench, check, same
from isthmus.errors import InputError, UnsupportedError

SIMPLE = pytest.mark.parametrize("case", ["matmul_bias"], indirect=True)
PAIR = pytest.mark.parametrize("case", ["prefill_and_decode"], indirect=True)


@SIMPLE
def test_binding_runs_nothing(device: Device, artifact: Artifact, case: Case) -> None:
    spec = artifact.entries["main"]
    inputs, outputs = Tray(device, spec.inputs), Tray(device, spec.outputs)
    with device.load(artifact) as program, inputs.buffer, outputs.buffer:
        inputs.put(case.inputs("main", 1))
        with program.bind("main", inputs.views, outputs.views):
            pass
        for array in outputs.get().values():
            assert set(array.tobytes()) == {POISON}


@SIMPLE
def test_rebinding_takes_the_new_buffers(device: Device, artifact: Artifact, case: Case) -> None:
    tolerance = artifact.manifest.tolerance
    with device.load(artifact) as program, bench(program, "main") as bound:
        first = case.inputs("main", 1)
        bound.run(first)
        spec = program.entry("main")
        inputs, outputs = Tray(device, spec.inputs), Tray(device, spec.outputs)
        with inputs.buffer, outputs.buffer:
            second = case.inputs("main", 2)
            inputs.put(second)
            bound.binding.rebind(inputs=inputs.views)
            bound.binding.execute()
            check(case, "main", second, bound.outputs.get(), tolerance)
            third = case.inputs("main", 3)
            inputs.put(third)
            bound.binding.rebind(outputs=outputs.views)
            bound.binding.execute()
            check(case, "main", third, outputs.get(), tolerance)
            check(case, "main", second, bound.outputs.get(), tolerance)
            assert same(bound.inputs.get(), first)
            bound.binding.rebind(bound.inputs.views, bound.outputs.views)
        check(case, "main", first, bound.run(first), tolerance)


@SIMPLE
def test_one_program_has_many_bindings(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program, bench(program, "main") as one, bench(program, "main") as two:
        first, second = case.inputs("main", 1), case.inputs("main", 2)
        one.inputs.put(first)
        two.inputs.put(second)
        one.binding.execute()
        two.binding.execute()
        check(case, "main", first, one.outputs.get(), artifact.manifest.tolerance)
        check(case, "main", second, two.outputs.get(), artifact.manifest.tolerance)


@SIMPLE
def test_closing_one_binding_leaves_the_others(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program, bench(program, "main") as one:
        with bench(program, "main") as two:
            two.run(case.inputs("main", 2))
        inputs = case.inputs("main", 1)
        check(case, "main", inputs, one.run(inputs), artifact.manifest.tolerance)


@PAIR
def test_entries_take_turns(device: Device, artifact: Artifact, case: Case) -> None:
    tolerance = artifact.manifest.tolerance
    with (
        device.load(artifact) as program,
        bench(program, "prefill") as prefill,
        bench(program, "decode") as decode,
    ):
        for seed in (1, 2):
            for bound in (prefill, decode, decode):
                inputs = case.inputs(bound.entry, seed)
                check(case, bound.entry, inputs, bound.run(inputs), tolerance)


@PAIR
def test_a_result_stays_while_another_entry_runs(device: Device, artifact: Artifact, case: Case) -> None:
    with (
        device.load(artifact) as program,
        bench(program, "prefill") as prefill,
        bench(program, "decode") as decode,
    ):
        before = prefill.run(case.inputs("prefill", 1))
        decode.run(case.inputs("decode", 1))
        assert same(prefill.outputs.get(), before)


@pytest.mark.parametrize("case", ["broadcast"], indirect=True)
def test_results_are_on_the_device_when_execute_returns(device: Device, artifact: Artifact, case: Case) -> None:
    """Another run takes them as its input, and a copy as its source, before the host has read anything."""
    with device.load(artifact) as program, bench(program, "main") as first, bench(program, "main") as second:
        inputs, others = case.inputs("main", 1), case.inputs("main", 2)
        first.inputs.put(inputs)
        second.inputs.put(others)
        second.binding.rebind(inputs={"a": first.outputs.views["y"]})
        first.binding.execute()
        second.binding.execute()
        with device.allocate(second.outputs.views["y"].size) as copied:
            copied.view().copy_from(second.outputs.views["y"])
            got = np.frombuffer(copied.read(), np.float32).reshape(case.entries["main"].outputs["y"])
        chained = {**others, "a": first.outputs.get()["y"]}
        check(case, "main", inputs, first.outputs.get(), artifact.manifest.tolerance)
        check(case, "main", chained, {"y": got}, artifact.manifest.tolerance)


@pytest.mark.parametrize("case", ["attention"], indirect=True)
def test_inputs_may_share_memory(device: Device, artifact: Artifact, case: Case) -> None:
    inputs = case.inputs("main", 1)
    inputs["k"] = inputs["v"] = inputs["q"]
    with device.load(artifact) as program, bench(program, "main") as bound:
        bound.inputs.put(inputs)
        shared = bound.inputs.views["q"]
        bound.binding.rebind(inputs={"k": shared, "v": shared})
        bound.inputs.views["k"].write(np.full_like(inputs["q"], np.nan))
        bound.inputs.views["v"].write(np.full_like(inputs["q"], np.nan))
        bound.binding.execute()
        check(case, "main", inputs, bound.outputs.get(), artifact.manifest.tolerance)


@PAIR
def test_everything_may_live_in_one_buffer(device: Device, artifact: Artifact, case: Case) -> None:
    """Inputs and outputs of one entry side by side, as an arena lays them out."""
    spec = artifact.entries["prefill"]
    inputs = case.inputs("prefill", 1)
    tray = Tray(device, (*spec.outputs, *spec.inputs))
    with device.load(artifact) as program, tray.buffer:
        given = {s.name: tray.views[s.name] for s in spec.inputs}
        for name, view in given.items():
            view.write(inputs[name])
        program.execute("prefill", given, {s.name: tray.views[s.name] for s in spec.outputs})
        found = tray.get()
        check(case, "prefill", inputs, found, artifact.manifest.tolerance)
        assert same({name: found[name] for name in given}, inputs)
        assert tray.surroundings_are_untouched()


@SIMPLE
def test_a_program_runs_in_another_thread_than_it_was_loaded_in(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program, bench(program, "main") as bound:
        inputs = case.inputs("main", 1)
        found: list[dict[str, object]] = []
        thread = threading.Thread(target=lambda: found.append(dict(bound.run(inputs))))
        thread.start()
        thread.join()
        assert found, "the thread failed"
        check(case, "main", inputs, found[0], artifact.manifest.tolerance)  # type: ignore[arg-type]


@PAIR
def test_new_keys_go_straight_into_the_cache(device: Device, artifact: Artifact, case: Case) -> None:
    """The slot being written is masked; what is read there meanwhile is finite and does not matter."""
    length = 4
    inputs = case.inputs("decode", 1)
    past = inputs["past_key"]
    slot = past.nbytes // past.shape[1]
    inputs["mask"][:] = MASKED
    inputs["mask"][..., :length] = inputs["mask"][..., -1] = 0.0
    with device.load(artifact) as program, device.allocate(past.nbytes) as cache:
        cache.write(past)
        spec = program.entry("decode")
        given, taken = Tray(device, spec.inputs), Tray(device, spec.outputs)
        with given.buffer, taken.buffer:
            given.put(inputs)
            bind = (
                {**given.views, "past_key": cache.view()},
                {**taken.views, "new_key": cache[length * slot : (length + 1) * slot]},
            )
            if Capability.ALIASED_IO not in device.capabilities:
                with pytest.raises(InputError, match="overlaps"):
                    program.bind("decode", *bind).close()
                return
            with program.bind("decode", *bind) as binding:
                binding.execute()
            got = taken.get()
        now = np.frombuffer(cache.read(), past.dtype).reshape(past.shape)
        got["new_key"] = now[:, length : length + 1]
        check(case, "decode", inputs, got, artifact.manifest.tolerance)
        others = np.arange(past.shape[1]) != length
        assert now[:, others].tobytes() == past[:, others].tobytes(), "only the one slot changed"


@SIMPLE
def test_a_profile_is_one_run_with_its_times(device: Device, artifact: Artifact, case: Case) -> None:
    with device.load(artifact) as program, bench(program, "main") as bound:
        if Capability.PROFILE not in device.capabilities:
            with pytest.raises(UnsupportedError):
                bound.binding.profile()
            return
        inputs = case.inputs("main", 1)
        bound.inputs.put(inputs)
        events = bound.binding.profile()
        assert events
        for event in events:
            assert event.name
            assert event.unit
            assert event.value >= 0
        assert any(event.value > 0 for event in events)
        check(case, "main", inputs, bound.outputs.get(), artifact.manifest.tolerance)
        check(case, "main", inputs, bound.run(inputs), artifact.manifest.tolerance)
