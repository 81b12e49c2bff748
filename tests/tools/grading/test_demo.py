"""The made class: what it holds, and that grading gives each submission the marks that it must get."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest

from course_utils import cli
from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.exercises.judge import evaluate
from course_utils.exercises.reference import answer_of
from course_utils.exercises.registry import find_exercise
from course_utils.paths import SOURCES
from course_utils.sources import setup_code
from course_utils.tools import edition, release
from course_utils.tools.grading import demo
from course_utils.tools.grading.answers import CALLS
from course_utils.tools.grading.submissions import find_submissions

KINDS = {"right", "wrong", "partial", "hostile", "broken"}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return a folder with the class, written as people write it."""
    folder = tmp_path_factory.mktemp("demo") / "class"
    assert cli.run(["demo-class", "--out", str(folder)]) == 0
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_class_holds_every_kind_in_every_layout_and_each_is_found(made, tmp_path):
    about = rows_of(made / "about.csv")
    assert {row["kind"] for row in about} == KINDS
    assert len(about) >= 30
    found = find_submissions(made / "submissions", tmp_path)
    assert sorted((item.student, item.student_id) for item in found) == sorted((r["student"], r["id"]) for r in about)
    assert {item.system for item in found} == {"moodle", "canvas"}
    assert any("section-b" in str(path) for path in (made / "submissions").iterdir())
    assert {row["ID"] for row in rows_of(made / "expected.csv")} == {row["id"] for row in about}
    hostile = {row["what"] for row in about if row["kind"] == "hostile"}
    assert hostile >= {
        "patches check", "patches torch", "replaces modules", "patches builtins", "writes the progress file",
        "reads the solutions", "prints fake results", "exits early with status 0", "loops for ever",
        "forks hundreds of processes", "fills the disk", "allocates everything", "opens sockets", "deletes files",
        "kills its parent",
    }  # fmt: skip


@pytest.mark.parametrize("tag", ["right", "wrong"])
def test_the_answers_are_what_their_tags_say(tag):
    answers = demo.Answers()
    setup = setup_code(SOURCES / f"{demo.LESSON}.py")
    numbers = dict.fromkeys(answers.ids, 0)
    for cell in answers.cells:
        if tag in cell.tags and cell.exercise:
            answer = answer_of(cell.exercise, setup, answers.code(cell))
            outcome = evaluate(find_exercise(cell.exercise), answer, 0)
            assert outcome.passed == (tag == "right"), (cell.id, outcome.message)
            numbers[cell.exercise] += "junk" not in cell.tags
    assert min(numbers.values()) >= 2


def test_a_folder_that_holds_something_is_left_alone(made, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    for place in (tmp_path / "full", tmp_path / "full/mine.txt"):
        with pytest.raises(UsageError, match="not empty"):
            demo.write_demo_class(place)
    assert cli.run(["demo-class", "--out", str(tmp_path / "full")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    demo.write_demo_class(tmp_path / "empty")
    names = sorted(path.relative_to(made) for path in made.rglob("*"))
    assert sorted(path.relative_to(tmp_path / "empty") for path in (tmp_path / "empty").rglob("*")) == names
    for name in names:
        if (made / name).is_file():
            assert (made / name).read_bytes() == (tmp_path / "empty" / name).read_bytes(), "the same class each time"


def test_all_of_it_or_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EnvironmentProblem, match="No space left"):
        demo.write_demo_class(tmp_path / "class")
    assert list(tmp_path.iterdir()) == []


def test_a_learner_edition_has_no_answers_for_it(tmp_path, monkeypatch):
    assert not [name for name in release.collect() if name.startswith("notebooks/source")]
    monkeypatch.setattr(demo, "SOURCES", tmp_path / "none")
    with pytest.raises(EnvironmentProblem, match="learner edition"):
        demo.write_demo_class(tmp_path / "class")
    assert edition.require(SOURCES / "demo", "x") is None


def test_no_answer_talks_to_the_course_by_itself():
    for cell in demo.Answers().cells:
        if cell.exercise:
            assert not re.search(rf"^({'|'.join(CALLS)})\(", cell.text, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="grading forks processes")
def test_grading_the_class_gives_each_the_marks_it_must_get(made, tmp_path, capsys):
    """From the class to grades as `docs/instructors.md` has it; then once more, under pseudonyms."""
    out = tmp_path / "grades"
    command = ["grade", str(made / "submissions"), "--out", str(out), "--jobs", "2", "--cell-timeout", "2"]
    assert cli.run(command) == 1, "some were not graded to their end, as they must not be"
    text = capsys.readouterr().out
    facts = json.loads((out / "grades.json").read_text(encoding="utf-8"))
    if any(fact["confined"] == "limits" for fact in facts):
        pytest.skip("this system allows no name spaces: there, solutions can be read")
    got = {row["ID"]: row["01_tensors"] for row in rows_of(out / "grades.csv")}
    wanted = {row["ID"]: row["01_tensors"] for row in rows_of(made / "expected.csv")}
    what = {row["id"]: row["what"] for row in rows_of(made / "about.csv")}
    assert {what[number]: got[number] for number in got} == {what[number]: wanted[number] for number in wanted}
    assert (out / "grades.csv").read_bytes() == (made / "expected.csv").read_bytes()
    assert "Amina Diallo, 01_tensors: 16 of 16 (graded)" in text
    assert len(list((out / "feedback").iterdir())) == len(facts) == len(wanted)
    page = (out / "class.html").read_text(encoding="utf-8")
    assert "144" in page, "the misconception that several share"
    worksheet = rows_of(out / "moodle-01_tensors.csv")
    assert {"Identifier", "Grade", "Last modified (grade)"} <= set(worksheet[0])
    assert {row["Identifier"]: row["Grade"] for row in worksheet}["Participant 52017"] == "16"

    names = {row["student"] for row in rows_of(made / "about.csv")}
    assert cli.run([*command, "--pseudonyms"]) == 1
    assert f"{len(facts)} of them from an earlier run" in capsys.readouterr().out
    assert (out / "grades.csv").read_bytes() == (made / "expected.csv").read_bytes()
    for path in out.rglob("*"):
        if path.is_file() and path.suffix != ".csv":
            text = path.read_text(encoding="utf-8")
            text = json.dumps(json.loads(text), ensure_ascii=False) if path.suffix == ".json" else text
            assert not [name for name in names if name in text or name in path.name], path
