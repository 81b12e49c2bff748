"""Every known mistake leads to a rule that exists, or is listed as one that can't be seen."""

from __future__ import annotations

import pytest

from course_utils.doctor.findings import RULES
from course_utils.doctor.limits import FOUND, LIMITS
from course_utils.doctor.rules import load
from course_utils.lessons import LESSONS
from course_utils.tools import checkup


@pytest.mark.parametrize("limit", LIMITS, ids=[limit.fault for limit in LIMITS])
def test_a_limit_is_complete_and_on_the_page(limit):
    assert limit.lesson in {lesson.stem for lesson in LESSONS}
    assert limit.reason.endswith(".")
    assert limit.instead
    page = checkup.PAGE.read_text(encoding="utf-8")
    assert all(text in page for text in (limit.fault, limit.reason, limit.instead))


def test_known_mistakes_lead_to_rules_that_exist():
    load()
    named = {code for theme in FOUND.values() for codes in theme.values() for code in codes}
    assert named <= set(RULES), named - set(RULES)


def test_no_fault_is_listed_twice():
    faults = [limit.fault for limit in LIMITS] + [fault for theme in FOUND.values() for fault in theme]
    assert len(set(faults)) == len(faults)
