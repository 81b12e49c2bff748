"""What comes out of grading: a table for the gradebook, facts for programs, a page for each student and the class."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from course_utils.exercises.verdicts import PASSED, WRONG
from course_utils.paths import write_text
from course_utils.tools.grading.grade import ClassResult, Grade

TEMPLATES = Path(__file__).parent
MAX_MISTAKES = 5  # of each exercise, on the class page


def write_report(result: ClassResult, *, pseudonyms: bool = False) -> None:
    """Write ``grades.csv``, ``grades.json``, ``class.html`` and a page for each student into the run's folder.

    With ``pseudonyms``, names stand in ``grades.csv`` and nowhere else.
    """
    write_text(result.out / "grades.csv", csv_text(result.grades))
    grades = [_renamed(grade) for grade in result.grades] if pseudonyms else list(result.grades)
    write_text(
        result.out / "grades.json", json.dumps([asdict(grade) for grade in grades], indent=1, ensure_ascii=False) + "\n"
    )
    pages = result.out / "feedback"
    students = sorted({grade.student for grade in grades}, key=str.casefold)
    names = page_names(students)
    for student in students:
        mine = [grade for grade in grades if grade.student == student]
        write_text(pages / names[student], _page("student.html.j2", student=student, grades=mine))
    write_text(
        result.out / "class.html", _page("class.html.j2", lessons=class_facts(grades), names=names, grades=grades)
    )


def csv_text(grades: tuple[Grade, ...]) -> str:
    """Return a row for each student with the points for each lesson, in columns that Moodle and Canvas can import."""
    lessons = sorted({grade.lesson for grade in grades if grade.lesson})
    best: dict[tuple[str, str], dict[str, int]] = {}
    for grade in grades:
        best.setdefault((grade.student, grade.student_id), {})[grade.lesson] = grade.points
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *lessons])
    for (student, number), points in sorted(best.items(), key=lambda item: (item[0][0].casefold(), item[0][1])):
        writer.writerow([_plain(student), number, "", "", "", *(points.get(lesson, "") for lesson in lessons)])
    return text.getvalue()


def _plain(text: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text


def class_facts(grades: list[Grade]) -> list[dict[str, Any]]:
    """Return for each lesson how each exercise went and which misses were frequent."""
    lessons = []
    for lesson in sorted({grade.lesson for grade in grades if grade.lesson}):
        mine = [grade for grade in grades if grade.lesson == lesson]
        rows = []
        for place, first in enumerate(mine[0].exercises):
            items = [grade.exercises[place] for grade in mine]
            misses = Counter(item["message"].split(" | ")[-1] for item in items if item["state"] == WRONG)
            counts = Counter(item["state"] for item in items)
            mistakes = [(count, message) for message, count in misses.most_common(MAX_MISTAKES)]
            rows.append({"id": first["id"], "title": first["title"], "counts": counts, "mistakes": mistakes})
        lessons.append({"lesson": lesson, "grades": mine, "rows": rows, "passed": PASSED, "n": len(mine)})
    return lessons


def page_names(students: list[str]) -> dict[str, str]:
    """Return a file name for each student's page; names that differ only in what files can't hold stay apart."""
    names: dict[str, str] = {}
    for student in students:
        stem = re.sub(r"[^\w-]+", "-", student).strip("-")[:60] or "student"
        if f"{stem}.html".casefold() in {name.casefold() for name in names.values()}:
            stem = f"{stem}-{hashlib.sha256(student.encode()).hexdigest()[:6]}"
        names[student] = f"{stem}.html"
    return names


def _renamed(grade: Grade) -> Grade:
    digest = hashlib.sha256(f"{grade.student}\0{grade.student_id}".encode()).hexdigest()[:8]
    return replace(grade, student=f"student-{digest}", student_id="", file=f"{grade.lesson or 'file'}.ipynb")


def _page(template: str, **facts: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(template).render(**facts)
