"""Run lessons in batch: other seeds, devices and sizes, several at a time, with deadlines and a report.

Each notebook runs in its own folder (or in ``RunOptions.cwd``), in a kernel of this interpreter, inside a worker
process that this module watches from outside (`supervision`). What came of it is judged from the saved notebook
(`outcomes`) and written down (`report`).
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS, find_lesson
from course_utils.paths import NOTEBOOKS, ROOT, write_text
from course_utils.text import did_you_mean
from course_utils.tools import processes
from course_utils.tools.live import Live, live_progress
from course_utils.tools.outcomes import Ending, Notebook, Outcome, judge, marked_notebook, source_of
from course_utils.tools.report import RunReport, installed_versions, write_report
from course_utils.tools.supervision import Job, Limits, RunClock, Worker, seconds_text, supervise

EDITIONS = ("learner", "solutions")
NOTEBOOK_TIMEOUT_S = 900.0  # a lesson takes under 60 s on two idle cores
CELL_TIMEOUT_S = 300.0
FULL_FACTOR = 10  # longer data and training with --full
JOB_MARGIN_S = 60.0  # of the whole run's deadline above the sum of its notebooks' deadlines
MEMORY_PER_JOB_BYTES = 2 * 1024**3  # the most that a lesson may take; decides how many run at a time
MEMORY_SHARE = 0.8  # of the free memory that all kernels together may take
LEAST_MEMORY_BYTES = 1024**3  # below this limit no lesson that imports torch would run
# Linux shows an accelerator as one of these; without any, finding out takes no import of torch.
_ACCELERATOR_FILES = ("/dev/nvidia*", "/dev/kfd", "/dev/dxg", "/dev/dri/render*", "/dev/accel*")
_DEVICE_CHECK = """
import json, sys
from course_utils.devices import pick_device
from course_utils.errors import UsageError
try:
    print(json.dumps({"device": str(pick_device(sys.argv[1]))}))
