"""Compare notebooks with a fresh run of themselves, through nbval, strictly.

Each notebook gets its own pytest process in the surroundings that built it, with the plugin in ``patience``: a machine
under load is no reason for a verdict. One command compares the lessons, here ten times with every core busy:

    python -m course_utils.tools.regression --rounds 10 --load notebooks/01_tensors.ipynb

A hunt for flakes compares all of them in drawn orders, with drawn numbers of threads, two at a time. What it has
done it keeps in a file, so that the same command goes on where an earlier one was stopped:

    python -m course_utils.tools.regression --rounds 100 --shuffle --jobs 2 --threads draw --load --counts flakes.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.paths import NOTEBOOKS, write_text
from course_utils.text import plural
from course_utils.tools.isolation import plain_surroundings
from course_utils.tools.outputs import SANITIZE
from course_utils.tools.processes import core_count, end_below

TIMEOUT_S = 600
START_TIMEOUT_S = 120
DRAWN_THREADS = (1, 2, 3, 4)
_BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# pytest must not read the project's settings: they make warnings errors, nbval's and jupyter's own among them.
_PYTEST_SETTINGS = "[pytest]\n"


@dataclass(frozen=True)
class Comparison:
    """What nbval says of one notebook; ``report`` is its text, empty of colours."""

    notebook: Path
    ok: bool
    seconds: float
    report: str

    @property
    def sentence(self) -> str:
        name = Path(*self.notebook.parts[-2:])  # the editions have one file name
        return f"{'same' if self.ok else 'DIFFERS':<8} {name} in {self.seconds:.0f} s"


def compare(notebook: Path, timeout_s: float = TIMEOUT_S, sanitize: Path = SANITIZE, threads: int = 1) -> Comparison:
    """Run ``notebook`` afresh and compare every output with what it stores, cells marked as varying excepted.

    Args:
        notebook: an executed notebook; it is not changed.
        timeout_s: for the whole notebook; then the run and everything it started is killed.
        sanitize: what may differ.
        threads: of the numeric libraries; the outputs were made with one.

    Raises:
        EnvironmentProblem: if nbval can't run at all.
    """
    notebook = Path(notebook).resolve()
    started = perf_counter()
    with plain_surroundings(threads) as plain, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        settings = plain.folder / "pytest.ini"
        settings.write_text(_PYTEST_SETTINGS, encoding="utf-8")
        env = {**plain.env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins cost time and change what runs
        command = [
            *(sys.executable, "-m", "pytest", "-c", str(settings), "--rootdir", str(notebook.parent), "--noconftest"),
            *("-p", "nbval.plugin", "-p", "course_utils.tools.patience", "-p", "no:cacheprovider"),
            *("--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(sanitize)),
            *("--nbval-cell-timeout", str(timeout_s), "--nbval-kernel-startup-timeout", str(START_TIMEOUT_S)),
            *("-q", "--no-header", "--color=no", "-rN", str(notebook)),
        ]
        try:
            status = subprocess.run(
                command,
                env=env,
                cwd=notebook.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None  # pytest is killed; its kernel and what that started end with the surroundings
        log.seek(0)
        report = _ANSI.sub("", log.read())
    if status is None:
        report += f"\n{notebook.name} did not end within {timeout_s:g} s; the run was killed."
    elif status not in (0, 1):
        raise EnvironmentProblem(
            f"nbval could not run {notebook.name} (pytest's exit status {status}).",
            got=report[-400:],
            fix="`python course.py setup` repairs the environment.",
        )
    return Comparison(notebook, status == 0, perf_counter() - started, report)


def all_notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    """Return the notebooks of both editions, learner edition first."""
    return [*sorted(folder.glob("*.ipynb")), *sorted((folder / "solutions").glob("*.ipynb"))]


@contextmanager
def busy_cores(count: int | None = None) -> Iterator[None]:
    """Keep ``count`` cores busy (all by default) while the block runs; the load ends with this process too."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count or core_count())]
    try:
        yield
    finally:
        for process in burners:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Trial:
    """One comparison of a hunt: which round, which notebook, with how many threads."""

    round: int
    notebook: Path
    threads: int

    @property
    def name(self) -> str:
        return "/".join(self.notebook.resolve().parts[-2:])  # the editions have one file name


