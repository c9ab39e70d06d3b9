import copy
import json
import shutil
from contextlib import suppress

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isthmus import Artifact
from isthmus.artifact import MANIFEST, manifest_as_json
from isthmus.errors import CompileError, IncompatibleError, InputError, IntegrityError, IsthmusError
from isthmus.types import DType, EntrySpec, Quantization, TensorSpec, Tolerance


def edit(artifact, change):
    file = artifact.path / MANIFEST
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def set_at(*path, value):
    def change(data):
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


def test_a_manifest_is_read_as_it_was_written(make_artifact):
    spec = TensorSpec("x", DType.UINT8, (2, 3), Quantization((0.5, 0.25), (1, 2), 0))
    made = make_artifact(entries={"e": EntrySpec((spec,), (spec,))}, notes=("a", "b"), placement={"n": "cpu"})
    assert Artifact.open(made.path) == made
    assert made.manifest.entries["e"].inputs == (spec,)
    assert json.dumps(manifest_as_json(made.manifest))


def test_assets_and_files_are_covered(artifact):
    assert set(artifact.manifest.files) == {"program.bin", "sub/weights.bin", "assets/vocab.txt"}
    assert artifact.nbytes == sum(artifact.file(n).stat().st_size for n in artifact.manifest.files)
    with pytest.raises(IntegrityError, match="has no file"):
        artifact.file("other")


@pytest.mark.parametrize("name", ["program.bin", "sub/weights.bin", "assets/vocab.txt"])
def test_every_byte_of_every_file_counts(artifact, name):
    file = artifact.path / name
    data = file.read_bytes()
    file.unlink()  # an asset may be a hard link to its source
    for at in {0, len(data) // 2, len(data) - 1}:
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(IntegrityError, match="has changed"):
            Artifact.open(artifact.path)
    for torn in (data[:-1], data + b"\0", b""):
        file.write_bytes(torn)
        with pytest.raises(IntegrityError, match=f"has {len(torn)} bytes, the manifest says {len(data)}"):
            Artifact.open(artifact.path)
    file.write_bytes(data)
    Artifact.open(artifact.path)
    file.unlink()
    with pytest.raises(IntegrityError, match=f"{name} is missing"):
        Artifact.open(artifact.path)
    file.mkdir()
    with pytest.raises(IntegrityError):
        Artifact.open(artifact.path)


@given(at=st.integers(0, 62), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_any_flipped_bit_is_found(artifact, at, bit):
    file = artifact.path / "program.bin"
    data = bytearray(b"program" * 9)
    data[at] ^= 1 << bit
    file.write_bytes(data)
    with pytest.raises(IntegrityError):
        Artifact.open(artifact.path)


def test_a_file_the_manifest_does_not_know_cannot_be_asked_for(artifact):
    (artifact.path / "extra.bin").write_bytes(b"not hashed")
    with pytest.raises(IntegrityError, match=r"extra\.bin"):
        Artifact.open(artifact.path).file("extra.bin")


def test_swapped_files_are_found(artifact):
    a, b = artifact.path / "program.bin", artifact.path / "sub" / "weights.bin"
    (artifact.path / "t").write_bytes(a.read_bytes())
    shutil.copy(b, a)
    shutil.copy(artifact.path / "t", b)
    with pytest.raises(IntegrityError):
        Artifact.open(artifact.path)


@pytest.mark.parametrize(
    "name", ["../program.bin", "/etc/passwd", "link", "a\0b", "", ".", "x" * 300, "assets/../../x"]
)
def test_a_path_that_leaves_the_directory_is_refused(artifact, tmp_path, name):
    (tmp_path / "program.bin").write_bytes(b"program" * 9)
    (artifact.path / "link").symlink_to(tmp_path / "program.bin")
    edit(artifact, lambda d: d["files"].update({name: d["files"]["program.bin"]}))
    with pytest.raises(IsthmusError):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("version", [2, 10**30])
def test_a_newer_manifest_says_who_wrote_it_and_what_to_do(artifact, version):
    edit(artifact, lambda d: d.update(format=version, isthmus="9.9", unheard_of=1))
    with pytest.raises(IncompatibleError, match=r"written by isthmus 9\.9") as caught:
        Artifact.open(artifact.path)
    assert "upgrade" in caught.value.fix


@pytest.mark.parametrize("version", [None, "1", 1.0, True, 0, -1, [1]])
def test_a_manifest_without_a_format_number_is_none(artifact, version):
    edit(artifact, lambda d: d.update(format=version))
    with pytest.raises(InputError, match="no format number"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("memory", "exact"), "false"),
        (("memory", "exact"), 0),
        (("memory", "weights"), "128"),
        (("memory", "weights"), 1.0),
        (("memory", "weights"), True),
        (("memory", "weights"), -1),
        (("memory", "workspace"), {"add": -1}),
        (("memory", "workspace"), []),
        (("memory", "notes"), "abc"),
        (("tolerance", "rtol"), "0.1"),
        (("tolerance", "rtol"), True),
        (("tolerance", "rtol"), 10**400),
        (("backend",), 5),
        (("backend",), None),
        (("reality",), "imagined"),
        (("reality",), []),
        (("notes",), {"a": 1}),
        (("options",), []),
        (("model",), "x"),
        (("toolchain",), {"a": 1}),
        (("entries", "add", "inputs"), "ab"),
        (("entries", "add", "inputs", 0, "shape"), "12"),
        (("entries", "add", "inputs", 0, "shape"), {"4": 1}),
        (("entries", "add", "inputs", 0, "shape"), [-4]),
        (("entries", "add", "inputs", 0, "shape"), [4.0]),
        (("entries", "add", "inputs", 0, "shape"), ["4"]),
        (("entries", "add", "inputs", 0, "dtype"), "float31"),
        (("entries", "add", "inputs", 0, "name"), "b"),
        (("entries", "add", "inputs", 0, "quantization"), {"scale": [], "zero_point": [], "axis": None}),
        (("entries", "add", "inputs", 0, "quantization"), {"scale": [1.0], "zero_point": [0], "axis": "0"}),
        (("entries", "add"), []),
        (("files",), []),
        (("files", "program.bin"), "abc"),
        (("files", "program.bin", "size"), "63"),
        (("files", "program.bin", "sha256"), 5),
    ],
)
def test_no_field_is_guessed_converted_or_dropped(artifact, path, value):
    edit(artifact, set_at(*path, value=value))
    with pytest.raises(InputError, match="is damaged"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("key", ["files", "memory", "backend", "placement"])
def test_no_field_may_be_missing(artifact, key):
    edit(artifact, lambda d: d.pop(key))
    with pytest.raises(InputError, match=key):
        Artifact.open(artifact.path)


def test_no_field_may_be_unknown(artifact):
    edit(artifact, lambda d: d["memory"].update(zeal=1))
    with pytest.raises(InputError, match="zeal"):
        Artifact.open(artifact.path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": ' + b"9" * 5000 + b"}",
        b'"' + b"\\ud800" + b'"',
    ],
)
def test_what_is_not_json_is_refused(artifact, text):
    (artifact.path / MANIFEST).write_bytes(text)
    with pytest.raises(InputError):
        Artifact.open(artifact.path)


