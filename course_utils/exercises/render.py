"""What a learner calls in a notebook: ``check``, ``hint``, ``solution`` and ``progress``. None of them raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from course_utils.cards import Card
from course_utils.errors import CourseError
from course_utils.exercises.registry import CLINIC, Exercise, find_exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, Outcome
from course_utils.text import plural, shorten

P = ParamSpec("P")

_hints_shown: dict[str, int] = {}


def _never_raises(function: Callable[P, None]) -> Callable[P, None]:
    """Show a card in place of an error: a lesson runs on whatever a learner types, and whatever we got wrong."""

    @functools.wraps(function)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except CourseError as error:
            Card("wrong", error.what, (("next", error.fix),) if error.fix else ()).show()
        except Exception as error:  # a fault of the course, not of the learner
            call = f"{function.__name__}({args[0]!r})" if args else f"{function.__name__}()"
            rows = (
                ("error", f"{type(error).__name__}: {shorten(str(error), 300)}"),
                ("next", "Please report this text with what course.py env prints."),
            )
            Card("wrong", f"{shorten(call)} broke inside the course. Your answer is not to blame.", rows).show()

    return safe


@_never_raises
def check(exercise_id: str, answer: object = ...) -> None:
    """Check an answer and show what is right, or the first thing that is not and the idea to revisit.

    Args:
        exercise_id: the id that the exercise's cell gives, ``tensors.softmax``.
        answer: your function, class or value.
    """
    from course_utils.exercises.judge import evaluate
    from course_utils.exercises.progress import record

    exercise = find_exercise(exercise_id)
    outcome = evaluate(exercise, answer)
    outcome_card(exercise, outcome, note=record(outcome)).show()


def outcome_card(exercise: Exercise, outcome: Outcome, note: str = "") -> Card:
    """Return the card that tells a learner about an outcome."""
    notes = (("note", note),) if note else ()
    if outcome.state == UNTRIED:
        rows = (("next", f'Replace the blank, run the cell again. hint("{exercise.id}") helps.'),)
        return Card("todo", f"{exercise.title}: not attempted yet", rows + notes)
    if outcome.state == PASSED:
        counted = tuple(dict.fromkeys(outcome.held))
        rows = (("holds", "; ".join(counted)), *_doctor(exercise))
        return Card("done", f"{exercise.title}: passed", rows + notes)
    assert outcome.miss is not None
    parts = (
        ("expected", outcome.miss.what),
        ("seen", outcome.miss.detail),
        ("think", outcome.miss.hint or f'hint("{exercise.id}") helps.'),
    )
    verdict = "not repaired yet" if exercise.kind == CLINIC else "not right yet"
    return Card("wrong", f"{exercise.title}: {verdict}", tuple(row for row in parts if row[1]) + notes)


def _doctor(exercise: Exercise) -> tuple[tuple[str, str], ...]:
    """Return the row that says what the training doctor makes of this fault; none for what is no clinic item."""
    if exercise.finding:
        return (("doctor", f"In your own code it reports this as {exercise.finding} (docs/doctor.md)."),)
    return (("doctor", f"It can't see this. {exercise.unseen}"),) if exercise.unseen else ()


@_never_raises
def hint(exercise_id: str, number: int | None = None) -> None:
    """Show the next hint of an exercise, or the one with this number (1, 2 or 3)."""
    exercise = find_exercise(exercise_id)
    count = len(exercise.hints)
    if not isinstance(number, int):
        number = min(_hints_shown.get(exercise_id, 0) + 1, count)
        _hints_shown[exercise_id] = number
    number = max(1, min(number, count))
    left = count - number
    after = f"{plural(left, 'more hint')}." if left else f'The last one. solution("{exercise_id}") shows an answer.'
    rows = (("hint", exercise.hints[number - 1]), ("then", after))
    Card("info", f"Hint {number} of {count}: {exercise.title}", rows).show()


@_never_raises
def solution(exercise_id: str) -> None:
    """Show the reference answer of an exercise."""
    from course_utils.exercises.reference import reference_code

    exercise = find_exercise(exercise_id)
    code = reference_code(exercise.id)
    if code is None:
        rows = (("next", f'This edition comes without solutions. hint("{exercise_id}", 3) is the strongest help.'),)
        return Card("info", f"{exercise.title}: no solution here", rows).show()
    Card("info", f"{exercise.title}: one answer among others", code=code).show()


@_never_raises
def progress() -> None:
    """Show how far you are, lesson by lesson."""
    from course_utils.exercises.progress import DONE, summary

    rows = []
    for lesson in summary():
        states = [item["state"] for item in [*lesson["exercises"], *lesson["clinic"]]]
        done = states.count(DONE)
        bar = "■" * done + "□" * (len(states) - done)
        rows.append((lesson["lesson"], f"{bar}  {done} of {len(states)}"))
    Card("info", "Your progress", tuple(rows)).show()
