"""Every stored output of both editions, compared with a fresh run; nothing but the tagged cells may vary."""

from __future__ import annotations

import pytest

from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS, SOLUTIONS
from course_utils.tools.regression import all_notebooks, compare


def test_both_editions_of_every_lesson_are_there():
    expected = {folder / f"{lesson.stem}.ipynb" for lesson in LESSONS for folder in (NOTEBOOKS, SOLUTIONS)}
    assert set(all_notebooks()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("notebook", all_notebooks(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_fresh_outputs_equal_the_stored_ones(notebook):
    comparison = compare(notebook)
    assert comparison.ok, comparison.report
