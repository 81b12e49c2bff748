"""Say how far a run is: bars that move on a terminal, a line per notebook elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from course_utils.text import plural
from course_utils.tools.outcomes import Outcome, code_cells

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from course_utils.tools.supervision import Job


class Live:
    """Shows nothing; the others below show more."""

    def started(self, job: Job) -> None:
        """A notebook starts."""

    def cell(self, job: Job, number: int) -> None:
        """Its code cell of this number starts."""

    def finished(self, job: Job, outcome: Outcome) -> None:
        """It has ended."""

    def note(self, text: str) -> None:
        """Something worth knowing."""


def result_line(outcome: Outcome, label: str = "") -> str:
    """Return one line about a notebook that has ended, called by its name or by ``label``."""
    line = f"{label or outcome.name:<16} {outcome.status:<8} {outcome.seconds:>7.1f} s"
    if outcome.ok:
        return f"{line}  {plural(outcome.cells_run, 'cell')}, {outcome.peak_mib:,.0f} MiB"
    return f"{line}  {outcome.error}"


class Lines(Live):
    """A line when a notebook starts and one when it has ended."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total = total
        self.stream = stream
        self.count = 0

    def started(self, job: Job) -> None:
        self.note(f"{job.label:<16} started")

    def finished(self, job: Job, outcome: Outcome) -> None:
        self.count += 1
        self.note(f"{result_line(outcome, job.label)}  [{self.count}/{self.total}]")

    def note(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self.stream, flush=True)


class Bars(Live):
    """A bar for each notebook that runs; when it has ended, its line stays above."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def started(self, job: Job) -> None:
        self.tasks[job.label] = self.progress.add_task(job.label, total=None)

    def cell(self, job: Job, number: int) -> None:
        if number == 1:
            self.progress.update(self.tasks[job.label], total=_count_cells(job))
        self.progress.update(self.tasks[job.label], completed=number - 1)

    def finished(self, job: Job, outcome: Outcome) -> None:
        self.progress.remove_task(self.tasks.pop(job.label))
        self.note(result_line(outcome, job.label))

    def note(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _count_cells(job: Job) -> int:
    """Return how many code cells a notebook will execute: its own, and the one with the parameters."""
    import json

    return len(code_cells(json.loads(job.source.read_text(encoding="utf-8")))) + 1


@contextmanager
def live_progress(jobs: list[Job], *, enabled: bool = True, stream: TextIO | None = None) -> Iterator[Live]:
    """Give what shows the progress of jobs: on standard error, so that it is never mixed with results."""
    stream = stream or sys.stderr
    if not enabled:
        yield Live()
    elif not stream.isatty():
        yield Lines(len(jobs), stream)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"))
        with Progress(*columns, TimeElapsedColumn(), console=Console(file=stream), transient=True) as progress:
            yield Bars(progress)
