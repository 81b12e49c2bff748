"""Exercises are found by id, and each one is complete."""

from __future__ import annotations

import re

import pytest

from course_utils.errors import UsageError
from course_utils.exercises.registry import CLINIC, EXERCISE, all_exercises, exercises_of, find_exercise
from course_utils.lessons import LESSONS

ALL = all_exercises()


def test_ids_are_unique():
    ids = [exercise.id for exercise in ALL]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_exercise_is_complete(exercise):
    assert re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", exercise.id)
    assert exercise.kind in (EXERCISE, CLINIC)
    assert exercise.title
    assert exercise.title[0].isupper()
    assert len(exercise.hints) == len(set(exercise.hints)) == 3
    assert all(hint.strip() for hint in exercise.hints)
    assert exercise.check.__doc__, "the check says what the exercise asks for"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_exercises_carry_the_name_of_their_lesson(lesson):
    assert all(exercise.id.startswith(f"{lesson.name}.") for exercise in exercises_of(lesson))


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_each_exercise_is_found_by_its_id(exercise):
    assert find_exercise(exercise.id) is exercise


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("start.mean-square-error", "Did you mean 'start.mean-squared-error'?"),
        ("nowhere.softmax", "Known are:"),
        ("", "Known are:"),
        (None, "Known are:"),
        (7, "Known are:"),
    ],
)
def test_an_unknown_id_gets_a_suggestion(wrong, says):
    with pytest.raises(UsageError, match="There is no exercise called") as caught:
        find_exercise(wrong)
    assert says in str(caught.value)
