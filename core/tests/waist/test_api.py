import attrs
import isthmus
import pytest
from isthmus import api
from isthmus.errors import CompileError, InputError, UnavailableError, UnsupportedError
from isthmus.hookspecs import hookimpl
from isthmus.registry import Registry


@attrs.frozen
class CompileOptions:
    level: int = attrs.field(default=1, metadata={"help": "effort"})


@pytest.fixture
def backend(fake_backend, monkeypatch):
    """The fake backend, and no other, is installed."""
    registry = Registry("no.such.group")

    class Plugin:
        @hookimpl
        def isthmus_backends(self):
            return [fake_backend]

    registry.register(Plugin())
    monkeypatch.setattr(api, "registry", lambda: registry)
    return fake_backend


def test_compiling_and_opening_go_the_whole_way(backend, graphs, tmp_path):
    artifact = isthmus.compile("fake", graphs.path, tmp_path / "out")
    assert artifact == isthmus.Artifact.open(tmp_path / "out")
    assert artifact.manifest.target == "any"
    assert artifact.manifest.graphs_sha256 == graphs.digest()
    with isthmus.open_device("fake") as device, device.load(artifact) as program:
        assert list(program.entries) == ["add"]


def test_a_target_is_recorded_as_the_plugin_spells_it(backend, graphs, tmp_path):
    assert isthmus.compile("fake", graphs, tmp_path / "out", target="ANY").manifest.target == "any"


@pytest.mark.parametrize("source", [str, lambda p: p, isthmus.GraphSet.open])
def test_a_graph_set_comes_in_any_form(backend, graphs, tmp_path, source):
    isthmus.compile("fake", source(graphs.path), tmp_path / "out")


def test_options_are_parsed_and_recorded(backend, graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(type(backend), "compile_options", CompileOptions)
    made = isthmus.compile("fake", graphs, tmp_path / "out", options={"level": "3"})
    assert made.manifest.options == {"level": "3"}
    with pytest.raises(InputError, match="compile option of fake"):
        isthmus.compile("fake", graphs, tmp_path / "out2", options={"levle": "3"})
    with pytest.raises(InputError, match="device option of fake"):
        isthmus.open_device("fake", options={"x": 1})


def test_an_existing_place_is_left_as_it_is(backend, graphs, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(InputError, match="already exists"):
        isthmus.compile("fake", graphs, tmp_path / "out")
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("error", [CompileError("no"), RuntimeError("a bug of the plugin"), KeyboardInterrupt()])
def test_a_failed_compile_leaves_nothing(backend, graphs, tmp_path, monkeypatch, error):
    def compile(source, target, out, options):
        (out / "half").write_text("x")
        raise error

    monkeypatch.setattr(backend, "compile", compile)
    before = set(tmp_path.iterdir())
    with pytest.raises(type(error)):
        isthmus.compile("fake", graphs, tmp_path / "out")
    assert set(tmp_path.iterdir()) == before


def test_what_a_compiler_says_must_be_writable_or_nothing_is_written(
    backend, graphs, tmp_path, monkeypatch, make_report
):
    from isthmus.types import Tolerance

    monkeypatch.setattr(backend, "compile", lambda *_: make_report(tolerance=Tolerance(float("inf"), 0)))
    with pytest.raises(ValueError, match="JSON"):
        isthmus.compile("fake", graphs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_names_are_refused(backend, graphs, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no backend 'nope'"):
        isthmus.compile("nope", graphs, tmp_path / "out")
    with pytest.raises(InputError, match="no device '7'; it has: 0"):
        isthmus.open_device("fake:7")

    def dialect(target):
        if target != "any":
            raise InputError(f"no target {target}")
        return isthmus.types.CANONICAL

    monkeypatch.setattr(backend, "dialect", dialect)
    with pytest.raises(InputError, match="no target mars"):
        isthmus.compile("fake", graphs, tmp_path / "out", target="mars")


def test_a_backend_without_compiler_or_device_says_so(backend, graphs, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "targets", lambda: ())
    with pytest.raises(UnsupportedError, match="no compiler"):
        isthmus.compile("fake", graphs, tmp_path / "out")
    monkeypatch.setattr(backend, "devices", lambda: ())
    with pytest.raises(UnsupportedError, match="no device"):
        isthmus.open_device("fake")

    def gone():
        raise UnavailableError("no driver", fix="install it")

    monkeypatch.setattr(backend, "devices", gone)
    with pytest.raises(UnavailableError, match="install it"):
        isthmus.open_device("fake")


@pytest.mark.parametrize("module", ["types", "errors", "spi", "api", "artifact", "graphset", "registry", "options"])
def test_every_public_name_of_the_waist_is_documented(module):
    import importlib
    import inspect

    waist = importlib.import_module(f"isthmus.{module}")
    assert waist.__doc__
    for name, value in vars(waist).items():
        mine = getattr(value, "__module__", None) == waist.__name__ and not name.startswith("_")
        if mine and (inspect.isclass(value) or inspect.isfunction(value)):
            assert value.__doc__, name
            for part, member in vars(value).items() if inspect.isclass(value) else ():
                if inspect.isfunction(member) and not part.startswith("_"):
                    assert member.__doc__, f"{name}.{part}"


def test_all_that_is_exported_exists():
    assert all(hasattr(isthmus, name) for name in isthmus.__all__)
    assert isthmus.__all__ == sorted(isthmus.__all__)
