"""What a run leaves behind: a page for people, JSON for programs, JUnit XML for CI."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_utils.tools.outcomes import CellFacts, Outcome
from course_utils.tools.report import RunReport, coloured_html, plain, report_html, write_report

TRACEBACK = "\x1b[31m-----\x1b[39m\n\x1b[1;32mZeroDivisionError\x1b[0m <script>alert(1)</script>\x00"


@pytest.fixture
def report(tmp_path: Path) -> RunReport:
    """A run with one notebook of each status."""
    facts = {"edition": "learner", "seconds": 1.5, "cpu_seconds": 1.25, "peak_mib": 321.5, "cells_total": 5}
    cell = CellFacts(4, "divide", "a < b\n1 / 0", 3)
    outcomes = (
        Outcome(name="01_tensors", status="passed", cells_run=5, notebook=tmp_path / "01_tensors.ipynb", **facts),
        Outcome(
            name="05_training",
            status="failed",
            error="Cell 4 (id 'divide') raised ZeroDivisionError: division by zero.",
            cell=cell,
            traceback=TRACEBACK,
            cells_run=3,
            notebook=tmp_path / "05_training.ipynb",
            notes=("1 process was stopped.",),
            **facts,
        ),
        Outcome(name="06_slow", status="timeout", error="Cell 4 ran longer than 5 min.", cell=cell, **facts),
        Outcome(name="07_dead", status="died", error="The kernel ended.", cell=cell, **facts),
        Outcome(name="08_late", status="skipped", error="The run was interrupted.", **facts),
    )
    return RunReport(
        outcomes=outcomes,
        versions={"python": "3.11.7", "torch": "2.14.1"},
        device="cpu",
        seed=3,
        parameters={"SEED": 3},
        started="2026-12-01T10:00:00+00:00",
        seconds=12.0,
        jobs=2,
        out=tmp_path,
    )


def test_the_three_files_are_written(report, tmp_path):
    write_report(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "report.html", "report.json"]


def test_json_has_the_promised_shape(report, tmp_path):
    write_report(report)
    facts = json.loads((tmp_path / "report.json").read_text())
    assert {"notebooks", "versions", "device", "seed"} <= facts.keys()
    for entry in facts["notebooks"]:
        assert {"name", "edition", "status", "seconds", "cpu_seconds", "peak_mib", "error"} <= entry.keys()
    assert [entry["error"] is None for entry in facts["notebooks"]] == [True, False, False, False, False]


def test_json_says_in_which_cell_it_was_and_where_the_notebook_is(report):
    entry = report.to_json()["notebooks"][1]
    assert entry["cell"] == {"number": 4, "id": "divide", "source": "a < b\n1 / 0", "execution_count": 3}
    assert entry["notebook"] == "05_training.ipynb"
    assert "\x1b" not in entry["traceback"]


def test_junit_tells_failures_from_errors_and_skips(report, tmp_path):
    write_report(report)
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",
        "skipped": "1",
    }
    failure = root.find(".//testcase[@name='05_training']/failure")
    assert failure.get("message") == report.outcomes[1].error
    assert "Cell 4, In [3], id divide:\na < b\n1 / 0" in failure.text
    assert "ZeroDivisionError <script>" in failure.text  # as text, and without what XML can't hold


def test_html_says_at_once_what_failed_where_and_why(report):
    page = report_html(report)
    assert '<h1 class="">1 of 5 notebooks passed, 1 failed, 1 ran out of time, 1 died, 1 skipped</h1>' in page
    assert "Cell 4, In [3], id divide" in page
    assert "a &lt; b\n1 / 0" in page
    assert 'href="05_training.ipynb"' in page
    assert "1 process was stopped." in page


def test_html_escapes_what_notebooks_say(report):
    page = report_html(report)
    assert "<script>" not in page
    assert '<span class="ansi-green ansi-bold">ZeroDivisionError</span>' in page


def test_html_needs_nothing_from_elsewhere(report):
    page = report_html(report)
    assert "http" not in page
    assert "src=" not in page


def test_a_good_run_says_so(report):
    good = replace(report, outcomes=report.outcomes[:1])
    assert good.ok
    assert good.verdict() == "1 notebook passed"
    assert '<h1 class="good">1 notebook passed</h1>' in report_html(good)


def test_a_run_of_nothing_is_not_ok(report):
    assert not replace(report, outcomes=()).ok


def test_the_summary_has_a_line_for_each_notebook_the_errors_and_the_place(report, tmp_path):
    text = report.summary()
    assert "05_training  failed   1.5      1.2    322" in text
    assert "05_training: Cell 4 (id 'divide') raised ZeroDivisionError: division by zero." in text
    assert str(tmp_path / "report.html") in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain & simple", "plain &amp; simple"),
        ("\x1b[31mred\x1b[0m", '<span class="ansi-red">red</span>'),
        ("\x1b[1mbold\x1b[22m not", '<span class="ansi-bold">bold</span> not'),
        ("\x1b[38;5;31mpalette\x1b[39m", "palette"),
        ("\x1b[38;2;1;31;3mtrue colour\x1b[m", "true colour"),
        ("\x1b[2Jcleared", "cleared"),
    ],
)
def test_terminal_colours_become_html(text, expected):
    assert coloured_html(text) == expected
    assert "\x1b" not in plain(text)
