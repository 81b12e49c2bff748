"""The clinics and the doctor: what a clinic item says about the doctor is what the doctor says about its program."""

from __future__ import annotations

import contextlib
import io

import pytest

from course_utils import doctor, sources
from course_utils.doctor.findings import RULES
from course_utils.doctor.rules import load as load_rules
from course_utils.exercises.reference import answer_of
from course_utils.exercises.registry import CLINIC, all_exercises
from course_utils.exercises.render import outcome_card
from course_utils.exercises.verdicts import PASSED, Outcome
from tests.doctor.clinics import SETUPS
from tests.doctor.programs import load as load_programs

ITEMS = [exercise for exercise in all_exercises() if exercise.kind == CLINIC]
FOUND = [item for item in ITEMS if item.finding]
# The programs are sick: what PyTorch warns about in them is a symptom, not news.
pytestmark = pytest.mark.filterwarnings("ignore")


def findings(item, code) -> set[str]:
    """Return the codes that the doctor reports for a clinic's program, in the version that ``code`` gives."""
    cell = sources.answer_cell(item.id)
    with contextlib.redirect_stdout(io.StringIO()):  # some cells print a symptom
        program = answer_of(item.id, sources.setup_code(cell.path), code(cell))
        return {finding.code for finding in doctor.examine(**SETUPS[item.id](program)).findings}


@pytest.mark.parametrize("exercise", all_exercises(), ids=lambda exercise: exercise.id)
def test_a_clinic_item_has_a_finding_or_says_why_not(exercise):
    assert bool(exercise.finding) + bool(exercise.unseen) == (exercise.kind == CLINIC)
    assert exercise.unseen == "" or exercise.unseen.endswith(".")


@pytest.mark.parametrize("item", FOUND, ids=lambda item: item.id)
def test_the_doctor_knows_the_code(item):
    load_rules()
    assert item.finding in RULES


@pytest.mark.parametrize("item", [item for item in FOUND if item.id in SETUPS], ids=lambda item: item.id)
def test_the_doctor_finds_the_fault_in_the_clinic_s_program_and_not_in_the_repaired_one(item):
    assert item.finding in findings(item, sources.learner_code)
    assert item.finding not in findings(item, sources.reference_code)


@pytest.mark.parametrize("item", [item for item in FOUND if item.id not in SETUPS], ids=lambda item: item.id)
def test_a_clinic_s_program_that_is_no_set_up_has_its_fault_in_one_of_the_doctor_s_programs(item):
    assert item.finding in {program.code for program in load_programs()}  # examined in test_programs


def test_no_set_up_is_left_without_an_item():
    assert set(SETUPS) <= {item.id for item in FOUND}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.id)
def test_a_passed_item_says_what_the_doctor_makes_of_it(item):
    rows = dict(outcome_card(item, Outcome(item.id, PASSED, ("works",))).rows)
    assert (item.finding or item.unseen) in rows["doctor"]
    assert ("docs/doctor.md" in rows["doctor"]) == bool(item.finding)
