"""Files are replaced whole or not at all, and folders can be moved."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from course_utils import paths, scratch
from course_utils.paths import ROOT, STALE_S, atomic_path, course_first, write_new, write_text


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (None, [ROOT]),
        ("", [ROOT]),
        (str(ROOT), [ROOT]),
        (f"a{os.pathsep}{ROOT}{os.pathsep}{os.pathsep}b", [ROOT, "a", "b"]),
    ],
)
def test_the_checkout_stands_first_and_once_on_the_path_of_modules(places, expected):
    assert course_first(places).split(os.pathsep) == [str(place) for place in expected]


def test_a_file_is_replaced_when_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_in_the_block_makes_no_new_file(tmp_path):
    with pytest.raises(ValueError), atomic_path(tmp_path / "a.txt"):  # noqa: PT011
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_missing_folders_are_made(tmp_path):
    write_text(tmp_path / "b" / "c" / "a.txt", "x")
    assert (tmp_path / "b" / "c" / "a.txt").read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_an_existing_files_permissions_are_kept(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("old")
    path.chmod(0o751)
    write_text(path, "new")
    assert mode(path) == 0o751


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_gets_the_permissions_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "ours.txt", "x")
        (tmp_path / "plain.txt").write_text("x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "ours.txt") == mode(tmp_path / "plain.txt")


def test_a_file_that_others_read_is_whole_at_every_moment(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old" * 1000)
    with path.open(encoding="utf-8") as reader:
        write_text(path, "new" * 1000)
        assert set(reader.read().split("old")) == {""}


def test_text_is_utf8_with_unix_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "é\n✓\n")
    assert (tmp_path / "a.txt").read_bytes() == "é\n✓\n".encode()


@pytest.mark.parametrize(
    ("variable", "function", "default"),
    [
        ("COURSE_WORKSPACE", paths.workspace, paths.ROOT / "workspace"),
        ("COURSE_DATA", paths.derived_data, paths.DATA / "derived"),
    ],
)
def test_folders_move_with_their_variable(monkeypatch, tmp_path, variable, function, default):
    monkeypatch.setenv(variable, str(tmp_path))
    assert function() == tmp_path
    monkeypatch.setenv(variable, "")
    assert function() == default
    monkeypatch.delenv(variable)
    assert function() == default


def test_the_root_is_the_folder_of_the_course():
    assert (paths.ROOT / "course_utils" / "paths.py").exists()
    assert {paths.NOTEBOOKS.parent, paths.DATA.parent} == {paths.ROOT}


def test_a_new_file_is_written_once_and_never_over_another(tmp_path):
    path = tmp_path / "new" / "a.txt"
    assert write_new(path, b"mine")
    assert not write_new(path, b"yours")
    assert path.read_bytes() == b"mine"
    assert os.listdir(path.parent) == ["a.txt"]
    write_text(tmp_path / "b.txt", "")
    assert mode(path) == mode(tmp_path / "b.txt")


@pytest.mark.parametrize("error", [FileExistsError, PermissionError])
def test_a_new_file_needs_no_hard_links_and_a_name_taken_meanwhile_is_respected(tmp_path, monkeypatch, error):
    def link(source: Path, target: Path) -> None:
        if error is FileExistsError:
            Path(target).write_bytes(b"theirs")
        raise error

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "a.txt"
    assert write_new(path, b"mine") == (error is PermissionError)
    assert path.read_bytes() == (b"mine" if error is PermissionError else b"theirs")
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_a_kill_left_half_written_goes_later_and_what_is_being_written_stays(tmp_path):
    for name, age_s in ((".a.txt.old.tmp", STALE_S + 60), (".a.txt.new.tmp", 60), (".b.txt.old.tmp", STALE_S + 60)):
        (tmp_path / name).write_text("half")
        then = time.time() - age_s
        os.utime(tmp_path / name, (then, then))
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(os.listdir(tmp_path)) == [".a.txt.new.tmp", ".b.txt.old.tmp", "a.txt"]


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_folder_that_a_kill_left_half_filled_goes_with_a_later_write_of_its_kind(tmp_path, monkeypatch, has_locks):
    if has_locks:
        pytest.importorskip("fcntl")
    else:  # then its age decides
        monkeypatch.setattr(scratch, "_lock", lambda folder, wait=False: None)
    for name, age_s in ((".made.old.tmp", STALE_S + 60), (".made.new.tmp", 60), (".other.old.tmp", STALE_S + 60)):
        (tmp_path / name / "part").mkdir(parents=True)
        then = time.time() - age_s
        os.utime(tmp_path / name, (then, then))
    with paths.atomic_folder(tmp_path / "made") as unfinished:
        (unfinished / "a.txt").write_text("whole")
        assert unfinished.name.startswith(".made.")
        assert unfinished.suffix == ".tmp"
    kept = [] if has_locks else [".made.new.tmp"]
    assert sorted(os.listdir(tmp_path)) == [*kept, ".other.old.tmp", "made"]


def test_a_folder_that_is_still_being_filled_is_left_alone_however_old_it_looks(tmp_path):
    with paths.atomic_folder(tmp_path / "made") as first:
        os.utime(first, (0, 0))
        with paths.atomic_folder(tmp_path / "made") as second:
            (second / "a.txt").write_text("second")
        assert first.is_dir()
        (tmp_path / "made" / "a.txt").unlink()
        (first / "a.txt").write_text("first")
    assert (tmp_path / "made" / "a.txt").read_text() == "first"
    assert os.listdir(tmp_path) == ["made"]


def test_files_from_a_clock_that_was_set_back_are_nobodys_business(tmp_path):
    (tmp_path / ".a.txt.x.tmp").write_text("half")
    os.utime(tmp_path / ".a.txt.x.tmp", (time.time() + 10 * STALE_S,) * 2)
    write_text(tmp_path / "a.txt", "whole")
    assert sorted(os.listdir(tmp_path)) == [".a.txt.x.tmp", "a.txt"]
