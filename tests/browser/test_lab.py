"""Lessons in JupyterLab, as a learner meets them: with a keyboard, in either theme, in a wide and a narrow window.

A usual run of the tests visits one lesson; ``python3 course.py test --browser`` visits all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from course_utils.exercises.registry import exercises_of
from course_utils.lessons import LESSONS, find_lesson
from course_utils.sources import answer_cell, reference_code
from tests.browser.session import DARK, NARROW, WIDE, Visit, chromium, open_lesson
from tests.browser.wrong_answers import WRONG

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium; install it, or name one in COURSE_CHROMIUM"),
]
WHOLE = os.environ.get("COURSE_BROWSER") == "whole"
VISITED = [lesson.stem for lesson in LESSONS] if WHOLE else ["01_tensors"]


@pytest.mark.parametrize("lesson", VISITED)
def test_a_lesson_is_worked_through_in_the_browser(lesson, tmp_path):
    pictures = Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path)
    with open_lesson(lesson) as visit:
        visit.run_all()
        assert visit.errors() == []
        assert visit.executed() == sum(cell["cell_type"] == "code" for cell in visit.notebook["cells"])
        look_is_readable(visit, pictures, lesson)
        explorers_follow_the_keyboard(visit)
        an_exercise_teaches(visit, lesson)
        visit.restart_and_run_all()
        assert visit.errors() == []
        assert visit.executed() == sum(cell["cell_type"] == "code" for cell in visit.notebook["cells"])


def look_is_readable(visit: Visit, pictures: Path, lesson: str) -> None:
    """Both themes, both widths: text stands out, and nothing reaches beyond the page."""
    seen = visit.ids("explorer")[:1]
    visit.hide_files()
    assert visit.faint_text() == []
    for width in (WIDE, NARROW):
        visit.use_width(width)
        for explorer in seen:
            visit.bring_into_view(explorer)
        visit.screenshot(pictures / f"{lesson}-light-{width}.png")
        assert visit.too_wide() == [], width
    visit.use_theme(DARK)
    for explorer in seen:
        visit.bring_into_view(explorer)
    visit.screenshot(pictures / f"{lesson}-dark-{NARROW}.png")
    assert visit.faint_text() == []
    visit.use_width(WIDE)


def explorers_follow_the_keyboard(visit: Visit) -> None:
    """Tab leads to every control; each changes something; picture and text of each explorer change."""
    for explorer in visit.ids("explorer"):
        count = visit.controls(explorer).count()
        assert count > 0, explorer
        assert visit.reached_by_keyboard(explorer) == set(range(count)), explorer
        moved = [visit.move(explorer, number, back=True) for number in range(count)]
        assert [move for move in moved if not (move.picture or move.numbers)] == [], explorer
        assert any(move.picture for move in moved), moved
        assert any(move.numbers for move in moved), moved


def an_exercise_teaches(visit: Visit, lesson: str) -> None:
    """A wrong answer shows its message, hints come one after the other, a right answer is green and counted."""
    exercise, wrong, words = WRONG[lesson]
    cell, progress = answer_cell(exercise), visit.cell_with("progress()")
    count = len(exercises_of(find_lesson(lesson)))
    visit.run(cell.id, f'check("{exercise}", {wrong})')
    assert "✗" in visit.output(cell.id)
    assert words in visit.output(cell.id)
    for number in (1, 2, 3):
        visit.run(cell.id, f'hint("{exercise}")')
        assert f"Hint {number} of 3" in visit.output(cell.id)
    visit.run(progress)
    assert f"0 of {count}" in line_of(visit.output(progress), lesson)
    visit.run(cell.id, reference_code(cell))
    assert "passed" in visit.output(cell.id)
    card = visit.cell(cell.id).locator(".jp-OutputArea-output div[style*='border-left']").last
    assert card.evaluate("element => getComputedStyle(element).borderLeftColor") == "rgb(0, 158, 115)"
    visit.run(progress)
    assert f"1 of {count}" in line_of(visit.output(progress), lesson)


def line_of(text: str, lesson: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(lesson))
