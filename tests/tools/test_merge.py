"""Carrying a learner's notebook over to a newer edition: what each side changed, and that nothing is lost."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.tools.merge import MSG_CONFLICT, digest, handed_out, merge, text_of


def cell(cell_id: str, text: str, kind: str = "code", **metadata) -> dict:
    made = {"cell_type": kind, "id": cell_id, "metadata": metadata, "source": text}
    return made | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def edition(*cells: dict) -> dict:
    cells = copy.deepcopy(list(cells))
    course = {"lesson": "01_tensors", "edition": "learner", "cells": handed_out(cells)}
    return {"cells": cells, "metadata": {"course": course}, "nbformat": 4, "nbformat_minor": 5}


OLD = edition(
    cell("title", "# A lesson", "markdown"),
    cell("one", "x = 1"),
    cell("exercise", "answer = ...\ncheck('a', answer)", exercise="tensors.a"),
    cell("end", "# The end", "markdown"),
)


def learner(**changes: str | None) -> dict:
    """Return OLD as a learner left it: cells with other texts; None deletes a cell."""
    mine = copy.deepcopy(OLD)
    mine["cells"] = [c for c in mine["cells"] if changes.get(c["id"], "") is not None]
    for c in mine["cells"]:
        c["source"] = changes.get(c["id"], c["source"])
    return mine


def newer(**changes: str | None) -> dict:
    """Return a newer edition with other texts for some cells; None leaves a cell out."""
    return edition(*learner(**changes)["cells"])


def texts(notebook: dict) -> dict[str, str]:
    return {c["id"]: text_of(c) for c in notebook["cells"]}


def test_answers_stay_and_new_text_comes_in():
    result = merge(learner(exercise="answer = 42\ncheck('a', answer)"), newer(title="# A better lesson"))
    assert texts(result.notebook)["title"] == "# A better lesson"
    assert texts(result.notebook)["exercise"].startswith("answer = 42")
    assert (result.renewed, result.kept, result.conflicts) == (["title"], ["exercise"], [])


def test_what_both_changed_stands_side_by_side_the_learners_in_its_place():
    result = merge(learner(one="x = 10  # mine"), newer(one="x = 2"))
    assert list(texts(result.notebook)) == ["title", "one", "one-new", "exercise", "end"]
    assert texts(result.notebook)["one"] == "x = 10  # mine"
    assert texts(result.notebook)["one-new"] == f"{MSG_CONFLICT}\n\n```python\nx = 2\n```"
    assert result.conflicts == ["one"]


def test_the_same_change_on_both_sides_is_no_conflict():
    result = merge(learner(one="x = 2"), newer(one="x = 2"))
    assert not result.changed


def test_the_second_time_nothing_happens():
    fresh = newer(one="x = 2", title="# New")
    first = merge(learner(one="x = 10", exercise="answer = 1"), fresh)
    second = merge(first.notebook, fresh)
    assert not second.changed
    assert texts(second.notebook) == texts(first.notebook)


def test_a_deleted_cell_stays_deleted_until_the_course_changes_it():
    assert "one" not in texts(merge(learner(one=None), newer(title="# New")).notebook)
    assert list(texts(merge(learner(one=None), newer(one="x = 2")).notebook)) == ["title", "one", "exercise", "end"]


def test_a_cell_that_the_course_dropped_goes_unless_the_learner_worked_in_it():
    assert "one" not in texts(merge(learner(), newer(one=None)).notebook)
    assert texts(merge(learner(one="x = 10"), newer(one=None)).notebook)["one"] == "x = 10"


def test_new_cells_come_where_the_course_has_them_below_the_learners_own():
    mine = learner()
    mine["cells"].insert(2, cell("my-note", "print(x)"))
    fresh = edition(OLD["cells"][0], OLD["cells"][1], cell("two", "y = 2"), *OLD["cells"][2:])
    assert list(texts(merge(mine, fresh).notebook)) == ["title", "one", "my-note", "two", "exercise", "end"]


def test_own_cells_move_with_the_cell_they_stand_below():
    mine = learner()
    mine["cells"].insert(2, cell("my-note", "print(x)"))
    title, one, exercise, end = OLD["cells"]
    assert list(texts(merge(mine, edition(title, exercise, one, end)).notebook)) == [
        "title", "exercise", "one", "my-note", "end",
    ]  # fmt: skip


def test_a_learner_who_moved_cells_keeps_their_order():
    mine = learner()
    mine["cells"].reverse()
    result = merge(mine, newer(one="x = 2"))
    assert list(texts(result.notebook)) == ["end", "exercise", "one", "title"]
    assert texts(result.notebook)["one"] == "x = 2"


def test_duplicated_cells_are_both_kept():
    mine = learner(exercise="answer = 1")
    mine["cells"].append(cell("exercise", "answer = 2  # second try", exercise="tensors.a"))
    result = merge(mine, newer())
    assert texts(result.notebook)["exercise"] == "answer = 1"
    assert "answer = 2  # second try" in texts(result.notebook).values()
    assert len(texts(result.notebook)) == len(result.notebook["cells"])


def test_cells_that_lost_their_ids_are_found_by_text_or_exercise():
    mine = learner(exercise="answer = 7")
    for c in mine["cells"]:
        del c["id"]
    mine["cells"].append({"cell_type": "code", "metadata": {}, "source": "mine = 1", "outputs": []})
    result = merge(mine, newer(title="# New"))
    assert list(texts(result.notebook)) == ["title", "one", "exercise", "end", "own"]
    assert texts(result.notebook)["title"] == "# New"


def test_an_old_notebook_without_a_base_loses_nothing():
    mine = learner(one="x = 10")
    del mine["metadata"]["course"]
    result = merge(mine, newer(title="# New"))
    assert texts(result.notebook)["one"] == "x = 10"
    assert "# New" in "".join(texts(result.notebook).values())
    assert result.notebook["metadata"]["course"]["cells"]


def test_line_ends_and_lists_of_lines_are_no_changes():
    mine = learner()
    mine["cells"][2]["source"] = ["answer = ...\r\n", "check('a', answer)\r\n"]
    assert not merge(mine, newer()).changed
    assert digest("a\r\nb \n") == digest("a\nb")


def test_neither_argument_is_changed():
    mine, fresh = learner(one="x = 10"), newer(one="x = 2")
    before = json.dumps([mine, fresh])
    merge(mine, fresh)
    assert json.dumps([mine, fresh]) == before


IDS = ["title", "one", "exercise", "end", "a", "b", "c"]
TEXTS = st.sampled_from(["t0", "t1", "t2", "t3"])


@st.composite
def histories(draw):
    """Draw an edition, what a learner made of it, and a newer edition."""
    ids = draw(st.permutations(IDS))
    old = edition(*(cell(cell_id, draw(TEXTS) + cell_id) for cell_id in ids[: draw(st.integers(1, 5))]))
    mine = copy.deepcopy(old)
    for c in mine["cells"]:
        if draw(st.booleans()):
            c["source"] = f"mine {draw(TEXTS)} {c['id']}"
    for number in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(mine["cells"])))
        copied = draw(st.booleans()) and mine["cells"]
        extra = copy.deepcopy(draw(st.sampled_from(mine["cells"]))) if copied else cell(f"own{number}", f"own {number}")
        mine["cells"].insert(place, extra)
    if draw(st.booleans()):
        mine["cells"] = draw(st.permutations(mine["cells"]))
    if mine["cells"] and draw(st.booleans()):
        mine["cells"].pop(draw(st.integers(0, len(mine["cells"]) - 1)))
    new_ids = draw(st.permutations(IDS))[: draw(st.integers(1, 6))]
    fresh = edition(*(cell(cell_id, draw(TEXTS) + cell_id) for cell_id in new_ids))
    return old, mine, fresh


@settings(max_examples=150, deadline=None)
@given(histories())
def test_whatever_both_did_nothing_is_lost_and_once_is_enough(history):
    old, mine, fresh = history
    before = texts(old)
    result = merge(mine, fresh)
    merged = list(texts(result.notebook).values())
    assert len(texts(result.notebook)) == len(result.notebook["cells"]), "ids are unique"
    written = [text_of(c) for c in mine["cells"] if text_of(c) != before.get(c["id"])]
    assert all(text in merged for text in written), "the learner's work is there"
    alive = {c["id"] for c in mine["cells"]}
    for cell_id, text in texts(fresh).items():
        was_deleted = cell_id in before and cell_id not in alive and before[cell_id] == text
        if not was_deleted and not (cell_id in before and text == before[cell_id]):
            assert any(text in other for other in merged), "the course's news are there"
    again = merge(result.notebook, fresh)
    assert not again.changed
    assert list(texts(again.notebook).values()) == merged


@pytest.mark.parametrize("text", ["a ``` b", "plain"])
def test_code_with_backticks_stays_readable_in_a_note(text):
    note = texts(merge(learner(one="mine"), newer(one=text)).notebook)["one-new"]
    fence = note.split("\n\n", 1)[1].splitlines()[0].removesuffix("python")
    assert fence not in text
