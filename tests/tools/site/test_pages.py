"""The pages before Sphinx: hints and solutions folded, pictures described, verdicts and severities marked."""

from __future__ import annotations

import json

import pytest

from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS, ROOT
from course_utils.tools.site import pages

STEMS = {lesson.stem for lesson in LESSONS}


def code(id: str, source: str = "1", outputs: list | None = None, **metadata) -> dict:
    return {"cell_type": "code", "id": id, "metadata": metadata, "source": source, "execution_count": 1,
            "outputs": outputs or []}  # fmt: skip


def page_of(*cells: dict, stems: set[str] = STEMS) -> list[dict]:
    return pages.lesson_page({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, stems)["cells"]


def html_of(cell: dict) -> str:
    return cell["outputs"][0]["data"]["text/html"]


def test_three_hints_and_the_solution_are_folded_below_an_exercise():
    exercise, folds = page_of(code("ex-energy", tags=["exercise"], exercise="tensors.energy"))
    assert exercise["source"] == "1"
    html = html_of(folds)
    assert html.count("<details>") == html.count("</details>") == 4  # none of them open
    assert "Hint 1 of 3" in html
    assert "<summary>Solution</summary>" in html
    assert "float" in html
    assert "BEGIN SOLUTION" not in html


def test_without_sources_there_are_hints_and_no_solution(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "SOURCES", tmp_path / "source")
    _, folds = page_of(code("ex-energy", exercise="tensors.energy"))
    assert "Hint 3 of 3" in html_of(folds)
    assert "Solution" not in html_of(folds)


def test_setup_is_folded_and_a_picture_is_described():
    picture = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "AA", "text/plain": "Two lines.\nb"},
    }
    setup, drawn = page_of(code("setup", tags=["setup"]), code("plot", outputs=[picture]))
    assert "hide-input" in setup["metadata"]["tags"]
    assert setup["metadata"]["mystnb"]["code_prompt_show"] == "Imports and given data"
    assert drawn["metadata"]["mystnb"]["image"] == {"alt": "Two lines. b"}


def test_links_to_lessons_that_the_site_lacks_become_text():
    cell = {
        "cell_type": "markdown",
        "id": "a",
        "metadata": {},
        "source": "[one](01_tensors.ipynb), [two](02_autograd.ipynb)",
    }
    (made,) = page_of(cell, stems={"01_tensors"})
    assert made["source"] == "[one](01_tensors.ipynb), two"


def test_every_claim_has_an_anchor_and_its_verdict_as_a_badge():
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    made = pages.claims_page(text)
    assert made.count('class="badge-word') == sum(
        line.startswith("| ") and line[3:6].isdecimal() for line in text.splitlines()
    )
    assert '<a id="T004" href="#T004">T004</a>' in made
    assert '<span class="badge-word verdict-false">false</span>' in made


def test_every_finding_has_its_severity_and_leads_to_its_lesson():
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    made = pages.doctor_page(text, STEMS)
    assert made.count('class="badge-word') == text.count("; lesson ")
    assert "([lesson 04](04_data.ipynb))" in made
    assert "(lesson 04)" in pages.doctor_page(text, set())


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_every_exercise_of_a_lesson_gets_its_folds(lesson):
    notebook = json.loads((NOTEBOOKS / f"{lesson.stem}.ipynb").read_text(encoding="utf-8"))
    exercises = [cell for cell in notebook["cells"] if "exercise" in cell["metadata"]]
    made = pages.lesson_page(notebook, STEMS)["cells"]
    assert [cell["id"] for cell in made if cell["id"].endswith("-folds")] == [
        f"{cell['id']}-folds" for cell in exercises
    ]
    assert len({cell["id"] for cell in made}) == len(made)
