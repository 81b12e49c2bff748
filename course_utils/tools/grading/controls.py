"""Answers that are known to be right or wrong, to see whether a process still judges as it should."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from course_utils.errors import CourseError
from course_utils.exercises.judge import evaluate
from course_utils.exercises.reference import answer_of, reference_program
from course_utils.exercises.registry import Exercise
from course_utils.sources import answer_cell, learner_code

Program = tuple[str, str]  # code of the set-up, code of the cell


def controls_of(exercise_id: str) -> list[Program]:
    """Return programs for an exercise: the reference answer, then what the learner was given; none without sources."""
    try:
        setup, cell = reference_program(exercise_id)
        return [(setup, cell), (setup, learner_code(answer_cell(exercise_id)))]
    except (CourseError, OSError):
        return []


def control_states(exercise: Exercise, programs: list[Program], seed: int) -> list[str]:
    """Return how each control is judged in this process: junk, then each program, then each with changed results."""
    answers: list[object] = [lambda *args, **kwargs: None, lambda *args, **kwargs: args[0] if args else 0, "nothing"]
    answers.append(Anything())
    for setup, cell in programs:
        try:
            answer = answer_of(exercise.id, setup, cell)
        except Exception as error:
            answers.append(f"{type(error).__name__}")
            continue
        answers.append(answer)
        if callable(answer) and not isinstance(answer, type):
            answers.append(with_changed_results(answer))
    return [evaluate(exercise, answer, seed).state for answer in answers]


def with_changed_results(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with every number in its results changed, their types and shapes as they were."""

    @wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return _changed(function(*args, **kwargs))

    return changed


def _changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if type(value) is torch.Tensor:
        return ~value if value.dtype is torch.bool else value + 1
    if type(value) in (list, tuple):
        return type(value)(_changed(item) for item in value)
    if type(value) is dict:
        return {name: _changed(item) for name, item in value.items()}
    return value


class Anything:
    """An object that equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __call__(self, *args: object, **kwargs: object) -> Anything:
        return self
