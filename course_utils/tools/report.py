"""Write down what came of a run: ``report.json`` for programs, ``junit.xml`` for CI, ``report.html`` for people."""

from __future__ import annotations

import html
import json
import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from course_utils import __version__
from course_utils.paths import write_text
from course_utils.text import plural, table
from course_utils.tools.outcomes import FAILED, PASSED, SKIPPED, STATUSES, CellFacts, Outcome

TEMPLATE = Path(__file__).with_name("report.html.j2")
# What decides about results: the course, the libraries that lessons use, the programs that run them.
PACKAGES = ("torch", "torchvision", "numpy", "matplotlib", "ipykernel", "papermill", "nbclient")
_ANSI = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[^\[])")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0 has no way to write these
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Everything about a run that has ended."""

    outcomes: tuple[Outcome, ...]
    versions: dict[str, str]
    device: str
    seed: int
    parameters: dict[str, Any] = field(default_factory=dict)
    started: str = ""  # local time with its offset
    seconds: float = 0.0
    jobs: int = 1  # notebooks at a time
    threads: int = 1  # per notebook
    interrupted: bool = False  # by Ctrl-C
    out: Path = Path()

    @property
    def ok(self) -> bool:
        """Whether every notebook ran to its end without an error."""
        return bool(self.outcomes) and all(outcome.ok for outcome in self.outcomes)

    def verdict(self) -> str:
        """Return the outcome in a few words: ``2 of 3 notebooks passed, 1 failed``."""
        counts = {status: sum(outcome.status == status for outcome in self.outcomes) for status in STATUSES}
        total = plural(len(self.outcomes), "notebook")
        if self.ok:
            return f"{total} passed"
        words = {"timeout": "ran out of time"}
        others = [
            f"{count} {words.get(status, status)}" for status, count in counts.items() if status != PASSED and count
        ]
        return f"{counts[PASSED]} of {total} passed, {', '.join(others)}"

    def summary(self) -> str:
        """Return the run as a table, the errors below it, and where to read more."""
        rows = [
            (o.name, o.status, f"{o.seconds:.1f}", f"{o.cpu_seconds:.1f}", f"{o.peak_mib:.0f}") for o in self.outcomes
        ]
        lines = [table(rows, ("notebook", "status", "seconds", "cpu s", "MiB")), ""]
        lines += [f"{outcome.name}: {outcome.error}" for outcome in self.outcomes if outcome.error]
        lines += [f"{outcome.name}: {note}" for outcome in self.outcomes for note in outcome.notes]
        lines += [f"{self.verdict()}. Report: {self.out / 'report.html'}"]
        if self.interrupted:
            lines += [f"Interrupted. `course run --resume {self.out}` goes on where this stopped."]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("outcomes", "out")}
        return {"notebooks": [_notebook_json(outcome, self.out) for outcome in self.outcomes], **facts, "ok": self.ok}


def _notebook_json(outcome: Outcome, out: Path) -> dict[str, Any]:
    return {**asdict(outcome), "notebook": _link(outcome, out), "traceback": plain(outcome.traceback)}


def _link(outcome: Outcome, out: Path) -> str | None:
    """Return where the executed notebook is, seen from the report."""
    return outcome.notebook.relative_to(out).as_posix() if outcome.notebook else None


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, the course and the packages that matter, without importing any."""
    versions = {"python": platform.python_version(), "course": __version__}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def write_report(report: RunReport) -> None:
    """Write ``report.json``, ``junit.xml`` and ``report.html`` into the run's folder, each whole or not at all."""
    write_text(report.out / "report.json", json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    write_text(report.out / "junit.xml", junit_xml(report))
    write_text(report.out / "report.html", report_html(report))


def plain(text: str) -> str:
    """Return text without terminal colours and other terminal commands."""
    return _OTHER_ANSI.sub("", _ANSI.sub("", text))


def coloured_html(text: str) -> str:
    """Return text with terminal colours as HTML; everything else in it is escaped."""
    parts, colour, is_bold, end = [], "", False, 0

    def add(piece: str) -> None:
        classes = " ".join(filter(None, [colour and f"ansi-{colour}", "ansi-bold" if is_bold else ""]))
        piece = html.escape(_OTHER_ANSI.sub("", piece))
        parts.append(f'<span class="{classes}">{piece}</span>' if classes and piece else piece)

    for match in _ANSI.finditer(text):
        add(text[end : match.start()])
        end = match.end()
        for number in _codes(match[1]):
            if number in (0, 39):
                colour = ""
            if number in (0, 22):
                is_bold = False
            if number == 1:
                is_bold = True
            if 30 <= number <= 37 or 90 <= number <= 97:
                colour = _COLOURS[number % 10]
    add(text[end:])
    return "".join(parts)


def _codes(text: str) -> Iterator[int]:
    """Yield the numbers of a colour command, without those of colours from a larger palette (38;5;N, 38;2;R;G;B)."""
    numbers = iter([int(code or 0) for code in text.split(";")])
    for number in numbers:
        if number in (38, 48):
            for _ in range(1 if next(numbers, 0) == 5 else 3):
                next(numbers, None)
        else:
            yield number


def junit_xml(report: RunReport) -> str:
    """Return the run as a JUnit test suite: a notebook is a test case, with its traceback if it has one."""
    counts = {
        "tests": len(report.outcomes),
        "failures": sum(outcome.status == FAILED for outcome in report.outcomes),
        "errors": sum(outcome.status in ("timeout", "died") for outcome in report.outcomes),
        "skipped": sum(outcome.status == SKIPPED for outcome in report.outcomes),
    }
    totals = {name: str(count) for name, count in counts.items()} | {"time": f"{report.seconds:.2f}"}
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "course run", "timestamp": report.started, **totals})
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"device": report.device, "seed": report.seed, **report.versions}
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=name, value=str(value))
    for outcome in report.outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname=outcome.edition, name=outcome.name, time=f"{outcome.seconds:.2f}"
        )
        if not outcome.ok:
            kind = {FAILED: "failure", SKIPPED: "skipped"}.get(outcome.status, "error")
            problem = ElementTree.SubElement(case, kind, message=_xml_text(outcome.error or ""), type=outcome.status)
            problem.text = _xml_text(_problem_text(outcome))
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _problem_text(outcome: Outcome) -> str:
    source = f"{_where(outcome.cell)}:\n{outcome.cell.source}\n\n" if outcome.cell else ""
    return source + plain(outcome.traceback)


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _where(cell: CellFacts) -> str:
    """Return which cell it is, in the words under which a reader finds it."""
    count = f", In [{cell.execution_count}]" if cell.execution_count is not None else ""
    return f"Cell {cell.number}{count}" + (f", id {cell.id}" if cell.id else "")


def report_html(report: RunReport) -> str:
    """Return the run as one page: the verdict, a line for each notebook, then every problem with its cell."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"where": _where}
    environment.filters |= {
        "link": lambda outcome: _link(outcome, report.out),
        "coloured": lambda text: Markup(coloured_html(text)),
    }
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    problems = [outcome for outcome in report.outcomes if not outcome.ok and outcome.status != SKIPPED]
    return template.render(report=report, problems=problems)