except UsageError as error:
    print(json.dumps({"error": [error.what, error.got, error.expected, error.fix]}))
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What to run, and how."""

    lessons: tuple[str, ...] = ()  # names such as "01" or "tensors", or paths of notebooks; none means all lessons
    edition: str = "learner"  # or "solutions"
    device: str = "auto"  # parameter DEVICE; see devices.pick_device
    seed: int = 0  # parameter SEED
    full: bool = False  # parameter FAST is the opposite
    parameters: Mapping[str, Any] = field(default_factory=dict)  # further parameters, by name
    jobs: int | None = None  # notebooks at a time; None: as many as cores and memory allow
    timeout_s: float | None = None  # for one notebook; None: 15 min, ten times that with full
    cell_timeout_s: float | None = None  # for one cell; None: 5 min, ten times that with full
    job_timeout_s: float | None = None  # for the whole run; None: enough for every notebook to use up its own
    memory_mib: int | None = None  # for one kernel with all its children; None: its share of four fifths of the free
    out: Path | None = None  # new or empty folder for the results; None: runs/<date and time>
    cwd: Path | None = None  # working folder of the kernels; None: the folder of each notebook
    notebooks: Path = NOTEBOOKS  # where the lessons' notebooks are
    show_progress: bool = True

    def __post_init__(self) -> None:
        if self.edition not in EDITIONS:
            raise UsageError(f"There is no edition called {self.edition!r}.", fix=did_you_mean(self.edition, EDITIONS))
        for name in ("jobs", "timeout_s", "cell_timeout_s", "job_timeout_s", "memory_mib"):
            value = getattr(self, name)
            if value is not None and not value > 0:  # this way round so that nan is refused too
                raise UsageError(f"The setting {name} must be above 0.", got=value, fix="leave it out for the default.")

    def limits(self, jobs: int) -> Limits:
        """Return what each of several notebooks that run at the same time may take."""
        factor = FULL_FACTOR if self.full else 1
        notebook_s = self.timeout_s or NOTEBOOK_TIMEOUT_S * factor
        share = processes.available_memory_bytes() * MEMORY_SHARE / jobs
        memory = self.memory_mib * 2**20 if self.memory_mib else max(LEAST_MEMORY_BYTES, int(share))
        return Limits(
            notebook_s=notebook_s,
            cell_s=min(notebook_s, self.cell_timeout_s or CELL_TIMEOUT_S * factor),
            memory_bytes=memory,
        )


def run_course(options: RunOptions) -> RunReport:
    """Execute notebooks, write them and the reports into a new folder, and return what came of them.

    A notebook that fails, hangs or dies is one line of the report. Ctrl-C ends the run within seconds, with a
    report of what was done until then (``interrupted`` is True).

    Raises:
        UsageError: if there is no such lesson, device or parameter, or the folder for the results is in use.
        EnvironmentProblem: if notebooks can't be run here at all, or results can't be written.
    """
    sources = find_notebooks(options)
    parameters = {"SEED": options.seed, "DEVICE": options.device, "FAST": not options.full, **options.parameters}
    for source in sources.values():
        check_parameters(source, parameters, asked=set(options.parameters))
    device = find_device(options.device)
    out = new_folder(options.out)
    count, threads = share_cores(options, len(sources), device)
    jobs = [
        Job(
            name=name,
            edition=options.edition,
            source=source,
            output=out / f"{name}.ipynb",
            cwd=(options.cwd or source.parent).resolve(),
            parameters={key: _plain(value) for key, value in parameters.items()},
            threads=threads,
        )
        for name, source in sources.items()
    ]
    started = datetime.now().astimezone()
    clock = time.monotonic()
    with live_progress(jobs, enabled=options.show_progress) as live:
        if options.jobs is not None and count < min(options.jobs, len(jobs)):
            live.note(f"{options.jobs} notebooks at a time would share {count} cores and be slower: running {count}.")
        outcomes, interrupted = run_jobs(jobs, options.limits(count), count, live, job_timeout_s=options.job_timeout_s)
    report = RunReport(
        outcomes=outcomes,
        versions=installed_versions(),
        device=device,
        seed=options.seed,
        parameters=jobs[0].parameters,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 1),
        jobs=count,
        threads=threads,
        interrupted=interrupted,
        out=out,
    )
    write_report(report)
    return report


def run_jobs(
    jobs: list[Job], limits: Limits, count: int, live: Live, *, job_timeout_s: float | None = None
) -> tuple[tuple[Outcome, ...], bool]:
    """Run notebooks, ``count`` at a time; return their outcomes in order, and whether Ctrl-C ended the run."""
    if job_timeout_s is None:
        job_timeout_s = (limits.notebook_s or float("inf")) * -(-len(jobs) // count) + JOB_MARGIN_S
    folder = Path(tempfile.mkdtemp(prefix="course-"))
    try:
        return asyncio.run(_run_all(jobs, limits, count, live, job_timeout_s, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_all(
    jobs: list[Job], limits: Limits, count: int, live: Live, job_timeout_s: float, folder: Path
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
    """Let Ctrl-C, and a request of the system to end, set ``stop`` inside the block. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def on_signal(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
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


def find_notebooks(options: RunOptions) -> dict[str, Path]:
    """Return the notebooks to run, by name.

    Raises:
        UsageError: if there is no such lesson or file, or a lesson's notebook has not been built.
    """
    folder = options.notebooks if options.edition == "learner" else options.notebooks / "solutions"
    found: dict[str, Path] = {}
    for word in options.lessons or [lesson.stem for lesson in LESSONS]:
        path = Path(word)
        if path.suffix != ".ipynb" or not path.is_file():
            path = folder / f"{find_lesson(path.name).stem}.ipynb"
        if not path.is_file():
            raise UsageError(
                f"The notebook {path.name} of the {options.edition} edition does not exist.",
                expected=f"a file in {folder}",
                fix="run `course build` to make the notebooks from their sources.",
            )
        path = path.resolve()
        if path not in found.values():
            same = sum(name.split("@")[0] == path.stem for name in found)
            found[f"{path.stem}@{same + 1}" if same else path.stem] = path
    return found


def read_notebook(path: Path) -> Notebook:
    """Return a notebook file's content.

    Raises:
        UsageError: if the file holds no notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if all(cell["cell_type"] and "metadata" in cell and "source" in cell for cell in notebook["cells"]):
            return notebook
        reason = "a cell lacks its type, metadata or source"
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise UsageError(f"The file {path.name} is no notebook of format 4.", got=reason, fix="open it in JupyterLab.")


def check_parameters(path: Path, parameters: Mapping[str, Any], asked: set[str]) -> None:
    """Make sure that a notebook takes all these parameters; else setting them would do nothing.

    Raises:
        UsageError: if it has no cell tagged ``parameters`` or the cell does not define one of them.
    """
    cells = [cell for cell in read_notebook(path)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    if not cells:
        raise UsageError(
            f"The notebook {path.name} has no cell tagged 'parameters'.",
            expected=f"one that gives {', '.join(parameters)} their usual values",
            fix="tag the cell that assigns them; without the tag its values would win over the run's.",
        )
    known = assigned_names(source_of(cells[0]))
    for name in parameters:
        if name not in known:
            raise UsageError(
                f"The notebook {path.name} has no parameter called {name!r}.",
                expected=f"one of {', '.join(sorted(known))}" if known else "",
                fix=did_you_mean(name, known) + (" Name the lessons that have it." if name in asked else ""),
            )


def assigned_names(source: str) -> set[str]:
    """Return the names that a cell assigns at its top level; none if it is no Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    targets = [
        target
        for line in body
        if isinstance(line, (ast.Assign, ast.AnnAssign))
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
    ]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def parameter_value(text: str) -> Any:
    """Return the value meant by the text of a ``-p NAME VALUE``: a number, true, false, none, a list, or the text."""
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    """Return a parameter's value as something that JSON carries and papermill writes as Python."""
    if isinstance(value, (tuple, set, frozenset)):
        return [_plain(entry) for entry in value]
    return value


def find_device(name: str) -> str:
    """Return the device that notebooks will use.

    Raises:
        UsageError: if there is no such device here.
        EnvironmentProblem: if PyTorch can't be asked.
    """
    if name == "cpu" or (name == "auto" and not _may_have_accelerator()):
        return "cpu"
    answer = subprocess.run(
        [sys.executable, "-c", _DEVICE_CHECK, name],  # in a process of its own: torch is slow to import and to leave
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
    )
    try:
        facts = json.loads(answer.stdout)
    except ValueError:
        reason = (answer.stderr.strip().splitlines() or ["no answer"])[-1]
        raise EnvironmentProblem(
            "PyTorch can't be asked for its devices.", got=reason, fix="run `course setup` to repair the environment."
        ) from None
    if "error" in facts:
        what, got, expected, fix = facts["error"]
        raise UsageError(what, got=got or None, expected=expected, fix=fix)
    return facts["device"]


def _may_have_accelerator() -> bool:
    if not sys.platform.startswith("linux"):
        return True
    return any(next(Path("/").glob(pattern.lstrip("/")), None) for pattern in _ACCELERATOR_FILES)


def share_cores(options: RunOptions, notebooks: int, device: str) -> tuple[int, int]:
    """Return how many notebooks run at a time, and how many threads each may use; together no more than the cores.

    On an accelerator one runs at a time, unless more are asked for: they would share its memory.
    """
    cores = processes.core_count()
    wanted = options.jobs
    if wanted is None:
        fit = processes.available_memory_bytes() // MEMORY_PER_JOB_BYTES
        wanted = min(cores, fit) if device == "cpu" else 1
    count = max(1, min(wanted, cores, notebooks))
    return count, cores // count


def new_folder(out: Path | None) -> Path:
    """Make the folder for the results; an earlier run's folder is never used again.

    Raises:
        UsageError: if ``out`` holds files already.
        EnvironmentProblem: if the folder can't be made.
    """
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise UsageError(f"The folder {out} is not empty.", fix="name a new folder for the results.")
            return out.resolve()
        stem = ROOT / "runs" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        for attempt in range(1, 100):
            folder = stem if attempt == 1 else stem.with_name(f"{stem.name}-{attempt}")
            try:
                folder.mkdir(parents=True)
                return folder
            except FileExistsError:
                continue
        raise FileExistsError(f"{stem} and 98 more exist")
    except OSError as error:
        raise EnvironmentProblem(
            "The folder for the results can't be made.",
            got=str(error),
            fix="name another place with --out.",
        ) from error


__all__ = ["CourseError", "RunOptions", "RunReport", "parameter_value", "run_course", "run_jobs"]
