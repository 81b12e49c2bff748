"""The benchmark of grading: turns, ratios, and what happens where a peer can't take part. No time is asserted here."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
import pytest

from benchmarks import grading
from benchmarks.grading import Contestant, contest, submission
from course_utils.lessons import find_lesson
from course_utils.tools.grading.answers import script_of
from course_utils.tools.grading.submissions import lesson_of

ANSWERS = len(grading.ANSWERS)


def contestant(name: str, right: int | None = None, code: str = "") -> Contestant:
    def prepare(place: Path, count: int):
        assert place.is_dir()
        return [[sys.executable, "-S", "-c", code]], lambda: count * ANSWERS if right is None else right

    return Contestant(name, prepare)


def test_the_peers_get_the_same_cells_with_test_cells_beside_them():
    ours, theirs = submission(tests=False), submission(tests=True)
    for notebook in (ours, theirs):
        nbformat.validate(nbformat.from_dict(notebook))
    shared = [cell["source"] for cell in theirs["cells"] if not cell["id"].startswith("test")]
    assert shared == [cell["source"] for cell in ours["cells"]]
    tests = [cell for cell in theirs["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]
    assert len(tests) == ANSWERS
    assert all("evaluate(find_exercise(" in cell["source"] for cell in tests)


def test_our_grader_takes_it_for_the_lesson_and_finds_the_answers():
    notebook = submission(tests=False)
    assert find_lesson(lesson_of(notebook)).stem == grading.LESSON
    pieces = script_of(notebook, grading.LESSON).pieces
    assert {name for piece in pieces for name, _ in piece.answers} == set(grading.ANSWERS)


class NoPeer:
    def __init__(self, folder: Path, package: str) -> None:
        self.problem, self.env, self.nbgrader, self.otter = f"{package} can't be installed here: no.", {}, None, None


def test_a_peer_that_cannot_be_installed_is_a_sentence_and_no_goal(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "Environment", NoPeer)
    monkeypatch.setattr(grading, "_course", contestant("x").prepare)
    monkeypatch.setattr(grading, "_kernels", contestant("y").prepare)
    speed, memory = grading._results(contest(tmp_path, 2, 3), 3)
    assert (len(speed.runs), speed.goal, list(speed.others)) == (2, None, ["a plain kernel each"])
    assert "nbgrader can't be installed here: no. otter-grader can't be installed here: no." in speed.note
    assert memory.ours is not None


def test_whoever_judges_wrongly_is_left_out_with_a_sentence(tmp_path, monkeypatch):
    item = contestant("slow grader", right=1, code="print('no kernel')")
    (tmp_path / "a").mkdir()
    with pytest.raises(grading.Unfit):
        grading._measure(item, tmp_path / "a", 3)
    assert item.problem == f"slow grader found 1 of {3 * ANSWERS} answers right: no kernel"
    assert item.per_minute == []


def test_the_goal_is_ten_times_the_faster_peer():
    items = [contestant(name) for name in ("ours", "first", "second", "kernel")]
    for item, speeds in zip(items, ([50.0], [2.0, 4.0, 3.0], [1.0], [9.0]), strict=True):
        item.per_minute, item.peak_mib = list(speeds), [100.0]
    speed, _ = grading._results(items, 10)
    assert (speed.goal, speed.met) == (30.0, True)
    assert speed.others == {"first": 3.0, "second": 1.0, "kernel": 9.0}


def test_memory_is_that_of_everything_below_while_it_runs():
    import subprocess

    with grading.peak_memory() as peak:
        process = subprocess.Popen([sys.executable, "-S", "-c", "x = bytearray(50_000_000); input()"], stdin=-1)
        deadline = time.monotonic() + 20
        while peak() < 50_000_000 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.communicate(b"\n")
    assert 50_000_000 < peak() < 500_000_000


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(grading.sys, "executable", str(tmp_path / "no-python"))
    made = grading.Environment(tmp_path / "env", "nbgrader")
    assert made.problem.startswith("nbgrader can't be installed here: ")
