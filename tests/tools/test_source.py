"""The rules of lesson sources, each broken once, and the notebooks made of them."""

from __future__ import annotations

import pytest

from course_utils.errors import SourceError, UsageError
from course_utils.paths import SOURCES
from course_utils.sources import exercise_cells, learner_code, read_cells, reference_code
from course_utils.tools.source import (
    agree_with_jupytext,
    check_source,
    find_source,
    insert_ids,
    make_editions,
    unlike_blanks,
)
from course_utils.tools.source_rules import MAX_CODE_LINES, TAGS
from tests.lesson_files import LESSON, SAMPLE, cell_of, copy_lesson, small_lesson

ANSWER = """# %% id="ex" tags=["exercise"] exercise="sample.ex"
def f(x):
    ### BEGIN SOLUTION
    return x
    ### END SOLUTION


check("sample.ex", f)"""
GIVEN_CHECK = "def check(name, answer): ..."


def lesson(tmp_path, *cells, setup=GIVEN_CHECK):
    return copy_lesson(tmp_path, small_lesson(*cells, setup=setup))


BROKEN = {  # what is written in the lesson's middle, and what the author is told
    "no id": ("# %%\nx = 1", "90_sample.py:12: this cell has no id."),
    "unfit id": ('# %% id="a b"\nx = 1', "cell 'a b' has an id that nbformat refuses."),
    "id used twice": ('# %% id="setup"\nx = 1', "90_sample.py:12: cell 'setup' has the id 'setup' of another cell."),
    "unknown tag": ('# %% id="a" tags=["exercize"]\nx = 1', "has the unknown tag 'exercize'."),
    "tag that graders misread": ('# %% id="a" tags=["raises-exception"]\n1 / 0', "unknown tag 'raises-exception'"),
    "tags on text": ('# %% [markdown] id="a" tags=["clinic"]\n# x', "is text, yet has tags."),
    "second parameters": ('# %% id="a" tags=["parameters"]\nSEED = 1', "there are 2 parameters cells."),
    "second setup": ('# %% id="a" tags=["setup"]\nimport os', "there are 2 setup cells."),
    "markers outside": (
        '# %% id="a"\n### BEGIN SOLUTION\n### END SOLUTION',
        "has solution markers, yet is no exercise.",
    ),
    "no solution": (ANSWER.replace("### BEGIN SOLUTION", "#").replace("### END SOLUTION", "#"), "without a solution."),
    "unbalanced": (ANSWER.replace("    ### END SOLUTION\n", ""), "never ends its SOLUTION block."),
    "clinic without program": (ANSWER.replace('["exercise"]', '["clinic"]'), "without a broken program."),
    "no exercise named": (ANSWER.replace(' exercise="sample.ex"', ""), "does not name its exercise."),
    "exercise without tag": ('# %% id="a" exercise="sample.a"\nx = 1', "names an exercise, yet has no such tag."),
    "other lesson": (ANSWER.replace("sample.ex", "tensors.ex"), "names an exercise of another lesson, 'tensors.ex'."),
    "no check": (ANSWER.replace('check("sample.ex", f)', "f(1)"), "does not end with its check."),
    "check of another": (ANSWER.replace('check("sample.ex"', 'check("sample.other"'), "does not end with its check."),
    "code after the check": (ANSWER + "\nprint(1)", "does not end with its check."),
    "syntax error": ('# %% id="a"\nx = 1\ny = (', "90_sample.py:14: cell 'a' is not plain Python"),
    "magic": ('# %% id="a"\n%time x = 1', "is not plain Python"),
    "stub that does not parse": (
        ANSWER.replace(
            "    ### END SOLUTION\n", "    ### END SOLUTION\n    ### BEGIN STUB\n    # if x\n    ### END STUB\n"
        ),
        "is not plain Python in the learner edition",
    ),
    "star import": ('# %% id="a"\nfrom math import *', "90_sample.py:13: cell 'a' imports * from math."),
    "nbval comment": ('# %% id="a"\n# NBVAL_IGNORE_OUTPUT\nx = 1', "tells nbval what to do in a comment."),
    "long cell": ('# %% id="a"\n' + "x = 1\n" * (MAX_CODE_LINES + 1), f"has {MAX_CODE_LINES + 1} lines of code."),
    "answer that needs more than setup": (
        '# %% id="a"\nfactor = 2\n\n' + ANSWER.replace("return x", "return factor * x"),
        "uses 'factor', which the setup cell does not make.",
    ),
    "code that needs an answer": (
        ANSWER + '\n\n# %% id="later"\nprint(f(3))',
        "cell 'later' uses 'f', which the exercise cell 'ex' makes.",
    ),
    "heading after the recap": ('# %% [markdown] id="a"\n# ## Recap\n\n# %% [markdown] id="b"\n# ## More', None),
}


