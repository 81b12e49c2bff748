"""What comes out of grading: a table for the gradebook, facts for programs, a page for each student and the class."""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
import re
import secrets
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

    For what Moodle's downloads held there is also a grading worksheet for each lesson, ``moodle-01_tensors.csv``. With
    ``pseudonyms``, names stand in these tables and nowhere else.
    """
    write_text(result.out / "grades.csv", csv_text(result.grades))
    for lesson in sorted({grade.lesson for grade in result.grades if grade.system == "moodle" and grade.lesson}):
        write_text(result.out / f"moodle-{lesson}.csv", worksheet_text(result.grades, lesson))
    grades = list(result.grades)
    if pseudonyms:
        secret = _secret(result.out / "results" / "pseudonyms.key")
        grades = [_renamed(grade, secret) for grade in grades]
        grades.sort(key=lambda grade: (grade.student, grade.lesson))  # their order would tell the names
    write_text(
        result.out / "grades.json", json.dumps([asdict(grade) for grade in grades], indent=1, ensure_ascii=False) + "\n"
    )
    students = sorted({_who(grade) for grade in grades}, key=lambda who: (who[0].casefold(), who[1]))
    names = page_names(students)
    for who in students:
        mine = [grade for grade in grades if _who(grade) == who]
        write_text(result.out / "feedback" / names[who], _page("student.html.j2", student=who[0], grades=mine))
    for path in (result.out / "feedback").glob("*.html"):  # of an earlier run, perhaps under other names
        if path.name not in names.values():
            path.unlink()
    pages = {(grade.student, grade.student_id): names[_who(grade)] for grade in grades}
    write_text(
        result.out / "class.html", _page("class.html.j2", lessons=class_facts(grades), pages=pages, grades=grades)
    )


def _who(grade: Grade) -> tuple[str, str]:
    """Return what tells students apart: two may have the same name."""
    return grade.student, grade.student_id


def worksheet_text(grades: tuple[Grade, ...], lesson: str) -> str:
    """Return Moodle's grading worksheet for one lesson, which an assignment with "Offline grading worksheet" takes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)"])
    for grade in grades:
        if grade.system == "moodle" and grade.lesson == lesson:
            row = [f"Participant {grade.student_id}", _plain(grade.student), grade.points, grade.max_points, "-"]
            writer.writerow(row)
    return text.getvalue()


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


def page_names(students: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return a file name for each student's page, by name and number; no two differ in nothing but case."""
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for student, number in students:
        stem = re.sub(r"[^\w-]+", "-", student).strip("-")[:60] or "student"
        if f"{stem}.html".casefold() in taken:
            stem = f"{stem}-{hashlib.sha256(f'{student}{number}'.encode()).hexdigest()[:6]}"
        names[student, number] = f"{stem}.html"
        taken.add(f"{stem}.html".casefold())
    return names


def _secret(path: Path) -> bytes:
    """Return the key of this folder's pseudonyms; without it, a list of names doesn't tell who is who."""
    try:
        return bytes.fromhex(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = secrets.token_bytes(16)
        write_text(path, made.hex())
        return made


def _renamed(grade: Grade, secret: bytes) -> Grade:
    who = f"{grade.student}\0{grade.student_id}".encode()
    name = f"student-{hmac.new(secret, who, 'sha256').hexdigest()[:8]}"
    file = f"{grade.lesson or 'file'}.ipynb"

    def hidden(text: str) -> str:
        for word in sorted(filter(None, (grade.file, grade.student, grade.student_id)), key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", file if word == grade.file else name, text)
        return text

    exercises = tuple({**row, "message": hidden(row["message"])} for row in grade.exercises)
    notes = tuple(map(hidden, grade.notes))
    return replace(grade, student=name, student_id="", file=file, notes=notes, exercises=exercises)


def _page(template: str, **facts: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template(template).render(**facts)
