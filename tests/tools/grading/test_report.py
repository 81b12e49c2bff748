"""What comes out of grading: tables that gradebooks take, pages that keep students apart, and pseudonyms."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from course_utils.tools.grading.grade import ClassResult, Grade, _keep, _named
from course_utils.tools.grading.report import csv_text, page_names, write_report
from course_utils.tools.grading.submissions import Submission

LESSON = "01_tensors"


def made(student: str, number: str = "", message: str = "Square first.", **more: Any) -> Grade:
    rows = (
        {"id": "tensors.energy", "title": "Energy", "state": "wrong", "message": message, "judged": ""},
        {"id": "tensors.best", "title": "Best", "state": "passed", "message": "", "judged": ""},
    )
    more = {"file": f"{student}_01_tensors.ipynb", "system": "moodle", "lesson": LESSON, **more}
    return Grade(student=student, student_id=number, status="graded", points=1, max_points=2, exercises=rows,
                 seconds=0.1, **more)  # fmt: skip


def written(folder: Path, *grades: Grade, pseudonyms: bool = False) -> Path:
    write_report(ClassResult(grades, folder), pseudonyms=pseudonyms)
    return folder


def test_the_gradebook_has_a_row_for_each_student_and_no_formula():
    grades = (made("Ada", "7"), made("Ada", "7", lesson="02_autograd"), made("Ada", "8"), made("=cmd()", "9"))
    rows = list(csv.DictReader(csv_text(grades).splitlines()))
    assert [(row["Student"], row["ID"], row[LESSON], row["02_autograd"]) for row in rows] == [
        ("'=cmd()", "9", "1", ""), ("Ada", "7", "1", "1"), ("Ada", "8", "1", ""),
    ]  # fmt: skip
    assert list(rows[0])[:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]  # Canvas's


def test_moodles_worksheet_has_the_columns_that_it_reads(tmp_path):
    written(tmp_path, made("Ada", "7"), made("bob", "8", system="canvas"))
    (row,) = csv.DictReader((tmp_path / f"moodle-{LESSON}.csv").read_text().splitlines())
    assert row == {
        "Identifier": "Participant 7", "Full name": "Ada", "Grade": "1", "Maximum Grade": "2",
        "Last modified (grade)": "-",
    }  # fmt: skip


def test_namesakes_have_pages_of_their_own(tmp_path):
    written(tmp_path, made("Wei Wang", "1", "first's"), made("Wei Wang", "2", "second's"), made("wei wang", "3"))
    pages = [path.read_text() for path in (tmp_path / "feedback").iterdir()]
    assert len(pages) == 3
    assert [sum(word in page for page in pages) for word in ("first&#39;s", "second&#39;s")] == [1, 1]
    assert not any("first" in page and "second" in page for page in pages)
    overview = (tmp_path / "class.html").read_text()
    for path in (tmp_path / "feedback").iterdir():
        assert path.name in overview


def test_names_and_messages_are_text_and_nothing_else(tmp_path):
    written(tmp_path, made("<script>alert(1)</script>", message="<img src=x>"), made("../../etc/passwd"))
    pages = [*(tmp_path / "feedback").iterdir(), tmp_path / "class.html"]
    assert len(pages) == 3
    assert not any("<script" in page.read_text() or "<img" in page.read_text() for page in pages)
    assert page_names([("x" * 300, "1"), ("x" * 300, "2"), ("", "")])[("", "")] == "student.html"


def test_pseudonyms_hide_names_everywhere_but_in_the_gradebook(tmp_path):
    ada = made(
        "Ada Lovelace", "4711", "ValueError: Ada Lovelace was here", notes=("graded is Ada Lovelace_01_tensors.ipynb.",)
    )
    written(tmp_path, ada, made("Bob", "4712"))  # once with names
    written(tmp_path, ada, made("Bob", "4712"), pseudonyms=True)
    texts = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".csv"}
    for path, text in texts.items():
        assert not any(word in text or word in path.name for word in ("Ada", "Lovelace", "4711", "Bob")), path
    assert "Ada Lovelace" in (tmp_path / "grades.csv").read_text()
    first = (tmp_path / "grades.json").read_text()
    written(tmp_path, ada, made("Bob", "4712"), pseudonyms=True)
    assert (tmp_path / "grades.json").read_text() == first, "the same pseudonyms each time"
    written(tmp_path / "other", ada, made("Bob", "4712"), pseudonyms=True)
    others = {grade["student"] for grade in json.loads((tmp_path / "other/grades.json").read_text())}
    assert not others & {grade["student"] for grade in json.loads(first)}, "a list of names does not tell who is who"


def test_a_kept_result_holds_no_name_and_gets_it_back(tmp_path):
    submission = Submission(
        "Ada", LESSON, tmp_path / "Ada_01_tensors.ipynb", "7", notes=("2 files; graded is Ada_01_tensors.ipynb.",),
        system="moodle",
    )  # fmt: skip
    grade = made("Ada", "7", notes=(*submission.notes, "Cell 'x' was left out."))
    _keep(tmp_path / "kept.json", submission, grade)
    text = (tmp_path / "kept.json").read_text()
    assert "Ada" not in text
    assert _named(Grade.from_json(json.loads(text)), submission) == grade
