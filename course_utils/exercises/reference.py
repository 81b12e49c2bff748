"""The reference answers, read from the lesson's source where this edition of the course has one."""

from __future__ import annotations

import re

from course_utils.lessons import LESSONS
from course_utils.paths import SOURCES

BEGIN_SOLUTION, END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_STUB, END_STUB = "### BEGIN STUB", "### END STUB"


def without_stub(code: str) -> str:
    """Return the code of an exercise's source cell as the solutions edition shows it."""
    kept, in_stub = [], False
    for line in code.splitlines():
        mark = line.strip()
        if mark in (BEGIN_STUB, END_STUB):
            in_stub = mark == BEGIN_STUB
        elif not in_stub and mark not in (BEGIN_SOLUTION, END_SOLUTION):
            kept.append(line)
    return "\n".join(kept).strip("\n")


def reference_code(exercise_id: str) -> str | None:
    """Return the reference answer's code, or None in an edition without sources (handed out to learners)."""
    name = exercise_id.partition(".")[0]
    lesson = next((lesson for lesson in LESSONS if lesson.name == name), None)
    if lesson is None:
        return None
    try:
        text = (SOURCES / f"{lesson.stem}.py").read_text(encoding="utf-8")
    except OSError:
        return None
    for cell in re.split(r"^(?=# %%)", text, flags=re.MULTILINE):
        header, _, code = cell.partition("\n")
        if f'exercise="{exercise_id}"' in header:
            lines = without_stub(code).splitlines()
            return "\n".join(line for line in lines if not line.startswith(("check(", "# hint("))).strip("\n")
    return None
