"""Deliberate errors: four parts, each kept as an attribute, and one sentence for a terminal."""

from __future__ import annotations

import pickle

import pytest

from course_utils import errors
from course_utils.errors import CourseError

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CourseError)]


def test_an_error_has_up_to_four_parts_in_this_order():
    error = CourseError("No layer 'x'.", got="x", expected="one of 'a', 'b'", fix="did you mean 'a'?")
    assert str(error).splitlines() == [
        "No layer 'x'.",
        "  got:      x",
        "  expected: one of 'a', 'b'",
        "  fix:      did you mean 'a'?",
    ]
    assert (error.what, error.got, error.expected, error.fix) == (
        "No layer 'x'.",
        "x",
        "one of 'a', 'b'",
        "did you mean 'a'?",
    )


def test_parts_that_are_not_given_leave_no_line():
    assert str(CourseError("It is gone.")) == "It is gone."
    assert str(CourseError("It is gone.", fix="Get it again.")) == "It is gone.\n  fix:      Get it again."


@pytest.mark.parametrize(("got", "shown"), [(None, ""), (0, "0"), ((), "()"), ("text", "text"), ([1, 2], "[1, 2]")])
def test_got_shows_the_value(got, shown):
    assert CourseError("x", got=got).got == shown


def test_a_long_value_is_cut():
    error = CourseError("x", got="y" * 5000)
    assert len(error.got) == 120


def test_the_sentence_says_what_happened_and_what_to_do():
    assert CourseError("It is gone.", got=3, fix="Get it again.").sentence == "It is gone. Get it again."
    assert CourseError("It is gone.").sentence == "It is gone."


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_kind_is_a_course_error_and_says_when_it_is_raised(kind):
    assert kind.__doc__
    with pytest.raises(CourseError, match="It is gone"):
        raise kind("It is gone.")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_survives_the_way_between_processes(kind):
    error = kind("It is gone.", got="x", expected="y", fix="z")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.fix, copy.sentence) == (str(error), "z", error.sentence)
