"""From an answer to an outcome. Whatever the learner's code does becomes a verdict, never a traceback."""

from __future__ import annotations

import dis
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import torch

from course_utils.exercises.inputs import Inputs
from course_utils.exercises.registry import Exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Check, Outcome
from course_utils.seeding import seeded
from course_utils.text import shorten

RUNS = "your code runs without an error"

_EMPTY_BODY = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS", "MAKE_CELL"}

MSG_RETURNS_NONE = "The function returned None. Does it end with a return statement?"
MSG_INTERRUPTED = "The check was interrupted. If you did not press stop, look for a loop that never ends."

_IN_EVERY_CLASS = {*vars(type("Empty", (), {})), "__firstlineno__", "__static_attributes__", "__qualname__"}


def is_blank(answer: object) -> bool:
    """Tell whether an answer is still the blank that the learner edition hands out.

    Blank are ``...`` and None, a container that holds ``...``, a function whose body is empty, and a
    class whose body is empty or that has a method whose body is empty.
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
        made = [item for name, item in vars(answer).items() if name not in _IN_EVERY_CLASS]
        return not made or any(_has_empty_body(item) for item in made if isinstance(item, types.FunctionType))
    return False


def _has_empty_body(function: types.FunctionType) -> bool:
    return all(
        step.opname in _EMPTY_BODY and (step.opname not in ("LOAD_CONST", "RETURN_CONST") or step.argval is None)
        for step in dis.get_instructions(function)
    )


def evaluate(exercise: Exercise, answer: object, seed: int | None = None) -> Outcome:
    """Run an exercise's checks on an answer and return what they say.

    Global random states and PyTorch's global settings are as before afterwards. What the answer prints or
    warns is thrown away: it neither helps nor hurts.

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
        with (
            standard_settings(),
            seeded(inputs.seed),
            warnings.catch_warnings(),
            redirect_stdout(quiet),
            redirect_stderr(quiet),
        ):
            warnings.simplefilter("ignore")
            for check in exercise.check(answer, inputs):
                if not check.passed:
                    miss = check if held else _if_nothing_came_back(check, answer)
                    return Outcome(exercise.id, WRONG, tuple(held), miss)
                held.append(check.what)
    except NotImplementedError as error:
        if error.args:  # torch raises it too, for two bool tensors for example: that is an attempt, a stub is bare
            return Outcome(exercise.id, WRONG, tuple(held), _explain(exercise, error))
        return Outcome(exercise.id, UNTRIED, tuple(held))
    except KeyboardInterrupt:
        return Outcome(exercise.id, WRONG, tuple(held), Check(RUNS, False, "interrupted", MSG_INTERRUPTED))
    except BaseException as error:  # SystemExit too: nothing that an answer raises may end the kernel
        return Outcome(exercise.id, WRONG, tuple(held), _explain(exercise, error))
    if not held:
        raise AssertionError(f"the check of {exercise.id} looked at nothing")
    return Outcome(exercise.id, PASSED, tuple(held))


@contextmanager
def standard_settings() -> Iterator[None]:
    """Give the block PyTorch's usual default dtype, device and gradient mode; afterwards put back all that was set.

    An earlier cell may have left gradients off or float64 on, and an answer may change such a setting itself:
    neither may decide another exercise.
    """
    dtype, device, threads = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    deterministic = _deterministic_mode()
    has_anomaly_mode = torch.is_anomaly_enabled()
    try:
        torch.set_default_dtype(torch.float32)
        _set_default_device(torch.device("cpu"))
        with torch.enable_grad():  # also puts back the gradient mode that an answer leaves behind
            yield
    finally:
        torch.set_default_dtype(dtype)
        _set_default_device(device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if (
            _deterministic_mode() != deterministic
        ):  # not always: the call imports PyTorch's compiler, which takes a second
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        torch.autograd.set_detect_anomaly(has_anomaly_mode)


def _deterministic_mode() -> tuple[bool, bool]:
    """Return whether only deterministic algorithms may be used, and whether others only warn."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_default_device(device: torch.device) -> None:
    if torch.get_default_device() != device:
        # None, not "cpu": a device that is named intercepts every call to PyTorch from then on.
        torch.set_default_device(None if device.type == "cpu" else device)


def _if_nothing_came_back(check: Check, answer: object) -> Check:
    """Return the first check, with a hint about ``return`` if it saw the None of a function that returns nothing.

    Only the first: where None was right before, it may be an honest answer.
    """
    if check.detail == "got None" and isinstance(answer, types.FunctionType) and _never_returns(answer):
        return replace(check, hint=MSG_RETURNS_NONE)
    return check


def _never_returns(function: types.FunctionType) -> bool:
    """Tell whether every way out of a function is the None that Python puts at its end."""
    steps = list(dis.get_instructions(function))
    # Python 3.12 and 3.13 return a constant in one instruction, the others load it just before.
    sources = [step if step.opname == "RETURN_CONST" else before for before, step in pairwise(steps) if _is_exit(step)]
    return all(source.opname in ("LOAD_CONST", "RETURN_CONST") and source.argval is None for source in sources)


def _is_exit(step: dis.Instruction) -> bool:
    return step.opname in ("RETURN_VALUE", "RETURN_CONST")


def _explain(exercise: Exercise, error: BaseException) -> Check:
    """Turn an error that the answer raised into the check that failed, with the idea to revisit if it is known."""
    try:
        message = shorten(str(error), 240)
    except Exception:
        message = "(its message can't be read)"
    hint = next((idea for fragment, idea in exercise.errors if fragment in message), "")
    if not hint and "NoneType" in message:
        hint = MSG_RETURNS_NONE
    _let_go(error)
    return Check(RUNS, False, f"{type(error).__name__}: {message}", hint)


def _let_go(error: BaseException | None) -> None:
    """Empty the frames that errors hold: what lies there is freed now, and not in the middle of something else.

    A coroutine that the answer never awaited gives its warning then, too, here where nobody hears it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
