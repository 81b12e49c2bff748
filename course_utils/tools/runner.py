"""Run lessons in batch: other seeds, devices and sizes, several at a time, with deadlines and a report.

Each notebook runs in its own folder (or in ``RunOptions.cwd``), in a kernel of this interpreter, inside a worker
process that is watched from outside (`supervision`). What a run does is decided before it starts (`plan`); what
came of each notebook is judged from the saved file (`outcomes`) and written down (`report`).
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem
from course_utils.paths import write_text
from course_utils.scratch import scratch_folder
from course_utils.text import plural
from course_utils.tools import processes
from course_utils.tools.envfacts import facts_of_environment
from course_utils.tools.kept import job_key, keep, kept, only_one, save_plan
from course_utils.tools.live import Live, live_progress
from course_utils.tools.outcomes import Ending, Outcome, judge, marked_notebook
from course_utils.tools.plan import (
    RunOptions,
    check_parameters,
    find_device,
    find_notebooks,
    new_folder,
    parameter_value,
    plain_value,
    read_notebook,
    share_cores,
)
from course_utils.tools.report import RunReport, installed_versions, write_report
from course_utils.tools.supervision import Job, Limits, RunClock, Worker, seconds_text, supervise

__all__ = ["RunOptions", "RunReport", "parameter_value", "run_course", "run_jobs"]

JOB_MARGIN_S = 60.0  # of the whole run's deadline above the sum of its notebooks' deadlines


def run_course(options: RunOptions) -> RunReport:
    """Execute notebooks, write them and the reports into a new folder, and return what came of them.

    A notebook that fails, hangs or dies is one line of the report. Ctrl-C ends the run within seconds, with a
    report of what was done until then (``interrupted`` is True).

    Raises:
        UsageError: if there is no such lesson, device or parameter, or the folder for the results is in use.
        EnvironmentProblem: if notebooks can't be run here at all, or results can't be written.
    """
    prepared = prepare([options])
    top = new_folder(options.out)
    save_plan(top, [replace(options, out=top)], is_matrix=False)
    return execute(prepared, [top], top)[0]


@dataclass(frozen=True)
class Prepared:
    """A run whose request was found to be in order."""

    options: RunOptions
    sources: dict[str, Path]
    parameters: dict[str, Any]
    device: str


def prepare(runs: Sequence[RunOptions]) -> list[Prepared]:
    """Look for whatever is wrong with the requests before anything runs or is written.

    Raises:
        UsageError: if there is no such lesson, device or parameter.
        EnvironmentProblem: if this copy of the course has no such edition, or PyTorch can't be asked for devices.
    """
    found = []
    devices: dict[str, str] = {}
    for options in runs:
        sources = find_notebooks(options)
        parameters = {"SEED": options.seed, "DEVICE": options.device, "FAST": not options.full, **options.parameters}
        for source in sources.values():
            check_parameters(source, parameters, asked=set(options.parameters))
        if options.device not in devices:
            devices[options.device] = find_device(options.device)
        values = {key: plain_value(value) for key, value in parameters.items()}
        found.append(Prepared(options, sources, values, devices[options.device]))
    return found


def execute(prepared: Sequence[Prepared], folders: Sequence[Path], top: Path) -> list[RunReport]:
    """Execute runs, each into its own folder, all through the same processes; leave out what was done earlier.

    Returns a report for each run, which is written into its folder too. The seconds of one of several runs are those
    of its notebooks together.
    """
    options = prepared[0].options
    versions = installed_versions()
    total = sum(len(run.sources) for run in prepared)
    slowest = next((run.device for run in prepared if run.device != "cpu"), "cpu")
    count, threads = share_cores(options, total, slowest)
    plans = [_jobs_of(run, folder, threads, top) for run, folder in zip(prepared, folders, strict=True)]
    keys = {
        job.output: job_key(job, run.device, versions)
        for run, jobs in zip(prepared, plans, strict=True)
        for job in jobs
    }
    started, clock = datetime.now().astimezone(), time.monotonic()
    with only_one(top), facts_of_environment(options.environment) as facts:
        done = {job.output: outcome for jobs in plans for job in jobs if (outcome := kept(job, keys[job.output]))}
        todo = [job for jobs in plans for job in jobs if job.output not in done]
        with live_progress(todo, enabled=options.show_progress) as live:
            if done:
                live.note(f"{plural(len(done), 'notebook')} of {total} done already.")
            if options.jobs is not None and count < min(options.jobs, len(todo)):
                live.note(f"{options.jobs} notebooks at a time would share {count} cores and be slower: {count} it is.")
            outcomes, interrupted = (
                run_jobs(
                    todo, options.limits(count), count, live, job_timeout_s=options.job_timeout_s,
                    on_outcome=lambda job, outcome: keep(job, outcome, keys[job.output]),
                )
                if todo
                else ((), False)
            )  # fmt: skip
        done |= {job.output: outcome for job, outcome in zip(todo, outcomes, strict=False)}
        seconds = round(time.monotonic() - clock, 1)
        reports = []
        for run, jobs, folder in zip(prepared, plans, folders, strict=True):
            mine = tuple(done[job.output] for job in jobs if job.output in done)
            report = RunReport(
                outcomes=mine,
                versions=versions,
                device=run.device,
                seed=run.options.seed,
                parameters=run.parameters,
                started=started.isoformat(timespec="seconds"),
                seconds=seconds if len(prepared) == 1 else round(sum(outcome.seconds for outcome in mine), 1),
                jobs=count,
                threads=threads,
                interrupted=interrupted,
                out=folder,
            )
            _write(report, None if interrupted else facts())
            reports.append(report)
    return reports


def _jobs_of(run: Prepared, folder: Path, threads: int, top: Path) -> list[Job]:
    return [
        Job(
            name=name,
            edition=run.options.edition,
            source=source,
            output=folder / f"{name}.ipynb",
            cwd=(run.options.cwd or source.parent).resolve(),
            parameters=run.parameters,
            threads=threads,
            run="" if folder == top else folder.name,
        )
        for name, source in run.sources.items()
    ]


def _write(report: RunReport, environment: dict[str, Any] | None) -> None:
    try:
        write_report(report)
        write_text(report.out / "parameters.json", json.dumps(report.parameters, indent=1, ensure_ascii=False) + "\n")
        if environment is not None:
            write_text(report.out / "environment.json", json.dumps(environment, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise EnvironmentProblem(
            f"The report can't be written to {report.out}.",
            got=str(error),
            fix="make room, or name another place with --out.",
        ) from error


def run_jobs(
    jobs: list[Job],
    limits: Limits,
    count: int,
    live: Live,
    *,
    job_timeout_s: float | None = None,
    on_outcome: Callable[[Job, Outcome], None] = lambda job, outcome: None,
) -> tuple[tuple[Outcome, ...], bool]:
    """Run notebooks, ``count`` at a time; return their outcomes in order, and whether Ctrl-C ended the run.

    ``on_outcome`` is called with each notebook that was started, as soon as it has ended.
    """
    if job_timeout_s is None:
        job_timeout_s = (limits.notebook_s or float("inf")) * -(-len(jobs) // count) + JOB_MARGIN_S
    with scratch_folder("course") as folder:
        return asyncio.run(_run_all(jobs, limits, count, live, job_timeout_s, folder, on_outcome))


async def _run_all(
    jobs: list[Job],
    limits: Limits,
    count: int,
    live: Live,
    job_timeout_s: float,
    folder: Path,
    on_outcome: Callable[[Job, Outcome], None],
) -> tuple[tuple[Outcome, ...], bool]:
    run = RunClock(time.monotonic(), job_timeout_s, asyncio.Event())
    waiting = deque(enumerate(jobs))
    outcomes: dict[int, Outcome] = {}

    async def work() -> None:
        """Take notebooks until none is left; a worker that ended well takes the next one too."""
        worker: Worker | None = None
        try:
            while waiting and not run.is_over:
                index, job = waiting.popleft()
                place = folder / str(index)  # short: paths of Unix sockets are limited
                place.mkdir()
                live.started(job)
                worker = worker or await Worker.start(place)
                ending, reusable = await supervise(
                    worker, job, limits, run, place, on_cell=lambda number, job=job: live.cell(job, number)
                )
                worker = worker if reusable else None
                outcomes[index] = await asyncio.to_thread(conclude, job, ending)
                on_outcome(job, outcomes[index])
                live.finished(job, outcomes[index])
        finally:
            if worker is not None:
                await worker.end()

    with _ctrl_c_sets(run.stop):
        await _all_or_none([asyncio.ensure_future(work()) for _ in range(count)])
    interrupted = run.stop.is_set()
    facts = (
        "The run was interrupted before this notebook started."
        if interrupted
        else f"The whole run took longer than {seconds_text(run.limit_s)}; this notebook was not started."
    )
    for index, job in waiting:
        outcomes[index] = conclude(job, Ending(how="not-started", facts=facts))
    return tuple(outcomes[index] for index in range(len(jobs))), interrupted


async def _all_or_none(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for tasks; if one raises, end the others, each with its own cleaning up, and raise that error."""
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


@contextmanager
def _ctrl_c_sets(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C, and other ways of ending this process, set ``stop`` inside the block. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in processes.ends()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def conclude(job: Job, ending: Ending) -> Outcome:
    """Judge a notebook that has ended; if it did not end well, say so at its top."""
    notebook = read_notebook(job.output) if job.output.exists() else None
    outcome = judge(ending, notebook, name=job.name, edition=job.edition, path=job.output)
    if notebook is not None and not outcome.ok:
        marked = marked_notebook(notebook, outcome, ending.cell)
        write_text(job.output, json.dumps(marked, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    return outcome
