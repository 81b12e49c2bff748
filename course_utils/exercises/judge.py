"""From an answer to an outcome. Whatever the learner's code does becomes a verdict, never a traceback."""

from __future__ import annotations

import dis
import types
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from course_utils.exercises.inputs import Inputs
from course_utils.exercises.registry import Exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Check, Outcome
from course_utils.seeding import seeded
from course_utils.text import shorten

RUNS = "your code runs without an error"

_EMPTY_BODY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS", "MAKE_CELL"}

MSG_RETURNS_NONE = "The function returned None. Does it end with a return statement?"
MSG_INTERRUPTED = "The check was interrupted. If you did not press stop, look for a loop that never ends."


def is_blank(answer: object) -> bool:
    """Tell whether an answer is still the blank that the learner edition hands out.

    Blank are ``...`` and None, a container that holds ``...``, a function whose body is empty, and a
    class that has a method whose body is empty.
    """
    if answer is ... or answer is None:
        return True
    if type(answer) in (tuple, list):
        return any(item is ... for item in answer)  # type: ignore[attr-defined]
    if type(answer) is dict:
        return any(value is ... for value in answer.values())
    if isinstance(answer, types.FunctionType):
        return _has_empty_body(answer)
    if isinstance(answer, type):
        return any(_has_empty_body(item) for item in vars(answer).values() if isinstance(item, types.FunctionType))
    return False


def _has_empty_body(function: types.FunctionType) -> bool:
    return all(
        step.opname in _EMPTY_BODY and (step.opname not in ("LOAD_CONST", "RETURN_CONST") or step.argval is None)
        for step in dis.get_instructions(function)
    )


def evaluate(exercise: Exercise, answer: object, seed: int | None = None) -> Outcome:
    """Run an exercise's checks on an answer and return what they say.

    Global random states are as before afterwards. What the answer prints or warns is thrown away: it
    neither helps nor hurts.

    Args:
        exercise: what to check.
        answer: the learner's function, class or value.
        seed: fixes the random inputs (grading); by default each call draws new ones.
    """
    if is_blank(answer):
        return Outcome(exercise.id, UNTRIED)
    inputs = Inputs(seed)
    held: list[str] = []
    quiet = StringIO()
    try:
        with seeded(inputs.seed), warnings.catch_warnings(), redirect_stdout(quiet), redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            for check in exercise.check(answer, inputs):
                if not check.passed:
                    return Outcome(exercise.id, WRONG, tuple(held), check)
                held.append(check.what)
    except NotImplementedError:
        return Outcome(exercise.id, UNTRIED, tuple(held))
    except KeyboardInterrupt:
        return Outcome(exercise.id, WRONG, tuple(held), Check(RUNS, False, "interrupted", MSG_INTERRUPTED))
    except BaseException as error:  # SystemExit too: nothing that an answer raises may end the kernel
        return Outcome(exercise.id, WRONG, tuple(held), _explain(exercise, error))
    if not held:
        raise AssertionError(f"the check of {exercise.id} looked at nothing")
    return Outcome(exercise.id, PASSED, tuple(held))


def _explain(exercise: Exercise, error: BaseException) -> Check:
    """Turn an error that the answer raised into the check that failed, with the idea to revisit if it is known."""
    try:
        message = shorten(str(error), 240)
    except Exception:
        message = "(its message can't be read)"
    hint = next((idea for fragment, idea in exercise.errors if fragment in message), "")
    if not hint and "NoneType" in message:
        hint = MSG_RETURNS_NONE
    return Check(RUNS, False, f"{type(error).__name__}: {message}", hint)
