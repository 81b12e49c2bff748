"""What the doctor says: findings, and the rules that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be.

    Args:
        code: stable name, theme and fault, such as ``loop.no-zero-grad``.
        severity: ``error`` (certain, and training suffers), ``warning`` (certain, the harm depends), ``note`` (it may
            be meant).
        message: what was seen, in one or two sentences with the reader's names, shapes and counts.
        evidence: the measured numbers by name.
        fix: a line of code, or the step to take.
        lesson: stem of the lesson that explains it.
    """

    code: str
    severity: str
    message: str
    evidence: dict[str, Any]
    fix: str
    lesson: str

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as ``doctor --json`` prints it."""
        return {
            "code": self.code, "severity": self.severity, "message": self.message, "evidence": self.evidence,
            "fix": self.fix, "lesson": self.lesson,
        }  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """What a rule's check yields; what is left out comes from the rule."""

    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Rule:
    """One fault that the doctor knows.

    Args:
        code: of its findings.
        severity: of its findings, unless a finding says otherwise.
        title: the fault, as a sentence.
        looks: what is observed.
        quiet: which healthy programs look alike, and why they pass.
        fix: the repair, a line of code where one is enough.
        lesson: stem of the lesson that teaches it.
        check: yields what it saw in an examination.
        pitfalls: names of the pitfalls that it covers, for the documentation.
    """

    code: str
    severity: str
    title: str
    looks: str
    quiet: str
    fix: str
    lesson: str
    check: Callable[[Examination], Iterable[Seen]]

    def findings(self, examination: Examination) -> list[Finding]:
        """Return the findings of this rule in an examination."""
        return [self.finding(seen) for seen in self.check(examination)]

    def finding(self, seen: Seen) -> Finding:
        """Complete what was seen with what the rule knows."""
        return Finding(
            self.code,
            seen.severity or self.severity,
            seen.message,
            dict(seen.evidence),
            seen.fix or self.fix,
            self.lesson,
        )


RULES: dict[str, Rule] = {}  # by code; filled by the modules of course_utils.doctor.rules


def rule(
    code: str, severity: str, lesson: str, *, title: str, looks: str, quiet: str, fix: str
) -> Callable[[Callable[[Examination], Iterable[Seen]]], Callable[[Examination], Iterable[Seen]]]:
    """Enter the decorated check into the table of rules."""

    def enter(check: Callable[[Examination], Iterable[Seen]]) -> Callable[[Examination], Iterable[Seen]]:
        if code in RULES:
            raise ValueError(f"two rules are called {code!r}")
        RULES[code] = Rule(code, severity, title, looks, quiet, fix, lesson, check)
        return check

    return enter


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without repetitions: errors first, then warnings, then notes."""
    unique = {(finding.code, finding.message): finding for finding in findings}
    return sorted(unique.values(), key=lambda finding: SEVERITIES.index(finding.severity))
