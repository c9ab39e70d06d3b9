"""``isthmus plan`` and ``isthmus memory`` from the command line, and plans against what the devices take."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import isthmus
import pytest
from isthmus.errors import OutOfMemoryError
from isthmus.memory import MemoryBudget
from isthmus.memory.plan import Use, make_plan, of_artifact
from isthmus.models.export import export
from isthmus.pipeline import Pipeline
from isthmus.registry import registry
from isthmus_tiny_internvl import CHECKPOINT

RULES = registry().backend("cpu").memory_rules


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> isthmus.GraphSet:
    return export(CHECKPOINT, tmp_path_factory.mktemp("set") / "graphs")


@pytest.fixture(scope="module")
def artifact(graphs: isthmus.GraphSet) -> isthmus.Artifact:
    return isthmus.compile("cpu", graphs, graphs.path.parent / "artifact")


def test_a_configuration_alone_is_planned_like_its_graphs(cli: Any, graphs: isthmus.GraphSet, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):  # the second says into how many tiles pictures are cut
        shutil.copy(CHECKPOINT / name, tmp_path)
    alone, built = cli("plan", tmp_path, "--json"), cli("plan", graphs.path, "--json")
    assert (alone.code, built.code) == (0, 0)
    assert (alone.json["source"], built.json["source"]) == ("checkpoint", "graph set")
    assert alone.json["books"] == built.json["books"]
    assert alone.json["run_peak"] == sum(alone.json["books"].values())


@pytest.mark.parametrize("backend", ["qnn_htp", "ascend"])
def test_other_vendors_are_planned_without_their_devices(cli: Any, backend: str) -> None:
    found = cli("plan", CHECKPOINT, "--backend", backend, "--json")
    assert found.code == 0, found.err
    assert found.json["books"]["copies"] > 0  # every entry has weights of its own
    assert found.json["free"] is None


def test_a_misfit_leaves_with_1_and_names_what_binds_and_what_would_fit(cli: Any) -> None:
    found = cli("plan", CHECKPOINT, "--budget", "9MB", "--json")
    assert found.code == 1
    assert (found.json["fits"], found.json["binding"]["source"]) == (False, "the budget")
    assert any(c["fits"] and c["run_peak"] <= 9_000_000 for c in found.json["changes"])
    shown = cli("plan", CHECKPOINT, "--budget", "9MB")
    assert shown.code == 1
    assert "DOES NOT FIT" in shown.out


def test_what_a_change_promises_holds_when_it_is_asked_for(cli: Any) -> None:
    found = cli("plan", CHECKPOINT, "--budget", "9MB", "--json").json["changes"]
    flags = [c for c in found if c["how"].startswith(("--parts", "--dtype", "--weights", "--kv", "--prefill"))]
    assert flags
    for change in flags:
        how = change["how"].removesuffix(" (what-if)").split()
        again = cli("plan", CHECKPOINT, "--budget", "9MB", *how, "--json")
        assert again.json["run_peak"] == change["run_peak"]
        assert again.json["fits"] == change["fits"]


def test_free_memory_can_be_stated_for_a_device_that_is_elsewhere(cli: Any) -> None:
    assert cli("plan", CHECKPOINT, "-b", "ascend", "--free", "64KiB").code == 1
    assert cli("plan", CHECKPOINT, "-b", "ascend", "--free", "1GiB").code == 0


def test_shapes_of_what_is_built_cannot_be_changed(cli: Any, graphs: isthmus.GraphSet) -> None:
    found = cli("plan", graphs.path, "--context", "64")
    assert found.code == 2
    assert "--context cannot change them" in found.err


@pytest.mark.parametrize("flags", [["--budget", "lots"], ["--kv", "int3"], ["--weights", "int3"], ["--contexts", "0"]])
def test_flags_that_mean_nothing_are_refused(cli: Any, flags: list[str]) -> None:
    assert cli("plan", CHECKPOINT, *flags).code == 2


def test_traffic_becomes_contexts_and_bytes(cli: Any, tmp_path: Path) -> None:
    log = tmp_path / "lengths.jsonl"
    log.write_text("\n".join(["60"] * 8 + ["250"] * 2))
    found = cli("plan", CHECKPOINT, "--traffic", log, "--buckets", "2", "--budget", "1GiB", "--json").json
    traffic, token = found["traffic"], found["kv_bytes_per_token"]
    assert traffic["contexts"] == "64,256"
    assert traffic["mean_slots"] == pytest.approx((64 * 8 + 256 * 2) / 10)
    assert traffic["kv_bytes_saved_mean"] == pytest.approx((256 - traffic["mean_slots"]) * token)
    assert traffic["at_once_mean"] > traffic["at_once_largest"] > 0


def test_the_plan_of_an_artifact_is_what_the_ledger_then_holds(artifact: isthmus.Artifact) -> None:
    plan = make_plan(of_artifact(artifact), Use(conversations=2, images=1), RULES)
    with isthmus.open_device("cpu") as device, Pipeline.load(device, artifact) as pipeline:
        chats = [pipeline.chat() for _ in range(2)]
        report = pipeline.memory()
        for chat in chats:
            chat.close()
    held = {name: book.peak for name, book in report.books.items() if book.peak}
    books = plan.books
    assert (held["kv"], held["io"]) == (books["kv"], books["io"])
    assert report.live == plan.run_peak
    assert [p.name for p in report.phases] == ["load", "chat", "chat"]


def test_a_pipeline_stays_within_a_budget_of_its_plan_and_not_of_a_byte_less(artifact: isthmus.Artifact) -> None:
    peak = make_plan(of_artifact(artifact), Use(), RULES).run_peak
    with isthmus.open_device("cpu") as device:
        device.memory.budget = MemoryBudget(peak)
        with Pipeline.load(device, artifact) as pipeline, pipeline.chat() as chat:
            chat.ask("Hello", max_new_tokens=2)
        assert device.memory.budget.peak == peak
        assert device.memory.budget.used == 0
        device.memory.budget = MemoryBudget(peak - 1)
        with Pipeline.load(device, artifact) as pipeline, pytest.raises(OutOfMemoryError, match="budget"):
            pipeline.chat()
        assert device.memory.live == 0


def test_memory_shows_books_phases_and_call_sites(cli: Any) -> None:
    found = cli("memory", "--repeat", "2", "--sites", "--watch", "--json")
    assert found.code == 0, found.err
    assert found.json["left"] == 0
    assert [p["name"] for p in found.json["phases"]] == ["load", *["chat", "answer"] * 2]
    assert [p["delta"] for p in found.json["phases"] if p["name"] == "answer"] == [0, 0]
    assert all("pipeline" in a["site"] for a in found.json["allocations"])
    assert "kv" in found.err


def test_memory_refuses_to_load_beyond_a_budget(cli: Any) -> None:
    found = cli("memory", "--budget", "1MiB", "--json")
    assert found.code == 1
    assert json.loads(found.out)["error"] == "OutOfMemoryError"
    assert "left of the budget" in found.err


def test_soak_says_whether_memory_grows(cli: Any) -> None:
    found = cli("bench", "--soak", "12", "--json")
    assert found.code == 0, found.err
    assert (found.json["requests"], found.json["left"], found.json["leaking"]) == (12, 0, False)
    assert found.json["trends"][0]["per_request"] == 0