@pytest.mark.parametrize("old", ['"rtol": 1e-06', '"exact": true'])
@pytest.mark.parametrize("new", ['"rtol": NaN', '"rtol": 1e999', '"rtol": Infinity', '"exact": true, "exact": true'])
def test_tricks_of_the_json_syntax_are_refused(artifact, old, new):
    file = artifact.path / MANIFEST
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError):
        Artifact.open(artifact.path)


def test_other_places_are_no_artifacts(tmp_path, graphs):
    for place in (tmp_path, tmp_path / "gone", graphs.path / "vocab.txt", graphs.path, tmp_path / "a\0b"):
        with pytest.raises(InputError):
            Artifact.open(place)


def test_a_directory_being_written_is_no_artifact(tmp_path, artifact):
    for count in range(len(artifact.manifest.files) + 1):
        half = tmp_path / f"half{count}"
        half.mkdir()
        for name in list(artifact.manifest.files)[:count]:
            (half / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(artifact.file(name), half / name)
        with pytest.raises(InputError, match="not an artifact"):
            Artifact.open(half)
        shutil.copy(artifact.path / MANIFEST, half)
        if count < len(artifact.manifest.files):
            with pytest.raises(IntegrityError, match="missing"):
                Artifact.open(half)


def test_a_moved_artifact_is_the_same(artifact, tmp_path):
    moved = artifact.path.rename(tmp_path / "elsewhere")
    assert Artifact.open(moved).manifest == artifact.manifest
    (tmp_path / "link").symlink_to(moved)
    assert Artifact.open(tmp_path / "link").manifest == artifact.manifest


def test_an_artifact_that_could_not_be_read_back_is_not_written(make_artifact):
    with pytest.raises((ValueError, TypeError)):
        make_artifact(tolerance=Tolerance(float("nan"), 0.0))


def test_a_backend_cannot_write_the_core_s_files(tmp_path, graphs, fake_backend, make_report):
    from isthmus.artifact import finish_artifact

    for name in (MANIFEST, "assets/vocab.txt"):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        with pytest.raises(CompileError, match=name):
            finish_artifact(out, graphs, make_report(), isthmus="0", backend="b", plugin="0", target="t", options={})


def holds(data, part):
    """Whether all of ``part`` is in ``data``, which may have defaults besides."""
    if isinstance(part, dict):
        return isinstance(data, dict) and all(key in data and holds(data[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(data, list) and len(data) == len(part) and all(map(holds, data, part))
    if type(data) is float and type(part) is int:
        return data == float(part)
    return type(data) is type(part) and data == part


def _spots(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from _spots(value, (*path, key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_only_our_errors_leave_a_forged_manifest(artifact, data):
    original = {"format": 1, **manifest_as_json(artifact.manifest)}
    forged = copy.deepcopy(json.loads(json.dumps(original)))
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([p for p in _spots(forged) if p]))
        place = forged
        for step in path:
            place = place[step]
        leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just([]) | st.just({})
        if data.draw(st.booleans()):
            place[last] = data.draw(leaf | st.lists(leaf, max_size=2) | st.dictionaries(st.text(), leaf, max_size=2))
        else:
            del place[last]
    text = json.dumps(forged)
    (artifact.path / MANIFEST).write_text(text[: data.draw(st.integers(len(text) - 2, len(text)))])
    with suppress(IsthmusError):
        found = Artifact.open(artifact.path)
        again = json.loads(json.dumps({"format": 1, **manifest_as_json(found.manifest)}))
        assert holds(again, forged), "what is accepted is taken literally"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_only_our_errors_leave_a_mangled_manifest(artifact, data):
    file = artifact.path / MANIFEST
    text = bytearray(json.dumps({"format": 1, **manifest_as_json(artifact.manifest)}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file.write_bytes(text)
    with suppress(IsthmusError):
        Artifact.open(artifact.path)


def test_evolving_keeps_an_artifact_usable(artifact):
    assert attrs.evolve(artifact, path=artifact.path).file("program.bin").is_file()
