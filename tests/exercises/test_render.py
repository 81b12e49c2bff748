"""What check, hint and solution say, word for word; none of them ever raises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import course_utils
from course_utils.exercises import judge, registry, render
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.registry import CLINIC, Exercise
from course_utils.exercises.render import outcome_card
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Check, Outcome


def check_seven(answer: object, inputs: Inputs) -> Iterator[Check]:
    """Exercise start.seven: the number seven."""
    yield Check("is a number", isinstance(answer, int), "got something else", "Write a number.")
    yield Check("is 7", answer == 7, f"got {answer!r}")


SEVEN = Exercise(id="start.seven", title="Seven", check=check_seven, hints=("Count.", "Six and one.", "7"))


@pytest.fixture(autouse=True)
def seven(monkeypatch):
    """The course has this exercise too, and no progress file."""

    def find(name: str) -> Exercise:
        return SEVEN if name == SEVEN.id else registry.find_exercise(name)

    monkeypatch.setattr(render, "find_exercise", find)
    monkeypatch.setattr(render, "_hints_shown", {})
    monkeypatch.setenv("COURSE_PROGRESS", "off")


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert err == ""
    return out.rstrip("\n")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            ...,
            '○ Seven: not attempted yet\n    next: Replace the blank, run the cell again. hint("start.seven") helps.',
        ),
        (7, "✓ Seven: passed\n    holds: is a number; is 7"),
        (
            "7",
            "✗ Seven: not right yet\n    expected: is a number\n    seen:     got something else\n"
            "    think:    Write a number.",
        ),
        (
            8,
            '✗ Seven: not right yet\n    expected: is 7\n    seen:     got 8\n    think:    hint("start.seven") helps.',
        ),
    ],
)
def test_check_says_one_of_three_things(capsys, answer, text):
    course_utils.check("start.seven", answer)
    assert said(capsys) == text


def test_check_without_an_answer_is_not_attempted(capsys):
    course_utils.check("start.seven")
    assert said(capsys).startswith("○ Seven: not attempted yet")


def test_a_clinic_item_is_repaired_or_not():
    item = Exercise(id="start.sick", title="Sick", check=check_seven, hints=("a", "b", "c"), kind=CLINIC)
    card = outcome_card(item, Outcome("start.sick", WRONG, (), Check("is 7", False)))
    assert card.headline == "Sick: not repaired yet"


def test_a_note_about_progress_is_a_row_of_every_card():
    for outcome in (Outcome("x", PASSED, ("a",)), Outcome("x", UNTRIED), Outcome("x", WRONG, (), Check("a", False))):
        assert ("note", "kept in memory") in outcome_card(SEVEN, outcome, note="kept in memory").rows


def test_what_holds_is_named_once():
    card = outcome_card(SEVEN, Outcome("x", PASSED, ("right values", "right values", "keeps the shape")))
    assert card.rows == (("holds", "right values; keeps the shape"),)


@pytest.mark.parametrize("call", [course_utils.check, course_utils.hint, course_utils.solution])
@pytest.mark.parametrize("wrong_id", ["start.sevn", "", None, 3, ["a"], "start."])
def test_an_unknown_exercise_gets_a_sentence(capsys, call, wrong_id):
    call(wrong_id)
    assert said(capsys).startswith("✗ There is no exercise called")


def test_a_fault_of_the_checker_is_not_blamed_on_the_answer(capsys, monkeypatch):
    def broken(*_args: object) -> Outcome:
        raise ZeroDivisionError("in the checker")

    monkeypatch.setattr(judge, "evaluate", broken)
    course_utils.check("start.seven", 7)
    text = said(capsys)
    assert "check('start.seven') broke inside the course. Your answer is not to blame." in text
    assert "ZeroDivisionError: in the checker" in text


def test_hints_grow_stronger_and_stay_at_the_last(capsys):
    texts = []
    for _ in range(4):
        course_utils.hint("start.seven")
        texts.append(said(capsys))
    assert texts[0] == "→ Hint 1 of 3: Seven\n    hint: Count.\n    then: 2 more hints."
    assert texts[1].endswith("then: 1 more hint.")
    assert texts[2] == texts[3]
    assert texts[2].endswith('then: The last one. solution("start.seven") shows an answer.')


@pytest.mark.parametrize(("asked", "shown"), [(1, 1), (3, 3), (0, 1), (-2, 1), (9, 3)])
def test_a_hint_is_shown_by_number(capsys, asked, shown):
    course_utils.hint("start.seven", asked)
    assert said(capsys).startswith(f"→ Hint {shown} of 3: Seven")


@pytest.mark.parametrize("asked", ["two", [1], object(), float("nan")])
def test_a_hint_with_an_odd_number_is_the_next_hint(capsys, asked):
    course_utils.hint("start.seven", asked)
    assert said(capsys).startswith("→ Hint 1 of 3: Seven")


def test_solution_shows_the_reference_answer(capsys, monkeypatch):
    monkeypatch.setattr("course_utils.exercises.reference.reference_code", lambda _id: "seven = 7")
    course_utils.solution("start.seven")
    assert said(capsys) == "→ Seven: one answer among others\n\n    seven = 7"


def test_solution_of_an_edition_without_sources_points_to_the_hints(capsys, monkeypatch):
    monkeypatch.setattr("course_utils.exercises.reference.reference_code", lambda _id: None)
    course_utils.solution("start.seven")
    assert 'hint("start.seven", 3) is the strongest help' in said(capsys)


def test_solution_of_the_warm_up_is_read_from_its_source(capsys):
    course_utils.solution("start.mean-squared-error")
    text = said(capsys)
    assert "return (predictions - labels).square().mean()" in text
    assert "###" not in text
    assert "check(" not in text


def test_progress_is_a_function_also_after_something_was_recorded(capsys):
    course_utils.check("start.seven", 7)
    assert callable(course_utils.progress)


def test_progress_shows_a_bar_for_each_lesson(capsys, monkeypatch):
    items = [{"id": "a", "title": "A", "state": "done"}, {"id": "b", "title": "B", "state": "tried"}]
    rows = [{"lesson": "01_demo", "exercises": items, "clinic": []}]
    monkeypatch.setattr("course_utils.exercises.progress.summary", lambda: rows)
    course_utils.progress()
    assert said(capsys) == "→ Your progress\n    01_demo: ■□  1 of 2"
