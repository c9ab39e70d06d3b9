"""What backends predict before compiling, against what they state afterwards and what a device then lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import isthmus
import pytest
from isthmus.memory.plan import Use, make_plan, of_artifact
from isthmus.memory.plan_model import Compiler, of_graphs
from isthmus.models.export import export
from isthmus.options import parse_options
from isthmus.pipeline import Pipeline
from isthmus.registry import registry
from isthmus.types import Scope
from isthmus_tiny_internvl import CHECKPOINT


def compiler(backend: str, **options: str) -> Compiler:
    plugin = registry().backend(backend)
    parsed: Any = parse_options(plugin.compile_options, options, "option")
    target = plugin.targets()[0]
    return Compiler(plugin.memory_rules, target, parsed, plugin.dialect(target))


def built(backend: str, folder: Path, **options: str) -> tuple[isthmus.GraphSet, isthmus.Artifact]:
    graphs = export(CHECKPOINT, folder / "graphs", dialect=compiler(backend).dialect)
    return graphs, isthmus.compile(backend, graphs, folder / "artifact", options=options)


@pytest.mark.parametrize("options", [{}, {"external_weight": "files"}])
def test_ascend_is_planned_as_its_device_is_then_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    monkeypatch.setenv("ISTHMUS_ASCEND_SIMULATOR", "1")
    graphs, artifact = built("ascend", tmp_path, **options)
    rules, use = registry().backend("ascend").memory_rules, Use(images=1)
    early = make_plan(of_graphs(graphs, compiler("ascend", **options)), use, rules)
    late = make_plan(of_artifact(artifact), use, rules)
    assert early.run_peak == pytest.approx(late.run_peak, rel=0.02)
    with isthmus.open_device("ascend") as device:
        before = device.memory_info().free
        with Pipeline.load(device, artifact) as pipeline, pipeline.chat() as chat:
            chat.ask("Hello", max_new_tokens=2)
            assert before - device.memory_info().free == late.run_peak == device.memory.live
        assert device.memory_info().free == before


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cpu_is_planned_as_its_compiler_states_it(tmp_path: Path, dtype: str) -> None:
    graphs = export(CHECKPOINT, tmp_path / "graphs", dtype=dtype)
    artifact = isthmus.compile("cpu", graphs, tmp_path / "artifact")
    need = of_graphs(graphs, compiler("cpu"))
    stated = artifact.manifest.memory
    assert need.memory.weights == pytest.approx(stated.weights, rel=0.03)
    # Of a model this small much is ONNX Runtime's own, more with the casts it adds for float16.
    assert need.memory.own_load == pytest.approx(stated.own_load, rel=0.2 if dtype == "float32" else 0.35)
    assert need.memory.caller_load < need.memory.own_load


def test_htp_counts_weights_once_only_if_entries_share_them(tmp_path: Path) -> None:
    graphs = export(CHECKPOINT, tmp_path / "graphs", dialect=compiler("qnn_htp").dialect)
    apart, shared = (
        of_graphs(graphs, compiler("qnn_htp")),
        of_graphs(graphs, compiler("qnn_htp", weight_sharing="true")),
    )
    assert len(apart.contexts) == 3
    assert shared.contexts.keys() == {"language model", "vision"}
    assert apart.distinct == pytest.approx(shared.memory.weights, rel=1e-3)
    assert apart.memory.weights - shared.memory.weights == pytest.approx(shared.contexts["language model"], rel=0.01)


@pytest.mark.parametrize("backend", ["cpu", "qnn_htp", "ascend"])
def test_every_limit_of_every_target_says_where_it_is_from(backend: str) -> None:
    plugin = registry().backend(backend)
    for target in plugin.targets():
        for limit in plugin.memory_rules.limits(target):
            assert limit.value > 0
            assert len(limit.source) > 10
            assert isinstance(limit.scope, Scope)


def test_an_hbm_chip_is_limited_by_its_memory_and_an_unknown_target_is_refused() -> None:
    rules = registry().backend("ascend").memory_rules
    (limit,) = rules.limits("Ascend910B4")
    assert (limit.scope, limit.value, limit.hard) == (Scope.DEVICE, 32 << 30, True)
    for backend in ("ascend", "qnn_htp"):
        with pytest.raises(isthmus.IsthmusError, match="no target"):
            registry().backend(backend).memory_rules.limits("toaster")
