"""The catalogue of texts: stable ids, a hash for each paragraph, and what a translation must look at."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from course_utils.claims.ledger import all_claims
from course_utils.exercises.registry import all_exercises
from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS
from course_utils.sources import read_cells
from course_utils.tools import texts

MODULE = '''"""A module about hints."""

LABEL = "one word"
KEY = "code"


def check_one(answer):
    """Exercise lesson.one: a number."""
    yield is_true("is a number", True, hint=f"Got {answer!r}, and a number is wanted.")
    raise UsageError("no learner reads this")


EXERCISES = (Exercise(id="lesson.one", title="A first one", hints=("The idea.", "The tools it takes.", "1 + 1")),)


@PAGE.claim("T001", "People say this.", right="It is that.", rule=lambda seen: TRUE)
def claim_of_this():
    return {"what was seen": 1}


@rule("loop.fault", ERROR, "05_training", title="It is wrong.", fix="do it")
def fault(examination):
    yield Seen("It was seen.")
'''


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return texts.texts()


def test_every_cell_title_and_hint_is_in_it(found):
    for lesson in LESSONS:
        assert found[f"lesson.{lesson.stem}.title"] == lesson.title
        for cell in read_cells(NOTEBOOKS / "source" / f"{lesson.stem}.py"):
            assert (f"cell.{lesson.stem}.{cell.id}" in found) == (cell.kind == "markdown")
    said = set(found.values())
    for exercise in all_exercises():
        assert found.get(f"exercise.{exercise.id}.title", exercise.title) == exercise.title
        assert [hint for hint in exercise.hints if " " in hint and hint not in said] == []
    assert [claim.id for claim in all_claims() if found.get(f"claim.{claim.id}.sentence") != claim.sentence] == []


def test_strings_of_a_module_are_named_by_what_they_belong_to():
    assert texts.module_texts("exercises.lesson", MODULE) == {
        "message.exercises.lesson.1": "one word",
        "message.exercises.lesson.check_one.1": "is a number",
        "message.exercises.lesson.check_one.2": "Got {answer}, and a number is wanted.",
        "exercise.lesson.one.title": "A first one",
        "exercise.lesson.one.hints.1": "The idea.",
        "exercise.lesson.one.hints.2": "The tools it takes.",
        "claim.T001.sentence": "People say this.",
        "claim.T001.right": "It is that.",
        "message.exercises.lesson.claim_of_this.1": "what was seen",
        "finding.loop.fault.title": "It is wrong.",
        "finding.loop.fault.fix": "do it",
        "message.exercises.lesson.fault.1": "It was seen.",
    }


def test_words_in_pictures_are_found_where_they_are_drawn():
    source = """
axes.set(xlabel="step", ylabel="loss (nats)", ylim=(0, 1))
axes.plot(steps, losses, "k--", label="training" if first else f"round {number}")
axes.legend(["all", "some"], loc="lower right")
axes.text(0, 1, "10", ha="center")
show(figure, "The loss " "falls.")
check("tensors.energy", energy)
other(title="no picture")
"""
    found = texts.picture_texts(source)
    assert sorted(found) == ["The loss falls.", "all", "loss (nats)", "round {number}", "some", "step", "training"]


def test_no_picture_of_a_lesson_has_words_without_a_key(found):
    words = set(found.values())
    for lesson in LESSONS:
        for cell in read_cells(NOTEBOOKS / "source" / f"{lesson.stem}.py"):
            captions = (
                re.findall(r'^show\(\w+, "([^"]+)"\)', cell.text, flags=re.MULTILINE) if cell.kind == "code" else []
            )
            assert [caption for caption in captions if caption not in words] == []
    for axis in ("learning rate", "loss (nats)", "peak (MiB)"):
        assert axis in words


def test_a_paragraph_has_one_hash_however_its_lines_are_broken():
    assert texts.hashes("One two\nthree.\n\nFour.") == texts.hashes("One two three.\n\n\nFour.\n")
    assert len(texts.hashes("Text:\n\n```python\na = 1\n\nb = 2\n```\n\nAfter.")) == 3
    assert texts.hashes("```\na\n```") != texts.hashes("```\n a\n```")


def test_a_translation_is_told_what_to_look_at():
    now = {"a": ["1", "2"], "b": ["3"], "c": ["4", "5"], "d": ["6"]}
    translated = {"a": ["1", "2"], "b": ["0"], "c": ["5", "4"], "old": ["7"]}
    assert texts.stale(translated, now) == {
        "b": "paragraph 1 changed",
        "c": "paragraphs moved or went",
        "d": "new",
        "old": "gone",
    }


def test_build_writes_it_once(tmp_path):
    (tmp_path / "source").mkdir()
    shutil.copy(NOTEBOOKS / "source" / "00_start.py", tmp_path / "source")
    assert texts.write_catalogue(tmp_path)
    assert not texts.write_catalogue(tmp_path)
    stored = json.loads((tmp_path / "source" / "texts.json").read_text(encoding="utf-8"))
    assert "cell.00_start.title" in stored
    assert not any(id.startswith("cell.01_tensors") for id in stored)
