import os
import stat

import pytest
from isthmus._files import inside, new_directory
from isthmus.errors import InputError


def test_a_new_directory_appears_whole(tmp_path):
    out = tmp_path / "a" / "b"
    with new_directory(out) as work:
        assert not out.exists()
        (work / "sub").mkdir()
        (work / "sub" / "file").write_text("x")
    assert (out / "sub" / "file").read_text() == "x"
    assert list(out.parent.iterdir()) == [out]


def test_a_failure_leaves_nothing(tmp_path):
    def fail(work):
        (work / "file").write_text("x")
        raise KeyError

    with pytest.raises(KeyError), new_directory(tmp_path / "out") as work:
        fail(work)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.write_text(""), lambda p: p.symlink_to("nowhere")])
def test_nothing_is_overwritten(tmp_path, make):
    make(tmp_path / "out")
    with pytest.raises(InputError, match="already exists"), new_directory(tmp_path / "out"):
        pass


def test_what_appears_meanwhile_is_left_alone(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match="cannot be finished"), new_directory(out):
        (out / "mine").mkdir(parents=True)
    assert [f.name for f in tmp_path.rglob("*")] == ["out", "mine"]


def test_a_place_that_cannot_be_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "out", tmp_path / ("x" * 300) / "out", tmp_path / "nul\0" / "out"):
        with pytest.raises(InputError), new_directory(bad):
            pass


@pytest.mark.skipif(os.name != "posix", reason="unavailable: this system has no umask")
def test_the_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with new_directory(tmp_path / "out"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "../x", "a/../../x", "a\0b", "x" * 5000, "\ud800", "out", "loop/x"]
)
def test_names_that_leave_the_directory_are_refused(tmp_path, name):
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(tmp_path)
    with pytest.raises(InputError):
        inside(root, name)


@pytest.mark.parametrize("name", ["a", "a/b", "a/../b", "link"])
def test_names_that_stay_are_taken(tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert inside(tmp_path, name) == tmp_path / name
