"""Faults of runners and graders that people reported: each is handled, and this is where its test stands."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from course_utils.exercises.judge import evaluate
from course_utils.exercises.reference import answer_of, reference_program
from course_utils.exercises.registry import find_exercise
from course_utils.paths import ROOT
from course_utils.tools.outcomes import Ending, judge
from course_utils.tools.runner import RunOptions, run_course
from tests.tools.running import write_notebook

HERE = "tests/tools/test_reported_faults.py"
RUNNER, PLAN, GRADE = "tests/tools/test_runner.py", "tests/tools/test_plan.py", "tests/tools/grading/test_grade.py"
JUDGE, OUTPUTS = "tests/exercises/test_judge.py", "tests/tools/test_outputs.py"

# The case's id and what happened -> the tests that hold it off.
REPORTED: dict[str, tuple[tuple[str, str], ...]] = {
    "R001 spawned workers can't find a class of the notebook": (
        (HERE, "test_a_class_that_spawned_processes_cannot_find_is_named_with_the_remedy"),
    ),
    "R003 checks at the end see a name that was used again": (
        (GRADE, "test_a_name_that_is_used_again_later_does_not_change_an_earlier_answer"),
    ),
    "R005 state of the grader leaks from one pass into the next": (
        (HERE, "test_the_same_answer_judged_again_gets_the_same_verdict"),
        (GRADE, "test_the_same_seed_gives_the_same_grade_and_cells_need_no_ids"),
    ),
    "R006 a hard-coded answer passes": ((GRADE, "test_no_marks_for"),),
    "R008 a verdict depends on the stream of random numbers": (
        (HERE, "test_an_answer_that_draws_once_more_is_right_all_the_same"),
        (JUDGE, "test_answers_that_draw_at_random_leave_every_generator_where_it_was"),
    ),
    "R010 an untouched copy of the cell wins": ((GRADE, "test_of_a_duplicated_cell_the_best_copy_counts"),),
    "R011 a deleted check is worth full marks": (
        (GRADE, "test_a_renamed_function_without_its_check_is_found"),
        (HERE, "test_an_exercise_whose_cells_are_gone_is_missing_and_earns_nothing"),
    ),
    "R013 the kernel starts in the runner's folder": (
        (RUNNER, "test_the_kernel_runs_in_the_folder_of_its_notebook"),
        (RUNNER, "test_the_working_folder_can_be_named"),
    ),
    "R015 errors are allowed everywhere because one is meant": (
        (HERE, "test_an_error_that_is_shown_on_purpose_hides_no_other"),
        (RUNNER, "test_each_fault_gets_its_status_and_a_sentence"),
    ),
    "R016 the notebook names its author's kernel": (
        (RUNNER, "test_the_kernel_is_this_interpreter_whatever_the_notebook_names"),
    ),
    "R018 a cell never ends": (
        (RUNNER, "test_a_cell_that_takes_too_long_is_interrupted_where_it_is"),
        (RUNNER, "test_a_cell_that_ignores_interrupts_is_killed_and_its_stack_is_shown"),
    ),
    "R020 parameters are overwritten by the notebook": (
        (PLAN, "test_a_notebook_without_a_parameters_cell_is_refused"),
        (RUNNER, "test_parameters_arrive_with_their_values"),
    ),
    "R021 an address in an output is a difference": (
        (OUTPUTS, "test_what_can_not_be_the_same_is_replaced"),
        ("tests/tools/test_compare.py", "test_what_varies_is_no_change"),
    ),
    "R023 what a child process prints later is lost": (
        (RUNNER, "test_what_a_process_of_an_earlier_cell_prints_is_not_lost_while_the_notebook_runs"),
        (RUNNER, "test_children_that_were_left_are_reported"),
    ),
    "R025 a magic swallows the error": ((RUNNER, "test_each_fault_gets_its_status_and_a_sentence"),),
}


@pytest.mark.parametrize("fault", REPORTED)
def test_every_reported_fault_has_its_tests(fault):
    for file, name in REPORTED[fault]:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (file, name)


SPAWNS = """
import multiprocessing
process = multiprocessing.get_context("spawn").Process(target=print, args=(Points(),))
process.start(); process.join()
if process.exitcode: raise RuntimeError("a worker exited unexpectedly")
"""


def test_a_class_that_spawned_processes_cannot_find_is_named_with_the_remedy(tmp_path):
    path = write_notebook(tmp_path / "n.ipynb", "class Points: pass", SPAWNS)
    options = RunOptions(lessons=(str(path),), device="cpu", out=tmp_path / "out", show_progress=False)
    report = run_course(options)
    (note,) = report.outcomes[0].notes
    assert "can't find Points, which a cell defines" in note
    assert "Move it to a .py file and import it, or use num_workers=0." in note
    assert note in report.summary()


def test_a_message_that_only_the_log_holds_is_noticed_too():
    ending = Ending(how="dead", log="AttributeError: Can't get attribute 'Points' on <module '__main__' (built-in)>")
    assert "Points" in judge(ending, None, name="n", edition="learner").notes[0]
    assert judge(Ending(how="dead", log="Can't get attribute"), None, name="n", edition="learner").notes == ()


def test_an_error_that_is_shown_on_purpose_hides_no_other(tmp_path):
    meant = "from course_utils import shows_error\nwith shows_error(ZeroDivisionError):\n    1 / 0"
    path = write_notebook(tmp_path / "n.ipynb", meant, "print(undefined_name)", "2")
    options = RunOptions(lessons=(str(path),), device="cpu", out=tmp_path / "out", show_progress=False)
    (seen,) = run_course(options).outcomes
    assert (seen.status, seen.cell.id) == ("failed", "c2")
    assert "NameError: name 'undefined_name' is not defined" in seen.error


ENERGY = find_exercise("tensors.energy")


def right_answer():
    return answer_of(ENERGY.id, *reference_program(ENERGY.id))


def test_the_same_answer_judged_again_gets_the_same_verdict():
    def wrong(images):
        return images.sum()

    for answer in (right_answer(), wrong):
        first, again = (evaluate(ENERGY, answer, 3) for _ in range(2))
        assert (first.state, first.message) == (again.state, again.message)
    assert evaluate(ENERGY, right_answer(), 3).passed, "a wrong answer in between changes nothing"


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_that_draws_once_more_is_right_all_the_same(seed):
    reference = right_answer()

    def draws(*words):
        torch.rand(1)
        return reference(*words)

    assert evaluate(ENERGY, draws, seed).passed


def test_an_exercise_whose_cells_are_gone_is_missing_and_earns_nothing(tmp_path: Path):
    from course_utils.tools.grading.answers import script_of
    from course_utils.tools.grading.grade import MISSING, _grade_of
    from course_utils.tools.grading.submissions import Submission
    from tests.tools.grading.class_of import FIRST, LESSON, notebook

    submission = notebook()
    submission["cells"] = [cell for cell in submission["cells"] if cell["metadata"].get("exercise") != FIRST]
    asked = {name for piece in script_of(submission, LESSON).pieces for name, _ in piece.answers}
    assert FIRST not in asked
    found = _grade_of(Submission("ada", LESSON, tmp_path / "n.ipynb"), "graded", {})
    item = next(item for item in found.exercises if item["id"] == FIRST)
    assert (item["state"], found.points, found.max_points) == (MISSING, 0, len(found.exercises))
