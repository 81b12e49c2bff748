"""Lesson sources: cells, blanks, and what the learner sees instead of the reference answer."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.errors import SourceError
from course_utils.sources import (
    Blank,
    exercise_cells,
    learner_code,
    read_cells,
    reference_code,
    segments,
    setup_code,
    solution_code,
)
from tests.lesson_files import LESSON, SAMPLE, small_lesson

EXERCISE = '# %% id="ex" tags=["exercise"] exercise="sample.ex"\n'


def cells_of(tmp_path, text):
    path = tmp_path / "90_sample.py"
    path.write_text(text, encoding="utf-8")
    return read_cells(path)


def answer_cell(tmp_path, code):
    return cells_of(tmp_path, EXERCISE + textwrap.dedent(code))[0]


def test_a_cell_knows_its_line_kind_tags_and_exercise():
    cells = {cell.id: cell for cell in read_cells(SAMPLE)}
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    cell = cells["exercise-double"]
    assert lines[cell.line - 1].startswith('# %% id="exercise-double"')
    assert (cell.kind, cell.tags, cell.exercise) == ("code", ("exercise",), "sample.double")
    assert cells["title"].kind == "markdown"
    assert cells["title"].text.startswith("# 90 A sample")


def test_a_blank_without_a_stub_becomes_one_line_at_its_indent(tmp_path):
    cell = answer_cell(
        tmp_path,
        """\
        def f(x):
            ### BEGIN SOLUTION
            y = x + 1
            return y
            ### END SOLUTION
        """,
    )
    assert learner_code(cell) == "def f(x):\n    ...  # your code here"
    assert reference_code(cell) == "def f(x):\n    y = x + 1\n    return y"


def test_a_stub_is_uncommented_and_keeps_its_own_indentation_and_comments(tmp_path):
    cell = answer_cell(
        tmp_path,
        """\
        ### BEGIN SOLUTION
        x = 1
        ### END SOLUTION
        ### BEGIN STUB
        # if True:
        #     x = 2
        #
        # # a comment for the learner
        ### END STUB
        print(x)
        """,
    )
    assert learner_code(cell) == "if True:\n    x = 2\n\n# a comment for the learner\nprint(x)"
    assert reference_code(cell) == "x = 1\nprint(x)"


def test_a_cell_can_have_several_blanks(tmp_path):
    cell = answer_cell(
        tmp_path,
        """\
        ### BEGIN SOLUTION
        a = 1
        ### END SOLUTION
        ### BEGIN SOLUTION
        b = 2
        ### END SOLUTION
        ### BEGIN STUB
        # b = ...
        ### END STUB
        c = 3
        """,
    )
    assert [type(part) for part in segments(cell)] == [Blank, Blank, str]
    assert learner_code(cell) == "...  # your code here\nb = ...\nc = 3"


UNBALANCED = {
    "never closed": ("### BEGIN SOLUTION\nx = 1", "never ends its SOLUTION block", 2),
    "never opened": ("x = 1\n### END SOLUTION", "ends a SOLUTION block that is not open", 3),
    "crossed": ("### BEGIN SOLUTION\n### END STUB", "ends a STUB block that is not open", 3),
    "nested": ("### BEGIN SOLUTION\n### BEGIN SOLUTION", "opens a block inside a SOLUTION block", 3),
    "stub first": ("### BEGIN STUB\n# x\n### END STUB", "has a STUB block that follows no SOLUTION", 2),
    "stub after given code": (
        "### BEGIN SOLUTION\n### END SOLUTION\nx = 1\n### BEGIN STUB\n### END STUB",
        "has a STUB block that follows no SOLUTION",
        5,
    ),
    "stub not commented": (
        "### BEGIN SOLUTION\n### END SOLUTION\n### BEGIN STUB\nx = 1\n### END STUB",
        "has a stub line that is not a comment",
        5,
    ),
}


@pytest.mark.parametrize(("code", "message", "line"), UNBALANCED.values(), ids=UNBALANCED.keys())
def test_markers_out_of_order_are_named_with_their_line(tmp_path, code, message, line):
    with pytest.raises(SourceError) as caught:
        segments(answer_cell(tmp_path, code))
    assert f"90_sample.py:{line}: cell 'ex' {message}" in str(caught.value)
    assert caught.value.fix


UNREADABLE = {
    "title in the header": ('# %% A title id="x"\n', "this cell header can't be read"),
    "option nobody knows": ('# %% id="x" color="red"\n', "this cell header can't be read"),
    "no space": ('#%% id="x"\n', "this cell header can't be read"),
    "raw cell": ("# %% [raw]\n", "this cell header can't be read"),
    "code in text": ('# %% [markdown] id="x"\nx = 1\n', "a line of a markdown cell is not a comment"),
    "code before the first cell": ("x = 1\n# %%\n", "there is code before the first cell"),
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_percent_format_of_ours_is_refused(tmp_path, text, message):
    with pytest.raises(SourceError, match=message):
        cells_of(tmp_path, text)


def test_a_solution_is_the_reference_without_its_check():
    assert solution_code("sample.double", LESSON / "source") == (
        'def double(number: int) -> int:\n    """Return twice the number."""\n    return 2 * number\n'
    )


def test_every_solution_runs_after_the_setup_cell():
    for cell in exercise_cells(SAMPLE):
        namespace: dict[str, object] = {}
        exec(setup_code(SAMPLE), namespace)
        exec(solution_code(cell.exercise, SAMPLE.parent), namespace)
        assert callable(namespace[cell.exercise.partition(".")[2]])


def test_an_unknown_exercise_gets_the_closest_name():
    with pytest.raises(SourceError, match=r"Did you mean 'sample\.double'"):
        solution_code("sample.doubel", LESSON / "source")
    with pytest.raises(SourceError, match=r"no lesson for the exercise 'sampel\.double'"):
        solution_code("sampel.double", LESSON / "source")


def test_reading_sources_costs_no_heavy_import():
    code = "import sys, course_utils.sources; print({'torch', 'jupytext', 'nbformat', 'numpy'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


LINES = st.lists(st.sampled_from(["x = 1", "", "    y = 2", "# note", "print(x)"]), max_size=4)


@given(before=LINES, solution=LINES, stub=LINES, after=LINES)
def test_both_editions_keep_every_given_line(tmp_path_factory, before, solution, stub, after):
    commented = [f"# {line}" if line else "#" for line in stub]
    marked = ["### BEGIN SOLUTION", *solution, "### END SOLUTION", "### BEGIN STUB", *commented, "### END STUB"]
    text = small_lesson(EXERCISE + "\n".join([*before, *marked, *after, "check()"]))
    cell = cells_of(tmp_path_factory.mktemp("lesson"), text)[3]
    assert learner_code(cell).split("\n") == [*before, *stub, *after, "check()"]
    assert reference_code(cell).split("\n") == [*before, *solution, *after, "check()"]
