"""From an answer to an outcome: whatever an answer is or does, there is a verdict and nothing else changes."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from course_utils.exercises.inputs import Inputs
from course_utils.exercises.judge import MSG_INTERRUPTED, MSG_RETURNS_NONE, RUNS, evaluate, is_blank
from course_utils.exercises.registry import Exercise
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Check, Outcome

HINTS = ("one", "two", "three")


def exercise_with(check: Callable[..., Iterator[Check]], errors: tuple[tuple[str, str], ...] = ()) -> Exercise:
    return Exercise(id="demo.call", title="Demo", check=check, hints=HINTS, errors=errors)


def calls_it(answer: Callable[[], object], inputs: Inputs) -> Iterator[Check]:
    yield Check("gives 7", answer() == 7, detail="something else", hint="Return seven.")


DEMO = exercise_with(calls_it)


def outcome_of(answer: object, exercise: Exercise = DEMO) -> Outcome:
    return evaluate(exercise, answer, seed=0)


def test_right_answer_passes_and_lists_what_held():
    assert outcome_of(lambda: 7) == Outcome("demo.call", PASSED, ("gives 7",))


def test_wrong_answer_meets_the_first_miss_only():
    def two_misses(answer: object, inputs: Inputs) -> Iterator[Check]:
        yield Check("holds", True)
        yield Check("first miss", False, "seen", "think")
        raise AssertionError("never reached")

    outcome = outcome_of(1, exercise_with(two_misses))
    assert outcome.state == WRONG
    assert outcome.held == ("holds",)
    assert outcome.message == "first miss | seen | think"


def not_written(x): ...


def only_a_docstring(x):
    """Return something."""


def only_pass(x):
    pass


def bare_return(x):
    return


def makes_a_closure():
    seen = []

    def inner(x): ...

    return inner, seen


class HalfWritten:
    def done(self):
        return 1

    def open(self): ...


@pytest.mark.parametrize(
    "blank",
    [
        ...,
        None,
        (1, ...),
        [...],
        {"a": ...},
        not_written,
        only_a_docstring,
        only_pass,
        bare_return,
        makes_a_closure()[0],
        HalfWritten,
        lambda: None,
    ],
)
def test_blanks_are_recognised_and_never_run(blank):
    assert is_blank(blank)
    assert outcome_of(blank).state == UNTRIED


def returns_none_after_work(x):
    print(x)


class Written:
    size = 3

    def done(self):
        return self.size


@pytest.mark.parametrize(
    "answer",
    [0, "", (), [], {}, False, 0.0, returns_none_after_work, Written, Written(), torch.zeros(2), len, object()],
)
def test_values_that_are_falsy_or_odd_are_not_blank(answer):
    assert not is_blank(answer)


@pytest.mark.parametrize("value", [torch.zeros(3), np.zeros(3), (torch.zeros(2), 1), [np.zeros(2)]])
def test_arrays_and_tensors_do_not_trip_the_search_for_blanks(value):
    assert not is_blank(value)


def test_not_implemented_counts_as_not_attempted():
    def stub() -> int:
        raise NotImplementedError

    assert outcome_of(stub).state == UNTRIED


def test_not_implemented_with_a_message_is_an_error_of_an_attempt():
    outcome = outcome_of(lambda: torch.tensor([True]) - torch.tensor([True]))
    assert outcome.state == WRONG
    assert "two bool tensors" in outcome.message


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


def deep() -> int:
    return deep() + 1


def leaves() -> None:
    sys.exit(3)


def fails_with(error: BaseException) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: undefined_name, "NameError"),  # noqa: F821
        (leaves, "SystemExit: 3"),
        (deep, "RecursionError"),
        (fails_with(KeyboardInterrupt()), MSG_INTERRUPTED),
        (fails_with(GeneratorExit()), "GeneratorExit"),
        (fails_with(Unprintable()), "its message can't be read"),
        (fails_with(ValueError("x" * 5000)), "ValueError: xxx"),
        (lambda: torch.zeros(2) @ torch.zeros(3), "RuntimeError"),
        ("text", "TypeError: 'str' object is not callable"),
    ],
)
def test_an_error_in_the_answer_becomes_a_verdict(answer, says):
    outcome = outcome_of(answer)
    assert outcome.state == WRONG
    assert outcome.miss is not None
    assert outcome.miss.what == RUNS
    assert says in outcome.message
    assert len(outcome.message) < 400


def test_a_known_error_is_explained_by_the_exercise():
    exercise = exercise_with(calls_it, errors=(("same dtype", "Convert first."), ("division", "Never by zero.")))
    assert "Never by zero." in outcome_of(lambda: 1 / 0, exercise).message


def test_forgotten_return_is_named():
    def uses_the_result(answer: Callable[[], torch.Tensor], inputs: Inputs) -> Iterator[Check]:
        yield Check("sums", answer().sum() == 0)

    outcome = outcome_of(lambda: print("hello"), exercise_with(uses_the_result))
    assert MSG_RETURNS_NONE in outcome.message


def test_a_check_that_looks_at_nothing_is_a_fault_of_the_course():
    with pytest.raises(AssertionError, match="looked at nothing"):
        outcome_of(1, exercise_with(lambda answer, inputs: iter(())))


def test_what_a_failed_answer_held_is_freed_at_once():
    """Later its warning would meet whatever runs then, in the notebook of the learner or in another test."""
    held = []

    async def body() -> bytes:
        return b""

    def forgets_to_await():
        waiting = body()
        held.append(weakref.ref(waiting))
        try:
            return len(waiting)
        except TypeError as error:
            kept = ValueError("a circle: the error holds the frame that holds the error")
            raise kept from error

    gc.collect()
    gc.disable()
    try:
        assert outcome_of(forgets_to_await).state == WRONG
        assert held[0]() is None
    finally:
        gc.enable()


def test_output_and_warnings_of_the_answer_are_thrown_away(capsys):
    def loud() -> int:
        print("noise")
        print("noise", file=sys.stderr)
        warnings.warn("noise", stacklevel=1)
        return 7

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome_of(loud).passed
    assert capsys.readouterr() == ("", "")


def test_answers_that_draw_at_random_leave_every_generator_where_it_was():
    def draws() -> int:
        random.random(), np.random.rand(), torch.rand(1)
        torch.manual_seed(5)
        return 7

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert outcome_of(draws).passed
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


def settings() -> dict[str, object]:
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
    }


def change_all_settings() -> int:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.autograd.set_detect_anomaly(True)
    return 7


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_settings_that_an_answer_changes_are_put_back(ending):
    def answer() -> int:
        change_all_settings()
        if ending == "raises":
            raise ValueError("after the change")
        return 7

    before = settings()
    try:
        assert outcome_of(answer).state == (PASSED if ending == "returns" else WRONG)
        assert settings() == before
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)


def test_a_check_starts_from_usual_settings_and_keeps_the_readers_own():
    def sees(answer: object, inputs: Inputs) -> Iterator[Check]:
        made = torch.ones(2, requires_grad=True)
        result = made.sum()
        yield Check("usual", made.dtype == torch.float32 and made.device.type == "cpu" and result.requires_grad)

    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        assert outcome_of(1, exercise_with(sees)).passed
        now = settings()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
    assert (now["dtype"], now["device"], now["grad"]) == (torch.float64, torch.device("meta"), False)


def test_same_seed_gives_the_same_inputs_and_no_seed_gives_others():
    drawn: list[float] = []

    def draws(answer: object, inputs: Inputs) -> Iterator[Check]:
        drawn.append(inputs.randn(1).item())
        yield Check("always", True)

    exercise = exercise_with(draws)
    for seed in (3, 3, None, None):
        evaluate(exercise, 1, seed)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


def test_a_function_that_forgets_its_return_is_told_so():
    def forgets(x):
        x + 1

    def gives_none_on_purpose(x):
        return None if x is not None else x

    def looks_at_the_result(answer: Callable[[int], object], inputs: Inputs) -> Iterator[Check]:
        yield Check("gives 7", False, f"got {answer(6)}", "about seven")

    exercise = exercise_with(looks_at_the_result)
    assert outcome_of(forgets, exercise).miss.hint == MSG_RETURNS_NONE
    assert outcome_of(gives_none_on_purpose, exercise).miss.hint == "about seven"
    assert outcome_of(lambda x: x + 1, exercise).miss.hint == "about seven"


def test_a_check_does_not_load_the_compiler():
    """It is a second that a learner would wait at the first check of each lesson."""
    program = (
        "import sys; from course_utils import check, hint\n"
        "check('tensors.energy', lambda x: x); hint('tensors.energy')\n"
        "print(sorted({'torch._inductor', 'torch._dynamo', 'sympy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"
