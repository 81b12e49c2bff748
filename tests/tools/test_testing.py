"""``course test`` runs pytest as it is, in a world made for tests."""

from __future__ import annotations

import os

import pytest

from course_utils.paths import ROOT
from course_utils.tools import testing


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What was started, with its variables; the stand-in ends with the code in ``PYTEST_CODE``."""
    seen: list[tuple[list[str], dict[str, str]]] = []

    def wait_for(command: list[str], env: dict[str, str]) -> int:
        seen.append((command, env))
        return int(os.environ.get("PYTEST_CODE", "0"))

    monkeypatch.setattr(testing, "wait_for", wait_for)
    monkeypatch.chdir(ROOT)
    return seen


def test_arguments_go_to_pytest_as_they_are(calls):
    assert testing.run_tests(["-x", "-k", "a and b", "--durations=3"]) == 0
    assert calls[0][0][1:] == ["-m", "pytest", "-x", "-k", "a and b", "--durations=3"]


def test_paths_are_meant_from_the_folder_where_the_command_was_typed(calls, monkeypatch):
    monkeypatch.chdir(ROOT / "tests")
    testing.run_tests(["test_cli.py::test_ctrl_c_ends_with_130", "tests/test_paths.py"])
    assert calls[0][0][3:] == [f"{ROOT}/tests/test_cli.py::test_ctrl_c_ends_with_130", "tests/test_paths.py"]
    assert os.getcwd() == str(ROOT), "pytest runs in the checkout"


def test_faults_is_the_whole_campaign(calls):
    testing.run_tests(["--faults", "-x"])
    command, env = calls[0]
    assert command[3:] == ["-m", "faults", "-x"]
    assert env["COURSE_FAULTS"] == "whole"
    testing.run_tests()
    assert "COURSE_FAULTS" not in calls[1][1]


def test_browser_is_every_lesson_and_goes_with_faults(calls):
    testing.run_tests(["--browser"])
    testing.run_tests(["--browser", "--faults", "-x"])
    assert [command[3:] for command, _ in calls] == [["-m", "browser"], ["-m", "faults or browser", "-x"]]
    assert calls[0][1]["COURSE_BROWSER"] == "whole"
    assert "COURSE_FAULTS" not in calls[0][1]


@pytest.mark.parametrize(("pytests", "ours"), [(0, 0), (1, 1), (2, 130), (3, 2), (4, 2), (5, 1), (-9, 2)])
def test_pytests_exit_code_becomes_the_courses(pytests, ours, calls, monkeypatch):
    monkeypatch.setenv("PYTEST_CODE", str(pytests))
    assert testing.run_tests() == ours


def test_children_compute_on_one_thread_unless_a_person_said_otherwise():
    assert testing.environment_for_tests({})["OMP_NUM_THREADS"] == "1"
    assert testing.environment_for_tests({"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


def test_the_learners_progress_is_not_touched_and_this_checkout_is_the_one_tested():
    env = testing.environment_for_tests({"COURSE_PROGRESS": "/mine", "PYTHONPATH": f"/other{os.pathsep}{ROOT}"})
    assert env["COURSE_PROGRESS"] == "off"
    assert env["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/other"]


# The two parts of a whole run


def test_a_whole_run_has_two_parts_and_options_go_to_both(calls):
    assert testing.run_tests(["--durations=3"]) == 0
    assert [command[3:] for command, _ in calls] == [["--durations=3", *part] for part in testing.PARTS]


@pytest.mark.parametrize("words", [["-k", "stream"], ["-m", "slow"], ["-x"], ["tests/test_paths.py"], ["--junitxml=a"]])
def test_a_choice_of_tests_runs_once(words, calls):
    testing.run_tests(words)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((0, 1), 1), ((0, 5), 0), ((5, 0), 0), ((5, 5), 1), ((1, 5), 1)]
)
def test_a_red_part_is_a_red_run(codes, code, monkeypatch):
    todo = iter(codes)
    monkeypatch.setattr(testing, "wait_for", lambda command, env: next(todo))
    assert testing.run_tests() == code


@pytest.mark.parametrize(("pytests", "code"), [(2, 130), (4, 2), (-9, 2)])
def test_after_an_interrupt_the_second_part_does_not_start(pytests, code, calls, monkeypatch):
    monkeypatch.setenv("PYTEST_CODE", str(pytests))
    assert testing.run_tests() == code
    assert len(calls) == 1


def test_each_test_is_in_exactly_one_part():
    """``alone`` decides it, so the parts' choices must be each other's opposite."""
    first, second = (part[part.index("-m") + 1] for part in testing.PARTS)
    assert (first, second) == ("not alone", "alone")
