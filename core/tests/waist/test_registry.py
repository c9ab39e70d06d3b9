"""Discovery is tested for real: distributions on ``sys.path``, read by importlib.metadata, imported, registered."""

import sys
import textwrap

import pytest
from isthmus.errors import IncompatibleError, InputError, UnavailableError
from isthmus.hookspecs import hookimpl
from isthmus.registry import GROUP, Registry

GOOD = """
from isthmus import hookimpl
from isthmus.spi import Backend
from isthmus.types import BackendInfo

class Good(Backend):
    info = BackendInfo({name!r}, {spi}, "1.0")
    def devices(self): return ()
    def open(self, device, options): raise NotImplementedError

@hookimpl
def {hook}():
    yield {what}
"""


def good(name, *, spi=(1, 0), hook="isthmus_backends", what="Good()"):
    return GOOD.format(name=name, spi=spi, hook=hook, what=what)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with one module on ``sys.path``."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name, source, *, entry=None, text=None, module=None):
        module = module or f"plugin_{name.replace('-', '_')}"
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(text or f"[{GROUP}]\n{entry or name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def works(registry, name):
    return registry.backend(name).info.name == name


def test_installed_plugins_are_found_by_name_and_imported_when_asked(install):
    install("one", good("one"))
    install("two", "raise RuntimeError('imported')")
    registry = Registry()
    assert {"one", "two"} <= set(registry.names())
    assert "plugin_one" not in sys.modules
    assert works(registry, "one")
    assert registry.backend("one") is registry.backend("one")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("import no_such_library", UnavailableError, "No module named 'no_such_library'"),
        ("def f(:", UnavailableError, "SyntaxError"),
        ("import sys; sys.exit('bye')", UnavailableError, "SystemExit: bye"),
        (good("broken", spi=(2, 0)), IncompatibleError, r"written for SPI \(2, 0\), this is SPI \(1, "),
        (good("broken", spi=(1, 99)), IncompatibleError, r"written for SPI \(1, 99\)"),
        (good("broken", spi="1"), IncompatibleError, "written for SPI"),
        (good("broken", spi=(1,)), IncompatibleError, "written for SPI"),
        (good("broken", hook="isthmus_backend"), IncompatibleError, "does not fit the hooks"),
        (good("broken").replace("def isthmus_backends()", "def isthmus_backends(config)"), IncompatibleError, "hooks"),
        (good("broken", what="object()"), IncompatibleError, "not an isthmus.spi.Backend"),
        (good("broken", what="Good"), IncompatibleError, "not an isthmus.spi.Backend"),
        (good("broken", what="1 / 0"), UnavailableError, "ZeroDivisionError"),
        (
            good("broken").replace('    info = BackendInfo("broken"', "    nope = (").replace("info =", "nope ="),
            IncompatibleError,
            "its info",
        ),
        (good("other"), IncompatibleError, "registers for 'broken' and yields other"),
        (good("broken").replace("@hookimpl", ""), IncompatibleError, "yields nothing"),
        ("", IncompatibleError, "yields nothing"),
    ],
)
def test_a_broken_plugin_says_why_and_disturbs_no_other(install, source, error, words):
    install("broken", source)
    install("fine", good("fine"))
    registry = Registry()
    with pytest.raises(error, match=words) as caught:
        registry.backend("broken")
    assert caught.value.fix
    assert type(registry.problems()["broken"]) is error
    assert "broken" in registry.names()
    assert works(registry, "fine")
    assert "fine" not in registry.problems()


@pytest.mark.parametrize("text", [f"[{GROUP}]\nbroken\n", f"[{GROUP}\nbroken = x\n", f"[{GROUP}]\n= x\n[{GROUP}]\nb\n"])
def test_an_unreadable_list_of_entry_points_disturbs_no_other(install, text):
    install("broken-dist", "", text=text)
    install("fine", good("fine"))
    registry = Registry()
    assert works(registry, "fine")
    problems = registry.problems()
    assert "fine" not in problems
    if "broken-dist" in problems:
        assert "entry points of broken-dist cannot be read" in str(problems["broken-dist"])


def test_a_list_without_values_is_a_problem_with_a_name(install):
    install("broken-dist", "", text=f"[{GROUP}]\nbroken\n")
    assert "cannot be read" in str(Registry().problems()["broken-dist"])


def test_two_plugins_of_one_name_are_told_apart_by_neither(install):
    install("first", good("same"), entry="same")
    install("second", good("same"), entry="same")
    with pytest.raises(IncompatibleError, match="2 plugins claim backend 'same'") as caught:
        Registry().backend("same")
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)


def test_a_plugin_cannot_take_another_s_name(install):
    install("honest", good("honest"))
    install(
        "thief",
        good("thief") + "    other = Good()\n    other.info = BackendInfo('honest', (1, 0), '6.6')\n    yield other\n",
    )
    registry = Registry()
    assert works(registry, "thief")
    assert registry.backend("honest").info.plugin_version == "1.0"


def test_one_plugin_may_bring_several_backends(install):
    source = (
        good("left") + "    other = Good()\n    other.info = BackendInfo('right', (1, 0), '1.0')\n    yield other\n"
    )
    install("pair", source, text=f"[{GROUP}]\nleft = plugin_pair\nright = plugin_pair\n")
    registry = Registry()
    assert works(registry, "right")
    assert works(registry, "left")


def test_an_unknown_backend_is_refused_with_those_there_are(install):
    install("fine", good("fine"))
    with pytest.raises(InputError, match=r"installed: .*fine"):
        Registry().backend("nope")


def test_plugins_are_registered_by_hand_for_notebooks(fake_backend):
    class Plugin:
        @hookimpl
        def isthmus_backends(self):
            return [fake_backend]

    registry = Registry("no.such.group")
    registry.register(Plugin())
    assert registry.names() == ["fake"]
    assert registry.backend("fake") is fake_backend
    with pytest.raises(IncompatibleError, match="there already"):
        registry.register(Plugin())


def test_a_plugin_of_which_one_backend_is_bad_registers_none(fake_backend):
    class Plugin:
        @hookimpl
        def isthmus_backends(self):
            return [fake_backend, object()]

    registry = Registry("no.such.group")
    with pytest.raises(IncompatibleError):
        registry.register(Plugin())
    assert registry.names() == []