@pytest.mark.parametrize(("cells", "told"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_rule_is_told_with_its_place_and_a_fix(tmp_path, cells, told):
    path = lesson(tmp_path, cells)
    if told is None:
        check_source(path)  # the recap at the end is the last heading still
        return
    with pytest.raises(SourceError) as caught:
        check_source(path)
    assert told in str(caught.value)
    assert caught.value.fix


def test_a_lesson_ends_with_its_recap(tmp_path):
    path = lesson(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + '\n# %% [markdown] id="b"\n# ## More\n', encoding="utf-8")
    with pytest.raises(SourceError, match="cell 'b' holds the last heading, which is no recap"):
        check_source(path)


def test_parameters_are_the_three_of_every_lesson(tmp_path):
    path = lesson(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("SEED = 0", "SEED = 1"), encoding="utf-8")
    with pytest.raises(SourceError, match="does not set the three parameters alone"):
        check_source(path)


def test_all_places_are_told_at_once(tmp_path):
    with pytest.raises(SourceError, match="breaks the format in 2 places") as caught:
        check_source(lesson(tmp_path, '# %% id="a" tags=["x"]\nx = 1', '# %% id="b"\nfrom os import *'))
    assert "cell 'a'" in str(caught.value)
    assert "cell 'b'" in str(caught.value)


def test_a_name_made_anew_after_an_exercise_may_be_used(tmp_path):
    check_source(lesson(tmp_path, ANSWER, '# %% id="later"\nf = abs', '# %% id="last"\nprint(f(-3))'))


def test_missing_ids_are_made_of_the_first_words_and_stay(tmp_path):
    path = lesson(
        tmp_path,
        "# %% [markdown]\n# ## Why strides?\n# Text.",
        '# %% tags=["prediction"]\nguess = ...',
        "# %%\nguess = ...",
    )
    assert insert_ids(path) == ["why-strides-text", "guess", "guess-6"]
    assert '# %% id="guess" tags=["prediction"]' in path.read_text(encoding="utf-8")
    assert '# %% [markdown] id="why-strides-text"' in path.read_text(encoding="utf-8")
    once = path.read_bytes()
    assert insert_ids(path) == []
    assert path.read_bytes() == once
    check_source(path)


def test_editions_differ_in_answers_only():
    made = make_editions(SAMPLE)
    learner, solutions = made["learner"], made["solutions"]
    assert [cell["id"] for cell in learner["cells"]] == [cell["id"] for cell in solutions["cells"]]
    different = {
        ours["id"] for ours, theirs in zip(learner["cells"], solutions["cells"], strict=True) if ours != theirs
    }
    assert different == {"exercise-double", "clinic-square"}
    assert cell_of(learner, "clinic-square")["source"].splitlines()[1:3] == [
        "    # the power is one too low",
        "    return number**1",
    ]
    assert cell_of(learner, "exercise-double")["metadata"] == {"exercise": "sample.double", "tags": ["exercise"]}
    assert cell_of(learner, "exercise-double")["source"].endswith('check("sample.double", double)')


@pytest.mark.parametrize("path", [SAMPLE, *sorted(SOURCES.glob("*.py"))], ids=lambda path: path.stem)
def test_the_learners_cell_is_the_reference_minus_its_marked_blanks(path):
    for cell in exercise_cells(path):
        assert unlike_blanks(cell, learner_code(cell), reference_code(cell)) == []
        assert learner_code(cell) != reference_code(cell)


def test_a_given_line_changed_in_one_edition_is_seen():
    cell = exercise_cells(SAMPLE)[0]
    learner, solutions = learner_code(cell), reference_code(cell)
    assert unlike_blanks(cell, learner.replace("number", "n"), solutions) == ["learner"]
    assert unlike_blanks(cell, learner, solutions + "\nprint(1)") == ["solutions"]
    assert unlike_blanks(cell, learner, solutions.replace("2 * number", "number + number")) == []


@pytest.mark.parametrize("path", [SAMPLE, *sorted(SOURCES.glob("*.py"))], ids=lambda path: path.stem)
def test_jupytext_reads_the_same_cells(path):
    agree_with_jupytext(path)


def test_text_that_jupytext_splits_otherwise_is_told(tmp_path):
    path = lesson(tmp_path, '# %% id="a"\ntext = """\n# %% id="b"\n"""')
    assert len(read_cells(path)) == 6
    with pytest.raises(SourceError):
        agree_with_jupytext(path)


def test_lessons_are_found_by_number_or_name():
    for name in ("90_sample", "90", "sample", "90_sample.ipynb", "SAMPLE"):
        assert find_source(name, LESSON) == SAMPLE
    with pytest.raises(UsageError, match="Did you mean '90_sample'"):
        find_source("sampel", LESSON)
    with pytest.raises(UsageError, match="No lesson source is called '²'"):
        find_source("²", LESSON)  # a digit to str.isdigit, not to int
    with pytest.raises(UsageError, match="no sources in this folder"):
        find_source("01", LESSON / "source")


def test_only_one_tag_excuses_a_cell_from_comparison():
    assert [tag for tag in TAGS if "nbval" in tag] == ["nbval-ignore-output"]
