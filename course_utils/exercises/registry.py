"""Which exercises exist. Each lesson's module lists its own as ``EXERCISES``; here they are found by id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from course_utils.errors import UsageError
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.lessons import LESSONS, Lesson
from course_utils.text import did_you_mean

EXERCISE, CLINIC = "exercise", "clinic"


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise or clinic item.

    Args:
        id: lesson name, a dot, a slug: ``tensors.softmax``.
        title: a few words for the progress page.
        check: yields one ``Check`` after the other about an answer; the first miss is what the learner sees.
        hints: three, of growing strength.
        kind: ``exercise`` or ``clinic``.
        errors: pairs of a fragment of an error message and the idea to revisit when the answer raises it.
        needs: exercises of the same lesson whose answers this one calls.
        finding: of a clinic item: the code under which the training doctor reports this fault, ``loss.broadcast``.
        unseen: of a clinic item that the doctor can't find: why not, as a sentence. Each item has one of the two.
    """

    id: str
    title: str
    check: Callable[[Any, Inputs], Iterator[Check]]
    hints: tuple[str, str, str]
    kind: str = EXERCISE
    errors: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    finding: str | None = None
    unseen: str = ""


@cache
def exercises_of(lesson: Lesson) -> tuple[Exercise, ...]:
    """Return the exercises and clinic items of one lesson, in the order of the notebook."""
    return tuple(import_module(f"course_utils.exercises.{lesson.name}").EXERCISES)


def all_exercises() -> tuple[Exercise, ...]:
    """Return every exercise of the course, lesson by lesson."""
    return tuple(exercise for lesson in LESSONS for exercise in exercises_of(lesson))


def find_exercise(exercise_id: str) -> Exercise:
    """Return the exercise with this id; only its own lesson's module is imported.

    Raises:
        UsageError: if there is none; the message suggests the closest id.
    """
    name = str(exercise_id).partition(".")[0]
    lessons = [lesson for lesson in LESSONS if lesson.name == name] or list(LESSONS)
    known = {exercise.id: exercise for lesson in lessons for exercise in exercises_of(lesson)}
    if not isinstance(exercise_id, str) or exercise_id not in known:
        raise UsageError(f"There is no exercise called {exercise_id!r}.", fix=did_you_mean(str(exercise_id), known))
    return known[exercise_id]
