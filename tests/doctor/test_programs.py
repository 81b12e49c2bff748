"""The doctor on small programs: each fault is found under its code, and healthy programs hear nothing but notes."""

from __future__ import annotations

import pytest
import torch

from course_utils import doctor
from course_utils.doctor import deadline
from course_utils.doctor.findings import ERROR, RULES, WARNING
from course_utils.doctor.rules import load as load_rules
from tests.doctor.programs import Program, load

PROGRAMS = load()
each = pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
# The programs are sick: what PyTorch warns about in them is a symptom, not news.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found must not depend on how busy the machine is; test_bounds is about time."""
    monkeypatch.setattr(deadline, "BASE_S", 30.0)


@each
def test_the_report_is_right(program: Program):
    report = doctor.examine(**program.make())
    loud = [finding for finding in report.findings if finding.severity in (ERROR, WARNING)]
    if program.code is None:
        assert not loud, report
        return
    found = {finding.code: finding.severity for finding in report.findings}
    assert program.code in found, report
    if program.severity is None:
        assert found[program.code] in (ERROR, WARNING)
    else:
        assert found[program.code] == program.severity
    finding = next(finding for finding in report.findings if finding.code == program.code)
    assert finding.evidence.get("kind", "") == program.kind or not program.kind, report
    text = f"{finding.message} {finding.fix}"
    assert all(word in text for word in program.words), report
    assert program.fix in finding.fix, report
    assert {name: finding.evidence.get(name) for name in program.evidence} == program.evidence


@pytest.mark.parametrize("program", PROGRAMS[::7], ids=[program.name for program in PROGRAMS[::7]])
def test_the_patient_is_left_as_it_was(program: Program):
    parts = program.make()
    model = parts["model"]
    if not isinstance(model, torch.nn.Module):
        pytest.skip("no module")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    grads = [parameter.grad is None for parameter in model.parameters()]
    draws = torch.get_rng_state()
    doctor.examine(**parts)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value.nan_to_num(), after[name].nan_to_num()) for name, value in before.items())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.grad is None for parameter in model.parameters()] == grads
    assert torch.equal(torch.get_rng_state(), draws)


def test_every_rule_is_documented_and_its_lesson_exists():
    from course_utils.lessons import LESSONS

    load_rules()
    stems = {lesson.stem for lesson in LESSONS}
    for rule in RULES.values():
        assert rule.lesson in stems, rule.code
        assert all((rule.title, rule.looks, rule.quiet, rule.fix)), rule.code
