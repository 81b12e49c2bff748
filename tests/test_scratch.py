"""Short-lived folders: gone at the end, gone after a kill with the next one, and never taken from a living process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import scratch
from course_utils.paths import ROOT
from course_utils.scratch import scratch_folder, sweep

pytest.importorskip("fcntl", reason="folders have no locks here")
MAKES_ONE = """
import sys, time
from pathlib import Path
from course_utils.scratch import scratch_folder
with scratch_folder("kind", Path(sys.argv[1])) as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    {then}
"""


@pytest.fixture(autouse=True)
def first_start(monkeypatch):
    """A process looks once at each place; each test is a process of its own here."""
    monkeypatch.setattr(scratch, "_swept", set())


def start(place: Path, then: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE.format(then=then), str(place)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_goes_with_its_block_with_all_that_is_in_it(tmp_path):
    with scratch_folder("kind", tmp_path) as folder:
        assert folder.parent == tmp_path
        (folder / "a" / "b").mkdir(parents=True)
    with pytest.raises(ValueError, match="ours"), scratch_folder("kind", tmp_path):
        raise ValueError("ours")
    assert os.listdir(tmp_path) == []


def test_without_a_place_it_is_where_the_system_wants_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder("kind") as folder:
        assert folder.parent == tmp_path


def test_what_a_killed_process_left_goes_with_the_next_start_and_what_a_living_one_has_stays(tmp_path):
    dead, left = start(tmp_path, "time.sleep(600)")
    alive, kept = start(tmp_path, "time.sleep(600)")
    assert left.is_dir()
    end(dead)
    assert left.is_dir()
    try:
        with scratch_folder("another", tmp_path) as mine:
            assert sorted(tmp_path.iterdir()) == sorted([mine, kept])
            assert (kept / "file").read_text() == "x"
    finally:
        end(alive)
    sweep(tmp_path, lambda name: True)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_a_child_still_uses_is_not_taken_away(tmp_path):
    """A forked child, such as a worker that loads data, has the lock too."""
    process, kept = start(tmp_path, "import os; child = os.fork(); print(child, flush=True); time.sleep(600)")
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        sweep(tmp_path, lambda name: True)
        assert kept.is_dir()
    finally:
        os.kill(child, 9)
        process.communicate()


def test_only_folders_of_ours_are_swept(tmp_path):
    others = ["kind-material", "kind~short", "kind~UPPERCAS", "mine~12345678.txt", "~12345678"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "kind~abcdefgh").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kind~hgfedcba").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "kind~12345678").mkdir()
    with scratch_folder("kind", tmp_path) as mine:
        kept = {path.name for path in tmp_path.iterdir()} - {mine.name}
    assert kept == {*others, "kind~abcdefgh", "elsewhere", "kind~hgfedcba"}


def test_the_folders_of_others_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "kind~12345678").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    sweep(tmp_path, lambda name: True)
    assert (tmp_path / "kind~12345678").is_dir()


def test_where_there_are_no_locks_nothing_is_swept(tmp_path, monkeypatch):
    (tmp_path / "kind~12345678").mkdir()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with scratch_folder("kind", tmp_path) as folder:
        assert len(os.listdir(tmp_path)) == 2
    assert not folder.exists()
    assert os.listdir(tmp_path) == ["kind~12345678"]


def test_a_folder_that_is_swept_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    real, made = scratch._lock, []

    def lock(folder: Path, wait: bool = False) -> int | None:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return real(folder, wait)

    monkeypatch.setattr(scratch, "_lock", lock)
    with scratch_folder("kind", tmp_path) as folder:
        assert folder.is_dir()
    assert len(made) == 2


def test_nothing_else_in_the_course_makes_temporary_folders():
    """A folder of ``tempfile`` stays for ever when its process is killed."""
    makers = re.compile(r"\bmkdtemp\b|\bTemporaryDirectory\b")
    found = [
        str(path.relative_to(ROOT)) for path in (ROOT / "course_utils").rglob("*.py") if makers.search(path.read_text())
    ]
    assert found == [str(Path("course_utils/scratch.py"))]
