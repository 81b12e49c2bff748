"""The lessons as a whole: in step with their sources, complete in their exercises, and small enough to read."""

from __future__ import annotations

import json
import re

import pytest

from course_utils.exercises.registry import CLINIC, EXERCISE, exercises_of
from course_utils.lessons import LESSONS, Lesson
from course_utils.paths import NOTEBOOKS, ROOT, SOLUTIONS, SOURCES
from course_utils.sources import exercise_cells, read_cells
from course_utils.tools.build import build

EXERCISES_MIN, CLINIC_MIN = 8, 4
HINTS = 3
WORDS_OF_FILLER = ("simply", "obviously", "of course", "just run", "easy to see")
EDITIONS = [pytest.param(folder / f"{lesson.stem}.ipynb", id=f"{folder.name}-{lesson.stem}")
            for lesson in LESSONS for folder in (NOTEBOOKS, SOLUTIONS)]  # fmt: skip
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)


def test_notebooks_are_in_step_with_their_sources():
    result = build(check=True)
    assert result.ok, result.summary()


def test_every_source_is_a_lesson_of_the_list():
    assert [path.stem for path in sorted(SOURCES.glob("*.py"))] == [lesson.stem for lesson in LESSONS]


@each_lesson
def test_registered_exercises_are_those_of_the_notebook_in_its_order(lesson: Lesson):
    cells = exercise_cells(SOURCES / f"{lesson.stem}.py")
    assert [exercise.id for exercise in exercises_of(lesson)] == [cell.exercise for cell in cells]
    for exercise, cell in zip(exercises_of(lesson), cells, strict=True):
        assert exercise.kind in cell.tags


@each_lesson
def test_lessons_have_enough_exercises_and_clinic_items(lesson: Lesson):
    kinds = [exercise.kind for exercise in exercises_of(lesson)]
    if lesson.name == "start":
        assert kinds.count(EXERCISE) == 1  # the warm-up
    elif lesson.name == "capstone":
        assert exercises_of(lesson)[-1].id == "capstone.acceptance"  # one job in parts, graded as a whole
    else:
        assert kinds.count(EXERCISE) >= EXERCISES_MIN
        assert kinds.count(CLINIC) >= CLINIC_MIN


@each_lesson
def test_every_exercise_has_three_hints_of_growing_length_of_help(lesson: Lesson):
    for exercise in exercises_of(lesson):
        assert len(set(exercise.hints)) == HINTS
        assert all(hint.strip() for hint in exercise.hints)


@each_lesson
def test_every_lesson_has_predictions_and_an_explorer(lesson: Lesson):
    tags = [tag for cell in read_cells(SOURCES / f"{lesson.stem}.py") for tag in cell.tags]
    assert "prediction" in tags
    assert "explorer" in tags or lesson.name == "capstone"


@each_lesson
def test_prose_has_no_filler_and_no_exclamation_marks(lesson: Lesson):
    for cell in read_cells(SOURCES / f"{lesson.stem}.py"):
        if cell.kind == "markdown" and cell.id != "people-say-more":  # what people say is theirs
            text = " ".join(cell.text.lower().split())
            assert not [word for word in WORDS_OF_FILLER if f" {word} " in text], cell.id
            assert "!" not in text.replace("![", ""), cell.id


@each_lesson
def test_text_names_no_lesson_that_is_not_written(lesson: Lesson):
    written = {lesson.number for lesson in LESSONS}
    for cell in read_cells(SOURCES / f"{lesson.stem}.py"):
        named = re.findall(r"[Ll]essons? (\d\d)(?:(?: and |, | to )(\d\d))?", " ".join(cell.text.split()))
        assert {number for pair in named for number in pair if number} <= written, cell.id


@pytest.mark.parametrize("path", EDITIONS)
def test_stored_outputs_name_no_folder_of_the_machine_that_built_them(path):
    text = path.read_text(encoding="utf-8")
    for place in (str(ROOT), "/tmp/", "/root/", "/home/", "site-packages"):
        assert place not in text, place


@pytest.mark.parametrize("path", EDITIONS)
def test_stored_outputs_need_no_widget_model(path):
    assert "application/vnd.jupyter.widget-view+json" not in path.read_text(encoding="utf-8")


@each_lesson
def test_reference_answers_pass_in_the_solutions_edition(lesson: Lesson):
    shown = _outputs(SOLUTIONS / f"{lesson.stem}.ipynb")
    for exercise in exercises_of(lesson):
        assert f"{exercise.title}: passed" in shown[exercise.id]


@each_lesson
def test_blanks_are_not_attempted_and_clinics_fail_visibly_in_the_learner_edition(lesson: Lesson):
    shown = _outputs(NOTEBOOKS / f"{lesson.stem}.ipynb")
    for exercise in exercises_of(lesson):
        verdict = "not repaired yet" if exercise.kind == CLINIC else "not attempted yet"
        assert f"{exercise.title}: {verdict}" in shown[exercise.id]


def _outputs(path) -> dict[str, str]:
    """Return the text output of each exercise's cell by exercise id."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {
        cell["metadata"]["exercise"]: "".join(
            "".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"]
        )
        for cell in cells
        if "exercise" in cell["metadata"]
    }
