"""How far a run is: lines, or bars on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

from course_utils.tools.live import Bars, Lines, live_progress, result_line
from course_utils.tools.outcomes import Outcome
from course_utils.tools.supervision import Job
from tests.tools.running import write_notebook


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
