"""Lessons in JupyterLab, as a learner meets them: with a keyboard, in either theme, in a wide and a narrow window.

A usual run of the tests visits one lesson; ``python3 course.py test --browser`` visits all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from course_utils.exercises.registry import exercises_of
from course_utils.lessons import LESSONS, find_lesson
from course_utils.sources import answer_cell, reference_code
from tests.browser.session import ACTION_S, DARK, LIGHT, NARROW, START_S, WIDE, Visit, chromium, open_lab, open_lesson
from tests.browser.wrong_answers import WRONG

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium; install it, or name one in COURSE_CHROMIUM"),
]
WHOLE = os.environ.get("COURSE_BROWSER") == "whole"
GREEN = "rgb(0, 158, 115)"
VISITED = [lesson.stem for lesson in LESSONS] if WHOLE else ["01_tensors"]


@pytest.mark.parametrize("lesson", VISITED)
def test_a_lesson_is_worked_through_in_the_browser(lesson, tmp_path):
    pictures = Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path)
    with open_lesson(lesson) as visit:
        found = [*runs(visit.run_all, visit)]
        found += look(visit, pictures, lesson)
        found += explorers(visit)
        found += exercise(visit, lesson)
        found += runs(visit.restart_and_run_all, visit)
    assert found == []


def test_a_newcomer_is_led_to_the_lesson_and_to_the_cell_that_comes_first(tmp_path):
    first, *others = [exercise.id for exercise in exercises_of(find_lesson("01"))]
    known = json.dumps({"version": 1, "exercises": {first: "done"}})
    with open_lab(progress=known) as page:
        shown = page.locator(".jp-MarkdownViewer .jp-RenderedMarkdown")
        shown.get_by_role("heading", name="PyTorch Workbook").wait_for(timeout=START_S * 1e3)
        page.screenshot(path=str(Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path) / "start.png"))
        assert shown.locator("tr").count() == 1 + len(LESSONS)
        assert f"1 of {1 + len(others)}" in shown.inner_text()
        assert page.locator(".jp-Dialog, .jp-toast-message, .Toastify__toast").count() == 0, "nothing pops up"
        shown.get_by_text("Continue where you left off").get_by_role("link").click()
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=ACTION_S * 1e3)
        assert page.locator(".lm-TabBar-tab.jp-mod-current").first.inner_text().strip() == "01_tensors.ipynb"
        visit = Visit(page, "01_tensors")
        early = visit.ids("exercise")[0]
        visit.run(early, "digits.shape")
        assert "`digits` is made in another cell, which has not run" in visit.output(early), (
            "one sentence says what to do"
        )


# Each part yields what is wrong, so that one visit tells everything.


def runs(start: Callable[[], None], visit: Visit) -> Iterator[str]:
    """From top to bottom: every code cell has run, and none has failed."""
    start()
    yield from (f"an error: {text[-300:]}" for text in visit.errors())
    wanted = sum(cell["cell_type"] == "code" for cell in visit.notebook["cells"])
    if visit.executed() != wanted:
        yield f"{visit.executed()} of {wanted} cells have run"


def look(visit: Visit, pictures: Path, lesson: str) -> Iterator[str]:
    """Both themes, both widths: text stands out, and nothing reaches beyond the page."""
    visit.hide_files()
    for theme in (LIGHT, DARK):
        if theme != LIGHT:
            visit.use_theme(theme)
        yield from (f"faint in {theme}: {text!r}, contrast {contrast}" for text, contrast in visit.faint_text())
        for width in (WIDE, NARROW):
            visit.use_width(width)
            for explorer in visit.ids("explorer")[:1]:
                visit.bring_into_view(explorer)
            visit.screenshot(pictures / f"{lesson}-{theme.split()[-1].lower()}-{width}.png")
            yield from (f"{beyond} pixels too wide at {width}: {what}" for what, beyond in visit.too_wide())
    visit.use_width(WIDE)


def explorers(visit: Visit) -> Iterator[str]:
    """Tab leads to every control; each changes something; picture and text of each explorer change."""
    for explorer in visit.ids("explorer"):
        count = visit.controls(explorer).count()
        if not count or visit.reached_by_keyboard(explorer) != set(range(count)):
            yield f"{explorer}: Tab leads to {sorted(visit.reached_by_keyboard(explorer))} of {count} controls"
        moved = [visit.move(explorer, number, back=True) for number in range(count)]
        for number in range(count):
            for keys in (-1, 5):  # a step up may mean the same for one setting, but not one down and five up
                if not (moved[number].picture or moved[number].numbers):
                    moved[number] = visit.move(explorer, number, keys=keys, back=True)
        yield from (
            f"{explorer}: {move.control} changes nothing" for move in moved if not (move.picture or move.numbers)
        )
        if not (any(move.picture for move in moved) and any(move.numbers for move in moved)):
            yield f"{explorer}: the picture or the text never changes"


def exercise(visit: Visit, lesson: str) -> Iterator[str]:
    """A wrong answer shows its message, hints come one after the other, a right answer is green and counted."""
    name, wrong, words = WRONG[lesson]
    cell, progress = answer_cell(name), visit.cell_with("progress()")
    count = len(exercises_of(find_lesson(lesson)))

    def missing(wanted: str, text: str) -> Iterator[str]:
        if wanted not in text:
            yield f"{name}: no {wanted!r} in {text[:500]!r}"

    visit.run(cell.id, f'check("{name}", {wrong})')
    yield from missing("✗", visit.output(cell.id))
    yield from missing(words, visit.output(cell.id))
    for number in (1, 2, 3):
        visit.run(cell.id, f'hint("{name}")')
        yield from missing(f"Hint {number} of 3", visit.output(cell.id))
    visit.run(progress)
    yield from missing(f"0 of {count}", line_of(visit.output(progress), lesson))
    visit.run(cell.id, reference_code(cell))
    yield from missing("passed", visit.output(cell.id))
    colour = visit.colour_of_card(cell.id)
    if colour != GREEN:
        yield f"{name}: a right answer's card is {colour}"
    visit.run(progress)
    yield from missing(f"1 of {count}", line_of(visit.output(progress), lesson))


def line_of(text: str, start: str) -> str:
    """Return the line that begins with ``start``."""
    return next((line for line in text.splitlines() if line.strip().startswith(start)), "")
