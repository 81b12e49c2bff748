"""The reference answers, read from the lesson's source where this edition of the course has one."""

from __future__ import annotations

from typing import Any

from course_utils import sources
from course_utils.errors import SourceError
from course_utils.exercises.registry import find_exercise


def reference_code(exercise_id: str) -> str | None:
    """Return the reference answer's code, or None in an edition without sources (handed out to learners)."""
    try:
        return sources.solution_code(exercise_id)
    except (SourceError, OSError):
        return None


def reference_program(exercise_id: str) -> tuple[str, str]:
    """Return the code of the lesson's set-up, and of the exercise's cell with the reference answer and its ``check``.

    Before the exercise's own cell stand those of the exercises that it needs.

    Raises:
        SourceError: if this edition has no sources, or no such exercise.
    """
    cells = [sources.answer_cell(name) for name in (*find_exercise(exercise_id).needs, exercise_id)]
    return sources.setup_code(cells[-1].path), "\n\n".join(map(sources.reference_code, cells))


def answer_of(exercise_id: str, setup: str, cell: str) -> Any:
    """Run the two parts of `reference_program` and return what the cell hands to ``check``."""
    answers: dict[str, Any] = {}
    namespace: dict[str, Any] = {"__name__": "reference"}
    exec(compile(setup, f"<set-up of {exercise_id}>", "exec"), namespace)
    namespace["check"] = lambda name, answer=...: answers.update({name: answer})
    exec(compile(cell, f"<{exercise_id}>", "exec"), namespace)
    return answers[exercise_id]
