"""Grading beside its peers: ``course.py grade``, ``nbgrader autograde``, ``otter run``, and a plain kernel for each.

All grade the same submissions of lesson 01: set-up and two exercises, right answers, judged by the same checks (the
course's own, which the peers' test cells and test files call). Each takes one submission at a time. nbgrader and otter
get environments of their own, which see the course's packages behind their own, so that PyTorch is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.measure import CORES, on_cores, surroundings
from benchmarks.results import Result
from course_utils.paths import NOTEBOOKS
from course_utils.sources import answer_cell, reference_code

LESSON = "01_tensors"
ANSWERS = {"tensors.energy": "energy", "tensors.windows": "windows"}  # exercise -> the name that is judged
SUBMISSIONS = 10
TIMES_FASTER = 10.0  # the aim: so many times the submissions per minute of the faster peer
INSTALL_S, RUN_S = 600.0, 900.0
SAMPLE_S = 0.2
JUDGED = (
    "from course_utils.exercises.judge import evaluate\n"
    "from course_utils.exercises.registry import find_exercise\n"
    "assert evaluate(find_exercise({id!r}), {name}, 1).passed"
)


@dataclass
class Contestant:
    """A way to grade.

    Args:
        name: as the table shows it.
        prepare: makes a folder ready, untimed; returns the commands that grade, and what counts the right answers.
        problem: a sentence if it can't take part.
        env: the variables of its processes.
    """

    name: str
    prepare: Callable[[Path, int], tuple[list[list[str]], Callable[[], int]]]
    problem: str = ""
    env: dict[str, str] = field(default_factory=surroundings)
    per_minute: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)


def grading(repeats: int) -> Iterator[Result]:
    """Submissions per minute and memory per job, beside nbgrader, otter and a plain kernel for each submission."""
    count = SUBMISSIONS if repeats > 1 else 2
    with tempfile.TemporaryDirectory(prefix="grading-", ignore_cleanup_errors=True) as folder, on_cores(CORES):
        yield from _results(contest(Path(folder), repeats, count), count)


def contest(folder: Path, repeats: int, count: int) -> list[Contestant]:
    """Let all take turns; the first of each round is another one every time."""
    nbgrader, otter = Environment(folder / "nbgrader", "nbgrader"), Environment(folder / "otter", "otter-grader")
    everybody = [
        Contestant("course.py grade", _course),
        Contestant("nbgrader autograde", nbgrader.nbgrader, nbgrader.problem, nbgrader.env),
        Contestant("otter run", otter.otter, otter.problem, otter.env),
        Contestant("a plain kernel each", _kernels),
    ]
    taking_part = [item for item in everybody if not item.problem]
    for turn in range(repeats):
        first = turn % len(taking_part)
        for item in [*taking_part[first:], *taking_part[:first]]:
            place = folder / f"{everybody.index(item)}-{turn}"
            place.mkdir()
            with contextlib.suppress(Unfit):
                _measure(item, place, count)
        taking_part = [item for item in taking_part if not item.problem]
    return everybody


class Unfit(Exception):
    """A contestant did not grade what it was given; its ``problem`` says why."""


def _measure(item: Contestant, place: Path, count: int) -> None:
    commands, count_right = item.prepare(place, count)
    with peak_memory() as peak:
        before = time.perf_counter()
        for command in commands:
            ended = subprocess.run(
                command, cwd=place, env=item.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=RUN_S,
            )  # fmt: skip
        seconds = time.perf_counter() - before
    right = count_right()
    if right != count * len(ANSWERS):
        last = (ended.stdout.strip().splitlines() or ["no output"])[-1]
        item.problem = f"{item.name} found {right} of {count * len(ANSWERS)} answers right: {last[:200]}"
        raise Unfit
    item.per_minute.append(60 * count / seconds)
    item.peak_mib.append(peak() / 2**20)


def _results(everybody: list[Contestant], count: int) -> Iterator[Result]:
    ours, *others = everybody
    peers = [median(item.per_minute) for item in others[:2] if item.per_minute]
    problems = " ".join(item.problem for item in everybody if item.problem)
    yield Result(
        name=f"grading: {count} submissions, one at a time",
        unit="per minute",
        runs=ours.per_minute,
        goal=round(TIMES_FASTER * max(peers), 1) if peers else None,
        higher_is_better=True,
        others={item.name: round(median(item.per_minute), 2) for item in others if item.per_minute},
        note=problems,
    )
    yield Result(
        name="grading: memory of one job",
        unit="MiB",
        runs=ours.peak_mib,
        others={item.name: round(median(item.peak_mib)) for item in others if item.peak_mib},
        note=problems,
    )


@contextlib.contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Watch what all processes below this one take together, shared pages counted once (Linux), in bytes."""
    most, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_S):
            total = 0.0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    memory = process.memory_full_info()
                    total += getattr(memory, "pss", memory.rss)
            most[0] = max(most[0], total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        stop.set()
        thread.join()


# What is graded


def submission(*, tests: bool) -> dict[str, Any]:
    """Return a notebook with the lesson's set-up and the right answers, with test cells for nbgrader or without."""
    handed_out = json.loads((NOTEBOOKS / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    cells = []
    for cell in handed_out["cells"]:
        exercise = cell["metadata"].get("exercise", "")
        if {"parameters", "setup"} & set(cell["metadata"].get("tags", [])):
            cells.append(_code(cell["id"], "".join(cell["source"])))
        elif exercise in ANSWERS:
            cells.append(_code(cell["id"], reference_code(answer_cell(exercise)), exercise=exercise))
            if tests:
                number = list(ANSWERS).index(exercise)
                cells[-1]["metadata"]["nbgrader"] = _nbgrader(f"answer{number}", solution=True)
                test = _code(f"test{number}", JUDGED.format(id=exercise, name=ANSWERS[exercise]))
                test["metadata"]["nbgrader"] = _nbgrader(f"test{number}", solution=False)
                cells.append(test)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    course = handed_out["metadata"].get("course", {})
    return {"cells": cells, "metadata": {"kernelspec": kernel, "course": course}, "nbformat": 4, "nbformat_minor": 5}


def _code(cell_id: str, source: str, **metadata: Any) -> dict[str, Any]:
    return {
        "cell_type": "code", "id": cell_id, "metadata": metadata, "source": source, "outputs": [],
        "execution_count": None,
    }  # fmt: skip


def _nbgrader(grade_id: str, *, solution: bool) -> dict[str, Any]:
    graded = {} if solution else {"points": 1}
    return {
        "grade_id": grade_id, "solution": solution, "grade": not solution, "locked": not solution, "task": False,
        "schema_version": 3, **graded,
    }  # fmt: skip


def write(path: Path, notebook: dict[str, Any]) -> Path:
    """Write a notebook and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


# The contestants


def _course(place: Path, count: int) -> tuple[list[list[str]], Callable[[], int]]:
    for number in range(count):
        write(place / "in" / f"student{number}_{LESSON}.ipynb", submission(tests=False))
    command = [sys.executable, "-m", "course_utils.cli", "grade", "in", "--out", "out", "--jobs", "1"]
    return [command], lambda: sum(item["points"] for item in _json(place / "out" / "grades.json"))


_EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
for path in sys.argv[1:]:
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=120).execute()
    nbformat.write(notebook, path)
"""


def _kernels(place: Path, count: int) -> tuple[list[list[str]], Callable[[], int]]:
    paths = [write(place / f"{number}.ipynb", submission(tests=True)) for number in range(count)]

    def right() -> int:
        cells = [cell for path in paths for cell in _json(path)["cells"] if cell["id"].startswith("test")]
        return sum(cell["execution_count"] is not None for cell in cells)

    return [[sys.executable, "-c", _EXECUTE, *map(str, paths)]], right


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


class Environment:
    """A virtual environment with a peer in it; ``problem`` is a sentence if it can't be had."""

    def __init__(self, folder: Path, package: str) -> None:
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.problem = ""
        self.env = surroundings(PATH=os.pathsep.join([str(self.bin), os.environ.get("PATH", os.defpath)]))
        steps = [
            [sys.executable, "-m", "venv", str(folder)],
            [str(self.bin / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", package],
        ]
        for step in steps:
            try:
                subprocess.run(step, check=True, capture_output=True, text=True, timeout=INSTALL_S)
            except (OSError, subprocess.SubprocessError) as error:
                lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
                self.problem = f"{package} can't be installed here: {lines[-1][:200] if lines else 'no reason given'}."
                return
        own = next(folder.glob("**/site-packages"))
        (own / "zz_course.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")  # behind its own

    def nbgrader(self, place: Path, count: int) -> tuple[list[list[str]], Callable[[], int]]:
        """Make a course of nbgrader's with one assignment; what is timed is ``nbgrader autograde``."""
        (place / "nbgrader_config.py").write_text(
            f"c = get_config()\nc.CourseDirectory.root = {str(place)!r}\nc.CourseDirectory.course_id = 'bench'\n",
            encoding="utf-8",
        )
        write(place / "source/ps1" / f"{LESSON}.ipynb", submission(tests=True))
        program = [str(self.bin / "python"), "-m", "nbgrader"]
        subprocess.run(
            [*program, "generate_assignment", "ps1"], cwd=place, env=self.env, capture_output=True, check=True
        )
        for number in range(count):
            write(place / "submitted" / f"student{number}" / "ps1" / f"{LESSON}.ipynb", submission(tests=True))

        def right() -> int:
            subprocess.run([*program, "export"], cwd=place, env=self.env, capture_output=True)
            rows = (place / "grades.csv").read_text().splitlines() if (place / "grades.csv").exists() else [""]
            column = rows[0].split(",").index("score") if rows[0] else 0
            return int(sum(float(row.split(",")[column]) for row in rows[1:]))

        return [[*program, "autograde", "ps1"]], right

    def otter(self, place: Path, count: int) -> tuple[list[list[str]], Callable[[], int]]:
        """Make a configuration of otter's; what is timed is ``otter run``, since ``otter grade`` needs containers."""
        tests = place / "tests"
        tests.mkdir()
        for exercise, name in ANSWERS.items():
            lines = JUDGED.format(id=exercise, name=name).splitlines()
            code = "\n".join(f">>> {line}" for line in lines) + "\n"
            case = {"code": code, "hidden": False, "locked": False}
            suite = {"cases": [case], "scored": True, "setup": "", "teardown": "", "type": "doctest"}
            test = {"name": name, "points": 1, "suites": [suite]}
            (tests / f"{name}.py").write_text(f"OK_FORMAT = True\n\ntest = {test!r}\n", encoding="utf-8")
        program = str(self.bin / "otter")
        subprocess.run(
            [program, "generate", "-t", "tests", "-o", "autograder.zip", "--no-environment", "--no-requirements"],
            cwd=place, env=self.env, capture_output=True, check=True,
        )  # fmt: skip
        commands = []
        for number in range(count):
            write(place / f"student{number}.ipynb", submission(tests=False))
            (place / f"out{number}").mkdir()
            commands.append([program, "run", "--no-logo", "-o", f"out{number}", f"student{number}.ipynb"])

        def right() -> int:
            results = [_json(place / f"out{number}" / "results.json") for number in range(count)]
            return int(sum(test.get("score") or 0 for result in results if result for test in result["tests"]))

        return commands, right
