"""The progress file: atomic, safe under two kernels, movable, and never a reason to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course_utils.exercises import progress, registry
from course_utils.exercises.registry import Exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Check, Outcome
from course_utils.lessons import LESSONS
from course_utils.paths import ROOT

MISS = Check("a", False)


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "my progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    monkeypatch.setattr(progress, "_in_memory", {})
    return path


def passed(name: str) -> Outcome:
    return Outcome(name, PASSED, ("a",))


def wrong(name: str) -> Outcome:
    return Outcome(name, WRONG, (), MISS)


def stored(path: Path) -> dict[str, str]:
    return json.loads(path.read_text(encoding="utf-8"))["exercises"]


def test_what_is_done_stays_done(file):
    assert [progress.record(outcome) for outcome in (wrong("t.a"), passed("t.a"), wrong("t.a"))] == ["", "", ""]
    assert stored(file) == {"t.a": "done"}


def test_an_attempt_that_failed_is_tried(file):
    progress.record(wrong("t.a"))
    assert progress.states() == {"t.a": "tried"}


def test_a_blank_leaves_no_trace(file):
    assert progress.record(Outcome("t.a", UNTRIED)) == ""
    assert not file.exists()


def test_the_file_is_written_only_when_something_changes(file):
    progress.record(passed("t.a"))
    before = file.stat().st_mtime_ns
    progress.record(passed("t.a"))
    assert file.stat().st_mtime_ns == before


def test_the_file_lies_in_the_workspace_unless_it_is_moved(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "mine"))
    assert progress.progress_path() == tmp_path / "mine" / "progress.json"


def test_a_missing_folder_is_made(tmp_path, monkeypatch):
    path = tmp_path / "not" / "yet" / "progress.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(path))
    assert progress.record(passed("t.a")) == ""
    assert stored(path) == {"t.a": "done"}


@pytest.mark.parametrize("word", ["off", "OFF", " off "])
def test_off_keeps_nothing(tmp_path, monkeypatch, word):
    monkeypatch.setenv("COURSE_PROGRESS", word)
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path))
    assert progress.record(passed("t.a")) == ""
    assert progress.states() == {}
    assert list(tmp_path.iterdir()) == []


DAMAGED = {
    "empty": b"",
    "half": b'{"version": 1, "exercises": {"t.a": "do',
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"3",
    "no exercises": b'{"version": 1}',
    "exercises is a list": b'{"exercises": ["t.a"]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_put_aside_and_never_overwritten(file, content):
    file.write_bytes(content)
    assert progress.record(passed("t.b")) == ""
    assert stored(file) == {"t.b": "done"}
    (aside,) = file.parent.glob("my progress.damaged-*.json")
    assert aside.read_bytes() == content


def test_states_of_an_unknown_kind_are_dropped_and_the_rest_is_kept(file):
    file.write_text(json.dumps({"exercises": {"t.a": "done", "t.b": "perfect", "t.c": 7}}), encoding="utf-8")
    assert progress.states() == {"t.a": "done"}


def test_a_folder_in_the_files_place_is_left_alone_and_no_crash(file):
    file.mkdir()
    (file / "keep").write_text("x")
    assert progress.record(passed("t.a")).startswith("Progress is kept in this kernel only")
    assert progress.states() == {"t.a": "done"}
    assert (file / "keep").exists()


def test_a_file_that_another_program_holds_is_never_overwritten(file, monkeypatch):
    """Windows refuses to open a file for a moment while it is being replaced."""
    progress.record(passed("t.a"))

    def refuse(*_args: object, **_kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert progress.record(passed("t.b"))
        assert progress.states() == {"t.b": "done"}
    progress.record(passed("t.c"))
    assert stored(file) == {"t.a": "done", "t.b": "done", "t.c": "done"}


@pytest.fixture
def unwritable(file, monkeypatch):
    """Stands for a read-only disk: root, who runs tests in containers, may write to a read-only folder."""

    def refuse(*_args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(progress, "write_text", refuse)
    return file


def test_what_cannot_be_written_is_kept_in_this_kernel_and_said(unwritable):
    note = progress.record(passed("t.a"))
    assert note.startswith("Progress is kept in this kernel only:")
    assert str(unwritable) in note
    assert progress.states() == {"t.a": "done"}
    progress.record(wrong("t.a"))
    assert progress.states() == {"t.a": "done"}


def test_what_was_kept_in_memory_reaches_the_file_once_it_can_be_written(unwritable, monkeypatch):
    progress.record(passed("t.a"))
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_PROGRESS", str(unwritable))
    monkeypatch.setattr(progress, "_in_memory", {"t.a": "done"})
    progress.record(passed("t.b"))
    assert stored(unwritable) == {"t.a": "done", "t.b": "done"}


def test_the_same_exercise_again_also_carries_it_to_the_file(unwritable, monkeypatch):
    progress.record(passed("t.a"))
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_PROGRESS", str(unwritable))
    monkeypatch.setattr(progress, "_in_memory", {"t.a": "done"})
    progress.record(wrong("t.a"))
    assert stored(unwritable) == {"t.a": "done"}


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_folder_is_no_crash(file):
    file.parent.chmod(0o555)
    try:
        assert progress.record(passed("t.a"))
    finally:
        file.parent.chmod(0o755)


def test_a_lock_that_somebody_holds_for_ever_costs_a_note_and_no_hang(file, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(progress, "LOCK_TIMEOUT_S", 0.1)
    with FileLock(file.with_name(file.name + ".lock")):
        assert progress.record(passed("t.a")).startswith("Progress is kept in this kernel only")


WRITER = """
import sys, time
from course_utils.exercises.progress import record
from course_utils.exercises.verdicts import PASSED, Outcome
name, start = sys.argv[1], float(sys.argv[2])
time.sleep(max(0.0, start - time.time()))
for number in range(25):
    assert record(Outcome(f"{name}.{number}", PASSED, ("a",))) == ""
"""


def test_two_kernels_that_write_at_once_lose_nothing(file):
    start = time.time() + 4  # both have imported PyTorch by then
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COURSE_PROGRESS": str(file), "OMP_NUM_THREADS": "1"}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, name, str(start)], env=env, stderr=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    endings = [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers]
    assert [code for _, code in endings] == [0, 0], endings
    assert stored(file) == {f"{name}.{number}": "done" for name in ("one", "two") for number in range(25)}
    assert not list(file.parent.glob("*.tmp"))


def test_summary_has_the_shape_that_other_tools_read(file, monkeypatch):
    exercises = (
        Exercise(id="start.a", title="A", check=lambda *_: iter(()), hints=("1", "2", "3")),
        Exercise(id="start.b", title="B", check=lambda *_: iter(()), hints=("1", "2", "3"), kind="clinic"),
    )
    monkeypatch.setattr(registry, "exercises_of", lambda lesson: exercises if lesson.name == "start" else ())
    progress.record(passed("start.a"))
    assert progress.summary()[0] == {
        "lesson": "00_start",
        "exercises": [{"id": "start.a", "title": "A", "state": "done"}],
        "clinic": [{"id": "start.b", "title": "B", "state": "todo"}],
    }
    assert [row["lesson"] for row in progress.summary()] == [lesson.stem for lesson in LESSONS]
