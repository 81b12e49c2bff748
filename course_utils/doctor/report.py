"""The doctor's report: text for a terminal, HTML in a notebook, JSON for programs."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass
from typing import Any

from course_utils.doctor.findings import ERROR, NOTE, WARNING, Finding
from course_utils.text import plural

WIDTH = 100
_MARK = {ERROR: "✗", WARNING: "!", NOTE: "i"}
_COLOUR = {ERROR: "#b3261e", WARNING: "#8a5a00", NOTE: "#41576b"}


@dataclass(frozen=True)
class Report:
    """What an examination found.

    Args:
        findings: the worst first.
        seconds: how long the examination took.
        remarks: what the doctor could not look at, in sentences.
    """

    findings: tuple[Finding, ...]
    seconds: float
    remarks: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether there is neither an error nor a warning; notes don't count."""
        return not self.errors and not self.warnings

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def warnings(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == WARNING]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == NOTE]

    def to_dict(self) -> dict[str, Any]:
        """Return what ``doctor --json`` prints."""
        return {
            "findings": [finding.to_dict() for finding in self.findings],
            "seconds": round(self.seconds, 3),
            "remarks": list(self.remarks),
        }

    @property
    def headline(self) -> str:
        """The report in one line."""
        if not self.findings:
            return "Nothing wrong was found."
        counts = [(self.errors, "error"), (self.warnings, "warning"), (self.notes, "note")]
        return ", ".join(plural(len(found), noun) for found, noun in counts if found) + "."

    def __str__(self) -> str:
        lines = [f"{self.headline} ({self.seconds:.1f} s)"]
        for finding in self.findings:
            lines += ["", finding_text(finding)]
        lines += ["", *self.remarks] if self.remarks else []
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{html.escape(self.headline)}</strong> ({self.seconds:.1f} s)</p>"]
        parts += [card(finding) for finding in self.findings]
        parts += [f"<p><small>{html.escape(remark)}</small></p>" for remark in self.remarks]
        return f'<section aria-label="Report of the training doctor">{"".join(parts)}</section>'


def finding_text(finding: Finding) -> str:
    """Return a finding in lines for a terminal."""
    lines = [f"{_MARK[finding.severity]} {finding.severity} {finding.code}", *_wrapped(finding.message, "  ")]
    if finding.evidence:
        lines += _wrapped(evidence_text(finding.evidence), "  seen:   ")
    return "\n".join([*lines, *_wrapped(finding.fix, "  fix:    "), f"  lesson: {finding.lesson}"])


def evidence_text(evidence: dict[str, Any]) -> str:
    """Return evidence in one line: names in words, numbers with at most four digits that count."""
    return "; ".join(f"{name.replace('_', ' ')}: {_value_text(value)}" for name, value in evidence.items())


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"({_value_text(item)})" if isinstance(item, (list, tuple)) else _value_text(item)
                         for item in value)  # fmt: skip
    return str(value)


def _wrapped(text: str, first: str) -> list[str]:
    lines: list[str] = []
    for number, line in enumerate(text.split("\n")):
        indent = first if number == 0 else " " * len(first)
        lines += textwrap.wrap(
            line, WIDTH, initial_indent=indent, subsequent_indent=" " * len(first), break_long_words=False
        ) or [indent.rstrip()]
    return lines


def card(finding: Finding) -> str:
    """Return a finding as HTML for a notebook."""
    colour = _COLOUR[finding.severity]
    rows = [("seen", html.escape(evidence_text(finding.evidence)))] if finding.evidence else []
    rows += [("fix", f"<code style='white-space: pre-wrap'>{html.escape(finding.fix)}</code>")]
    rows += [("lesson", html.escape(finding.lesson))]
    table = "".join(
        f"<div style='margin-top:2px'><span style='display:inline-block;min-width:4em'>{name}</span> {text}</div>"
        for name, text in rows
    )
    return (
        f"<div style='border-left:4px solid {colour};padding:4px 10px;margin:8px 0'>"
        f"<div><strong style='color:{colour}'>{_MARK[finding.severity]} {finding.severity}</strong> "
        f"<code>{html.escape(finding.code)}</code></div>"
        f"<div>{html.escape(finding.message)}</div>{table}</div>"
    )
