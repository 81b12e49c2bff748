"""What a run leaves behind: a page for people, JSON for programs, JUnit XML for CI."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from course_utils.tools.live import Bars, Lines, live_progress, result_line
from course_utils.tools.outcomes import CellFacts, Ending, Outcome, exit_text, judge, marked_notebook
from course_utils.tools.report import RunReport, coloured_html, plain, report_html, write_report
from course_utils.tools.supervision import Job
from tests.tools.running import write_notebook

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


def notebook(*statuses: str | None) -> dict:
    """Return a notebook as saved: a cell for each status that papermill noted, None for a cell it never saw."""
    cells = [
        {
            "cell_type": "code",
            "id": f"c{index}",
            "source": ["x = ", "1"],
            "metadata": {"papermill": {"status": status}} if status else {},
            "execution_count": index + 1 if status == "completed" else None,
            "outputs": [],
        }
        for index, status in enumerate(statuses)
    ]
    return {"cells": [*cells, {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "end"}]}


def verdict(ending: Ending, *statuses: str | None) -> tuple[str, str | None]:
    seen = judge(ending, notebook(*statuses), name="n", edition="learner")
    return seen.status, seen.error


def test_a_notebook_passes_only_if_every_cell_ran():
    assert verdict(Ending(how="complete"), "completed", "completed") == ("passed", None)
    assert verdict(Ending(how="complete"), "completed", "pending", None) == (
        "failed",
        "2 cells never ran (2, 3), although no error was reported.",
    )


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending(how="error", cell=1, ename="E", evalue="no"), ("failed", "Cell 2 (id 'c1') raised E: no.")),
        (Ending(how="error", cell=1, ename="E"), ("failed", "Cell 2 (id 'c1') raised E.")),
        (Ending(how="start", facts="no ipykernel"), ("died", "The kernel did not start: no ipykernel")),
        (
            Ending(how="dead", cell=1, exit_code=-9),
            ("died", "The kernel ended in cell 2 (id 'c1'): signal SIGKILL; often the machine was out of memory."),
        ),
        (
            Ending(how="notebook-timeout", cell=0, facts="15 min"),
            ("timeout", "The notebook ran longer than 15 min; it was in cell 1 (id 'c0')."),
        ),
        (Ending(how="interrupted"), ("skipped", "The run was interrupted in an early stage.")),
    ],
)
def test_each_ending_has_a_status_and_a_sentence(ending, expected):
    assert verdict(ending, "completed", "failed") == expected


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (0, "exit status 0"),
        (-11, "SIGSEGV; compiled code crashed"),
        (-15, "SIGTERM"),
        (-99, "number 99"),
        (None, "not"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code, part):
    assert part in exit_text(code)


def test_a_notebook_that_was_never_saved_has_an_outcome_too():
    seen = judge(Ending(how="lost", facts="signal SIGKILL"), None, name="n", edition="learner")
    assert (seen.status, seen.notebook, seen.cell) == ("died", None, None)


def test_a_failed_notebook_says_so_at_its_top_and_at_the_cell():
    before = notebook("completed", "failed")
    seen = judge(Ending(how="error", cell=1, ename="E", evalue="no"), before, name="n", edition="learner")
    cells = marked_notebook(before, seen, 1)["cells"]
    assert [cell["id"] for cell in cells] == ["run-error", "c0", "run-error-cell", "c1", "m"]
    assert "Cell 2 (id 'c1') raised E: no." in cells[0]["source"][0]
    assert all("papermill-error-cell-tag" in cells[index]["metadata"]["tags"] for index in (0, 2))
    assert len(before["cells"]) == 3


def job(tmp_path: Path) -> Job:
    source = write_notebook(tmp_path / "n.ipynb", "1")
    return Job(name="n", edition="learner", source=source, output=tmp_path / "o", cwd=tmp_path, parameters={})


PASSED = Outcome(name="n", edition="learner", status="passed", seconds=1.25, cells_run=3, peak_mib=100.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_progress_is_plain_lines(tmp_path):
    stream = io.StringIO()
    with live_progress([job(tmp_path)], stream=stream) as live:
        assert isinstance(live, Lines)
        live.started(job(tmp_path))
        live.cell(job(tmp_path), 1)
        live.finished(job(tmp_path), PASSED)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("passed       1.2 s  3 cells, 100 MiB  [1/1]")


def test_on_a_terminal_progress_counts_cells_and_keeps_a_line(tmp_path):
    stream = Terminal()
    with live_progress([job(tmp_path)], stream=stream) as live:
        assert isinstance(live, Bars)
        live.started(job(tmp_path))
        live.cell(job(tmp_path), 1)
        assert live.progress.tasks[0].total == 3
        live.cell(job(tmp_path), 2)
        assert live.progress.tasks[0].completed == 1
        live.finished(job(tmp_path), PASSED)
    assert result_line(PASSED) in stream.getvalue()


def test_progress_can_be_turned_off(tmp_path, capsys):
    with live_progress([job(tmp_path)], enabled=False) as live:
        live.started(job(tmp_path))
        live.cell(job(tmp_path), 1)
        live.finished(job(tmp_path), PASSED)
        live.note("nothing")
    assert capsys.readouterr() == ("", "")
