import json
from contextlib import suppress

import attrs
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus import GraphSet
from isthmus.errors import IncompatibleError, InputError, IsthmusError


def edit(graphs, change):
    file = graphs.path / "graphset.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_a_graph_set_is_read_as_it_was_saved(graphs):
    assert GraphSet.open(graphs.path) == graphs


def test_a_lone_onnx_file_is_a_set_of_one(graphs):
    lone = GraphSet.open(graphs.path / "add.onnx")
    assert lone.graphs == {"main": "add.onnx"}
    assert lone.assets == ()
    assert len(lone.source_sha256) == 64


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(path="/etc"), "path"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d.pop("graphs"), "graphs"),
        (lambda d: d.update(graphs={}), "holds no graph"),
        (lambda d: d.update(graphs=["add.onnx"]), "damaged"),
        (lambda d: d.update(graphs={"../../x": "add.onnx"}), "entry name"),
        (lambda d: d.update(graphs={"add": "gone.onnx"}), "not there"),
        (lambda d: d.update(graphs={"add": "../add.onnx"}), "leaves"),
        (lambda d: d.update(graphs={"add": 5}), "damaged"),
        (lambda d: d.update(assets="vocab.txt"), "not a list"),
        (lambda d: d.update(assets=["vocab.txt", "vocab.txt"]), "twice"),
        (lambda d: d.update(assets=["/etc/passwd"]), "leaves"),
        (lambda d: d.update(assets=["a\0"]), "not a file name"),
        (lambda d: d.update(dialect=5), "dialect"),
    ],
)
def test_a_damaged_or_forged_set_is_refused(graphs, change, match):
    edit(graphs, change)
    with pytest.raises(InputError, match=match):
        GraphSet.open(graphs.path)


@pytest.mark.parametrize("format", [0, 2, True, "1", None, 1.0])
def test_another_format_is_named(graphs, format):
    edit(graphs, lambda d: d.update(format=format))
    with pytest.raises(IncompatibleError, match="not of format 1"):
        GraphSet.open(graphs.path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "\xff", "[" * 100_000, '{"format": 1, "format": 1}', '{"format": NaN}', "9" * 5000]
)
def test_what_is_not_json_is_refused(graphs, text):
    (graphs.path / "graphset.json").write_text(text, "latin-1")
    with pytest.raises((InputError, IncompatibleError)):
        GraphSet.open(graphs.path)


def test_other_places_are_refused_with_the_next_step(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    for place in (tmp_path, tmp_path / "gone", tmp_path / "notes.txt", tmp_path / "a\0b"):
        with pytest.raises(InputError) as caught:
            GraphSet.open(place)
        assert caught.value.fix or "null" in str(caught.value)


def test_the_digest_follows_every_file_and_no_other(graphs):
    before = graphs.digest()
    (graphs.path / "notes.txt").write_text("not of the set")
    assert graphs.digest() == before
    assert attrs.evolve(graphs, dialect="other").digest() != before
    for name, change in (("add.onnx", onnx.ModelProto(doc_string="x").SerializeToString()), ("vocab.txt", b"x")):
        (graphs.path / name).write_bytes((graphs.path / name).read_bytes() + change)
        assert graphs.digest() != before
        before = graphs.digest()


def test_the_digest_of_a_lone_file_follows_its_external_weights(tmp_path):
    weights = onnx.numpy_helper.from_array(np.ones(4096, np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["w", "w"], ["y"])],
        "g",
        [],
        [onnx.helper.make_tensor_value_info("y", 1, [4096])],
        [weights],
    )
    model = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph), model, save_as_external_data=True, location="w.bin", size_threshold=0)
    before = GraphSet.open(model).digest()
    (tmp_path / "w.bin").write_bytes(bytes(4096 * 4))
    assert GraphSet.open(model).digest() != before
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputError, match=r"w\.bin"):
        GraphSet.open(model).digest()


def test_the_digest_of_garbage_is_an_input_error(graphs):
    (graphs.path / "add.onnx").write_bytes(b"\xff" * 9)
    with pytest.raises(InputError, match="not an ONNX model"):
        GraphSet.open(graphs.path / "add.onnx").digest()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(key=st.sampled_from(["graphs", "assets", "model", "dialect", "source_sha256", "format", "path"]), value=JSON)
def test_only_our_errors_leave_a_forged_set(graphs, key, value):
    file = graphs.path / "graphset.json"
    graphs.save()
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, key: value}))
    with suppress(IsthmusError):
        GraphSet.open(graphs.path)
