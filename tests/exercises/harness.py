"""What every lesson's exercise tests share: right answers pass, wrong ones are stopped by their own message.

A lesson's test module holds two tables and calls ``exercise_tests``::

    RIGHT = {"tensors.softmax": {"with log_softmax": lambda z: z.log_softmax(1).exp(), ...}}       # two or more
    WRONG = {"tensors.softmax": {"adds over the batch": (lambda z: z.exp() / z.exp().sum(0), "each row"), ...}}

The second part of a wrong entry are words that the learner's message must contain.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from course_utils.exercises.judge import evaluate
from course_utils.exercises.reference import answer_of, reference_program
from course_utils.exercises.registry import exercises_of, find_exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG
from course_utils.lessons import find_lesson

SEEDS = (0, 1, 2)
RIGHT_MIN, WRONG_MIN = 2, 4
Answers = dict[str, dict[str, Any]]
WrongAnswers = dict[str, dict[str, tuple[Any, str]]]


def exercise_tests(lesson_name: str, right: Answers, wrong: WrongAnswers, seeds: Sequence[int] = SEEDS) -> type:
    """Return a test class for one lesson; assign it to a name that starts with ``Test``."""
    lesson = find_lesson(lesson_name)
    ids = [exercise.id for exercise in exercises_of(lesson)]
    right_cases = [pytest.param(i, answer, id=f"{i}-{name}") for i in right for name, answer in right[i].items()]
    wrong_cases = [pytest.param(i, *entry, id=f"{i}-{name}") for i in wrong for name, entry in wrong[i].items()]

    class ExerciseTests:
        @pytest.mark.parametrize("exercise_id", ids)
        def test_has_enough_right_and_wrong_answers(self, exercise_id: str) -> None:
            assert len(right.get(exercise_id, {})) >= RIGHT_MIN
            assert len(wrong.get(exercise_id, {})) >= WRONG_MIN

        def test_tables_name_only_exercises_that_exist(self) -> None:
            assert set(right) | set(wrong) == set(ids)

        @pytest.mark.parametrize("seed", seeds)
        @pytest.mark.parametrize("exercise_id", ids)
        def test_reference_answer_passes(self, exercise_id: str, seed: int) -> None:
            outcome = evaluate(find_exercise(exercise_id), reference_answer(exercise_id), seed)
            assert outcome.state == PASSED, outcome.message

        @pytest.mark.parametrize("exercise_id", ids)
        def test_checks_draw_fresh_inputs(self, exercise_id: str) -> None:
            answer = reference_answer(exercise_id)
            assert evaluate(find_exercise(exercise_id), answer).state == PASSED

        @pytest.mark.parametrize(("exercise_id", "answer"), right_cases)
        def test_right_answer_in_another_form_passes(self, exercise_id: str, answer: Any) -> None:
            for seed in seeds:
                outcome = evaluate(find_exercise(exercise_id), answer, seed)
                assert outcome.state == PASSED, outcome.message

        @pytest.mark.parametrize(("exercise_id", "answer", "says"), wrong_cases)
        def test_wrong_answer_is_stopped_by_its_own_message(self, exercise_id: str, answer: Any, says: str) -> None:
            for seed in seeds:
                outcome = evaluate(find_exercise(exercise_id), answer, seed)
                assert outcome.state == WRONG, f"{outcome.state}: {outcome.held}"
                assert says in outcome.message

        @pytest.mark.parametrize("exercise_id", ids)
        @pytest.mark.parametrize("junk", [0, 1.5, "text", object(), [], lambda *a, **k: 0, lambda *a, **k: object()])
        def test_junk_is_never_accepted_and_never_raises(self, exercise_id: str, junk: Any) -> None:
            assert evaluate(find_exercise(exercise_id), junk, 0).state in (WRONG, UNTRIED)

        @pytest.mark.parametrize("exercise_id", ids)
        def test_an_object_that_equals_everything_is_never_accepted(self, exercise_id: str) -> None:
            for impostor in (EqualsAll(), lambda *args, **kwargs: EqualsAll()):
                assert evaluate(find_exercise(exercise_id), impostor, 0).state != PASSED

        @pytest.mark.parametrize("exercise_id", ids)
        def test_blank_counts_as_not_attempted(self, exercise_id: str) -> None:
            assert evaluate(find_exercise(exercise_id), ..., 0).state == UNTRIED

    return ExerciseTests


class EqualsAll:
    """Equal to everything, true, callable, with every attribute: what a careless check lets pass."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __call__(self, *args: Any, **kwargs: Any) -> EqualsAll:
        return self

    def __getattr__(self, name: str) -> EqualsAll:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def reference_answer(exercise_id: str) -> Any:
    """Return what the reference answer's cell hands to ``check``: only the setup and its own cell are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", _scratch())
        return answer_of(exercise_id, *reference_program(exercise_id))


@cache
def _scratch() -> str:
    """Return a folder for this process alone: a setup cell may make one that only the end of its lesson removes."""
    folder = tempfile.TemporaryDirectory(prefix="answers-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return folder.name
