"""The first page says where to go on, shows the whole way, and costs no PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from course_utils.exercises.registry import exercises_of
from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS, ROOT
from course_utils.tools.start_page import NAME, exercise_ids, start_page, where_to_go_on, write_start_page

IDS = {lesson.stem: [exercise.id for exercise in exercises_of(lesson)] for lesson in LESSONS}


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Writes a learner's progress."""
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "mine"))
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))

    def write(**states: str) -> None:
        named = {id.replace("__", "."): state for id, state in states.items()}
        (tmp_path / "progress.json").write_text(json.dumps({"version": 1, "exercises": named}))

    return write


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_notebook_s_exercises_are_those_of_its_lesson(lesson):
    assert sorted(exercise_ids(NOTEBOOKS / f"{lesson.stem}.ipynb")) == sorted(IDS[lesson.stem])


@pytest.mark.parametrize("content", [None, "", "[]", '{"cells": 3}', '{"cells": [{}]}', "\xff"])
def test_a_notebook_that_cannot_be_read_has_no_exercises(tmp_path, content):
    if content is not None:
        (tmp_path / "a.ipynb").write_bytes(content.encode("latin-1"))
    assert exercise_ids(tmp_path / "a.ipynb") == []


def test_at_first_one_begins_at_the_beginning(known):
    page = start_page()
    assert "**Begin here: [00 Start here](00_start.ipynb)** (nothing is solved yet)." in page
    assert page.count(" | 0 of ") == len(LESSONS)


def test_one_goes_on_in_the_last_lesson_where_something_was_tried(known):
    first, second, *_, last = exercise_ids(NOTEBOOKS / "01_tensors.ipynb")
    known(**{first.replace(".", "__"): "done", last.replace(".", "__"): "tried"})
    page, count = start_page(), len(IDS["01_tensors"])
    assert "**Continue where you left off: [01 Tensors" in page
    assert f"{count - 1} exercises are left there, the next is `{second}`" in page
    assert f"| 1 of {count} |" in page


def test_after_a_lesson_comes_the_next_and_after_the_last_what_was_left_out():
    everything = {id: "done" for ids in IDS.values() for id in ids}
    solved = dict.fromkeys(IDS["01_tensors"], "done")
    assert where_to_go_on(solved, IDS)[0].stem == "02_autograd"
    left_out = IDS["03_modules"][2]
    lesson, why = where_to_go_on({id: state for id, state in everything.items() if id != left_out}, IDS)
    assert (lesson.stem, why) == ("03_modules", f"1 exercise is left there, the next is `{left_out}`")
    assert where_to_go_on(everything, IDS) == (LESSONS[-1], "everything is solved")


def test_every_link_leads_to_a_notebook_of_the_workspace(known):
    links = re.findall(r"\]\(([^)]+)\)", start_page())
    assert set(links) == {f"{lesson.stem}.ipynb" for lesson in LESSONS}


def test_the_page_is_written_anew(known, tmp_path):
    path = write_start_page()
    assert path == tmp_path / "mine" / NAME
    known(start__a="tried")
    path.write_text("old")
    assert write_start_page().read_text() == start_page()


def test_the_page_does_not_wait_for_pytorch():
    program = (
        "import sys; from course_utils.tools.start_page import start_page; start_page(); print('torch' in sys.modules)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert run.stdout == "False\n", run.stderr
