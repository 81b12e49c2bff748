"""The list of lessons: in order, complete, and found by every name a reader may use."""

from __future__ import annotations

import re

import pytest

from course_utils.errors import UsageError
from course_utils.lessons import LESSONS, find_lesson
from course_utils.paths import SOURCES


def test_lessons_are_in_order_and_unique():
    numbers = [lesson.number for lesson in LESSONS]
    assert numbers == sorted(set(numbers))
    assert len({lesson.name for lesson in LESSONS}) == len(LESSONS)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_has_a_name_a_title_and_a_question(lesson):
    assert re.fullmatch(r"\d\d", lesson.number)
    assert re.fullmatch(r"[a-z]+", lesson.name)
    assert lesson.title
    assert lesson.question.endswith("?")


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_has_a_source(lesson):
    assert (SOURCES / f"{lesson.stem}.py").exists()


def test_every_source_is_a_lesson():
    assert {path.stem for path in SOURCES.glob("*.py")} == {lesson.stem for lesson in LESSONS}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_lesson_is_found_by_each_of_its_names(lesson):
    names = [lesson.stem, lesson.name, lesson.number, str(int(lesson.number)), lesson.name.upper()]
    names += [f"{lesson.stem}.ipynb", f"{lesson.stem}.py"]
    assert [find_lesson(name) for name in names] == [lesson] * len(names)


@pytest.mark.parametrize("name", ["", "1.5", "-1", "99", "tensor", "²", "01_tensors.txt"])
def test_another_name_gets_a_suggestion(name):
    with pytest.raises(UsageError, match=re.escape(f"There is no lesson called {name!r}.")) as caught:
        find_lesson(name)
    assert "01_tensors" in caught.value.fix
