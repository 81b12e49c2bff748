"""Every lesson about PyTorch ends with what people say, in the words of the ledger, with all of its claims."""

from __future__ import annotations

import re

import pytest

from course_utils.claims.ledger import claims_of
from course_utils.lessons import LESSONS
from course_utils.paths import SOURCES
from course_utils.sources import Cell, read_cells

LEAST = 12
WITH_CLAIMS = [lesson for lesson in LESSONS if claims_of(lesson)]
each_lesson = pytest.mark.parametrize("lesson", WITH_CLAIMS, ids=lambda lesson: lesson.stem)


def claim_cells(lesson) -> dict[str, Cell]:
    """Return the cells that measure a claim, by its id."""
    cells = read_cells(SOURCES / f"{lesson.stem}.py")
    found = {match[1]: cell for cell in cells if (match := re.search(r'^claim\("(\w+)", \.\.\.\)$', cell.text, re.M))}
    assert found, "no claims"
    return found


def words(text: str) -> str:
    return " ".join(text.replace("\\", "").split())


def test_all_lessons_but_the_first_and_the_last_have_claims():
    assert [lesson.number for lesson in WITH_CLAIMS] == [f"{number:02}" for number in range(1, 9)]


@each_lesson
def test_enough_claims_are_shown_each_with_its_sentence(lesson):
    claims = {claim.id: claim for claim in claims_of(lesson)}
    cells = claim_cells(lesson)
    assert len(cells) >= LEAST
    for claim_id, cell in cells.items():
        comment = " ".join(line.removeprefix("# ") for line in cell.text.splitlines() if line.startswith("#"))
        assert words(comment) == words(f"“{claims[claim_id].sentence}”")
        assert ("nbval-ignore-output" in cell.tags) == claims[claim_id].varies


@each_lesson
def test_the_other_claims_are_listed(lesson):
    shown = claim_cells(lesson)
    (rest,) = (cell for cell in read_cells(SOURCES / f"{lesson.stem}.py") if cell.id == "people-say-more")
    for claim in claims_of(lesson):
        if claim.id not in shown:
            assert words(f"- **{claim.id}** {claim.sentence}") in words(rest.text)
