"""What a learner calls in a notebook: ``check``, ``hint``, ``solution`` and ``progress``. None of them raises."""

from __future__ import annotations

from course_utils.cards import Card
from course_utils.errors import CourseError
from course_utils.exercises.registry import CLINIC, Exercise, find_exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, Outcome
from course_utils.text import plural

__all__ = ["check", "hint", "progress", "solution"]

_hints_shown: dict[str, int] = {}


def check(exercise_id: str, answer: object = ...) -> None:
    """Check an answer and show what is right, or the first thing that is not and the idea to revisit.

    Args:
        exercise_id: the id that the exercise's cell gives, ``tensors.softmax``.
        answer: your function, class or value.
    """
    from course_utils.exercises.judge import evaluate
    from course_utils.exercises.progress import record

    try:
        exercise = find_exercise(exercise_id)
        outcome = evaluate(exercise, answer)
        outcome_card(exercise, outcome, note=record(outcome)).show()
    except CourseError as error:
        _explain(error)
    except Exception as error:  # a fault of the checker, not of the learner
        Card(
            "wrong",
            f"The check of {exercise_id!r} itself broke. Your answer is not to blame.",
            (("error", f"{type(error).__name__}: {error}"), ("next", "Please report this text with course.py env.")),
        ).show()


def outcome_card(exercise: Exercise, outcome: Outcome, note: str = "") -> Card:
    """Return the card that tells a learner about an outcome."""
    notes = (("note", note),) if note else ()
    if outcome.state == UNTRIED:
        rows = (("next", f'Replace the blank, run the cell again. hint("{exercise.id}") helps.'),)
        return Card("todo", f"{exercise.title}: not attempted yet", rows + notes)
    if outcome.state == PASSED:
        counted = tuple(dict.fromkeys(outcome.held))
        return Card("done", f"{exercise.title}: passed", (("holds", "; ".join(counted)),) + notes)
    assert outcome.miss is not None
    parts = (
        ("expected", outcome.miss.what),
        ("seen", outcome.miss.detail),
        ("think", outcome.miss.hint or f'hint("{exercise.id}") helps.'),
    )
    verdict = "not repaired yet" if exercise.kind == CLINIC else "not right yet"
    return Card("wrong", f"{exercise.title}: {verdict}", tuple(row for row in parts if row[1]) + notes)


def hint(exercise_id: str, number: int | None = None) -> None:
    """Show the next hint of an exercise, or the one with this number (1, 2 or 3)."""
    try:
        exercise = find_exercise(exercise_id)
    except CourseError as error:
        return _explain(error)
    count = len(exercise.hints)
    if number is None:
        number = min(_hints_shown.get(exercise_id, 0) + 1, count)
        _hints_shown[exercise_id] = number
    number = max(1, min(int(number), count))
    left = count - number
    after = f"{plural(left, 'more hint')}." if left else f'The last one. solution("{exercise_id}") shows an answer.'
    Card("info", f"Hint {number} of {count}: {exercise.title}", (("hint", exercise.hints[number - 1]), ("then", after))).show()


def solution(exercise_id: str) -> None:
    """Show the reference answer of an exercise."""
    from course_utils.exercises.reference import reference_code

    try:
        exercise = find_exercise(exercise_id)
    except CourseError as error:
        return _explain(error)
    code = reference_code(exercise.id)
    if code is None:
        rows = (("next", f'This edition comes without solutions. hint("{exercise_id}", 3) is the strongest help.'),)
        return Card("info", f"{exercise.title}: no solution here", rows).show()
    Card("info", f"{exercise.title}: one answer among others", code=code).show()


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


def _explain(error: CourseError) -> None:
    Card("wrong", error.what, (("next", error.fix),) if error.fix else ()).show()