def trials(notebooks: Sequence[Path], rounds: int, threads: int | None, shuffle: bool, seed: int = 0) -> list[Trial]:
    """Return every comparison of ``rounds`` rounds, the same for the same ``seed``.

    Args:
        notebooks: each is compared once a round.
        rounds: how many.
        threads: of the numeric libraries; None draws a number for each comparison.
        shuffle: whether each round has an order of its own.
        seed: of the draws.
    """
    planned = []
    for number in range(1, rounds + 1):
        draw = random.Random(f"{seed} {number}")
        order = draw.sample(notebooks, len(notebooks)) if shuffle else notebooks
        planned += [Trial(number, notebook, threads or draw.choice(DRAWN_THREADS)) for notebook in order]
    return planned


class Counts:
    """What a hunt has compared so far; without a path, of this process only."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lines: list[dict[str, object]] = []
        if path is not None and path.exists():
            try:
                self.lines = json.loads(path.read_text(encoding="utf-8"))
                self.has(Trial(0, path, 0))
            except (ValueError, TypeError, AttributeError, RecursionError):
                raise UsageError(f"{path} holds no counts of comparisons.", fix="Name another file.") from None

    def has(self, trial: Trial) -> bool:
        return any((line.get("round"), line.get("notebook")) == (trial.round, trial.name) for line in self.lines)

    def add(self, trial: Trial, result: Comparison) -> None:
        """Note a comparison; the report of one that differs is kept with it."""
        line = {
            "round": trial.round,
            "notebook": trial.name,
            "threads": trial.threads,
            "same": result.ok,
            "seconds": round(result.seconds, 1),
            "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
            **({} if result.ok else {"report": result.report}),
        }
        self.lines.append(line)
        if self.path is not None:
            write_text(self.path, json.dumps(self.lines, indent=0) + "\n")

    @property
    def different(self) -> int:
        return sum(not line.get("same") for line in self.lines)


def hunt(planned: Sequence[Trial], jobs: int, timeout_s: float, counts: Counts) -> None:
    """Compare, ``jobs`` notebooks at a time, and say and note what comes of each.

    An error, Ctrl-C or a request to end stops the comparisons that run, with all their processes.
    """
    lanes = ThreadPoolExecutor(jobs)
    running: dict[Future[Comparison], Trial] = {
        lanes.submit(compare, trial.notebook, timeout_s, threads=trial.threads): trial for trial in planned
    }
    try:
        for future in as_completed(running):
            trial, result = running[future], future.result()
            counts.add(trial, result)
            print(f"{trial.round:>3}  {result.sentence}, {plural(trial.threads, 'thread')}", flush=True)
            if not result.ok:
                print(result.report, flush=True)
    finally:
        lanes.shutdown(wait=False, cancel_futures=True)
        while any(future.running() for future in running):
            end_below(os.getpid())


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the notebooks that are named, all by default; return 0 if every comparison was the same."""
    parser = argparse.ArgumentParser(
        prog="python -m course_utils.tools.regression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: both editions of every lesson")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is compared")
    parser.add_argument("--shuffle", action="store_true", help="each round has an order of its own")
    parser.add_argument("--jobs", type=int, default=1, help="comparisons at the same time")
    parser.add_argument(
        "--threads",
        type=lambda text: None if text == "draw" else int(text),
        default=1,
        metavar="N|draw",
        help="of the numeric libraries; outputs are made with one",
    )
    parser.add_argument("--load", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--counts", type=Path, metavar="FILE", help="keep what was compared, and go on from there")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for one comparison")
    options = parser.parse_args(arguments)
    notebooks = options.notebooks or all_notebooks()
    for notebook in notebooks:
        if not notebook.is_file():
            raise UsageError(f"There is no notebook {str(notebook)!r}.", fix="`course build` makes the notebooks.")
    counts = Counts(options.counts)
    planned = trials(notebooks, options.rounds, options.threads, options.shuffle)
    with busy_cores() if options.load else nullcontext():
        hunt([trial for trial in planned if not counts.has(trial)], options.jobs, options.timeout, counts)
    print(f"{plural(len(counts.lines), 'comparison')}, {counts.different} different.")
    return 0 if counts.lines and not counts.different else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the comparison ends its processes on the way out
    try:
        raise SystemExit(main())
    except CourseError as error:
        print(error.sentence, file=sys.stderr)
        raise SystemExit(2) from None
