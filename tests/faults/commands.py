"""The course's slow commands as programs that can be started, hit and started again, each on a world of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_utils.paths import ROOT
from tests.faults.campaign import draws
from tests.lesson_files import copy_lesson, small_lesson
from tests.tools.grading.class_of import FIRST, SECOND, notebook, put, right
from tests.tools.running import left_over, marked_processes, write_notebook

START_S = 60.0  # for a command to get going on a busy machine
WAITS = "import time\ntime.sleep(0.4)\n"


@dataclass(frozen=True)
class Command:
    """A command in a folder of its own.

    Args:
        prepare: makes what it works on.
        code: the program; ``HERE`` in it is the folder.
        is_going: whether the interesting part has begun: only then is it hit.
        whole: raises AssertionError if a file that others read is not whole.
        finished: raises AssertionError if the undisturbed command has not done all its work.
    """

    prepare: Callable[[Path], None]
    code: str
    is_going: Callable[[Path], bool]
    whole: Callable[[Path], None]
    finished: Callable[[Path], None]

    def start(self, folder: Path, **more: str) -> subprocess.Popen[str]:
        """Start it in a session of its own, so that a terminal can be imitated."""
        return subprocess.Popen(
            [sys.executable, "-c", f"from pathlib import Path\nHERE = Path({str(folder)!r})\n{self.code}"],
            cwd=ROOT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)} | more,
        )


def cells(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


# --- build


def _prepare_build(folder: Path) -> None:
    code = [f'# %% id="wait-{n}"\nopen({str(folder / "going")!r}, "w").close()\n{WAITS}print({n})' for n in range(2)]
    copy_lesson(folder / "notebooks", small_lesson(*code))


def _whole_build(folder: Path) -> None:
    for path in (folder / "notebooks").rglob("*.ipynb"):
        assert len(cells(path)) == 6


def _finished_build(folder: Path) -> None:
    _whole_build(folder)
    assert len(list((folder / "notebooks").rglob("*.ipynb"))) == 2


BUILD = Command(
    _prepare_build,
    textwrap.dedent("""
        from course_utils.cli import run
        from course_utils.tools import build as builder
        build = builder.build
        builder.build = lambda *args, **options: build(*args, **options, folder=HERE / "notebooks")
        raise SystemExit(run(["build", "--jobs", "2"]))
    """),
    lambda folder: (folder / "going").exists(),
    _whole_build,
    _finished_build,
)


# --- run


def _prepare_run(folder: Path) -> None:
    for name in "abc":
        going = f"open({str(folder / 'going')!r}, 'w').close()\n"
        write_notebook(folder / f"{name}.ipynb", going + WAITS, WAITS, f"print({name!r})")


def _whole_run(folder: Path) -> None:
    for path in [*folder.glob("*.ipynb"), *(folder / "out").rglob("*.ipynb")]:
        assert len(cells(path)) >= 4
    for path in folder.rglob("report.json"):
        json.loads(path.read_text())


def _finished_run(folder: Path) -> None:
    _whole_run(folder)
    report = max(folder.rglob("report.json"), key=lambda path: path.stat().st_mtime)
    assert [entry["status"] for entry in json.loads(report.read_text())["notebooks"]] == ["passed"] * 3


RUN = Command(
    _prepare_run,
    textwrap.dedent("""
        from course_utils.cli import run
        from course_utils.tools import plan, runner
        plan.ROOT = HERE  # the default place of results is below it
        run_course = runner.run_course
        def with_ours(options):
            from dataclasses import replace
            return run_course(replace(options, lessons=tuple(str(HERE / f"{name}.ipynb") for name in "abc")))
        runner.run_course = with_ours
        raise SystemExit(run(["run", "--device", "cpu", "--jobs", "2"]))
    """),
    lambda folder: (folder / "going").exists(),
    _whole_run,
    _finished_run,
)


# --- grade


def _prepare_grade(folder: Path) -> None:
    for name in ("ada", "bob", "cyd"):
        put(folder / "in", name, notebook({FIRST: right(FIRST), SECOND: right(SECOND)}))


def _whole_grade(folder: Path) -> None:
    for path in (folder / "out").rglob("*.json"):
        json.loads(path.read_text())


def _finished_grade(folder: Path) -> None:
    _whole_grade(folder)
    grades = json.loads((folder / "out" / "grades.json").read_text())
    assert [(grade["student"], grade["points"]) for grade in grades] == [("ada", 2), ("bob", 2), ("cyd", 2)]


GRADE = Command(
    _prepare_grade,
    textwrap.dedent("""
        from course_utils.cli import run
        raise SystemExit(run(["grade", str(HERE / "in"), "--out", str(HERE / "out"), "--jobs", "2"]))
    """),
    lambda folder: (folder / "out" / "results").exists(),
    _whole_grade,
    _finished_grade,
)

COMMANDS = {"build": BUILD, "run": RUN, "grade": GRADE}
SPAN_S = {"build": 3.0, "run": 6.0, "grade": 12.0}  # from going to its end, about; decides where the hits fall


def going(command: Command, folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a command is in its work."""
    deadline = time.monotonic() + START_S
    while not command.is_going(folder) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert command.is_going(folder), f"it did not start: {process.communicate()[0]}"


def kill_and_repeat(name: str, folder: Path, number: int) -> bool:
    """Kill a command in its work with SIGKILL, look at what is left, do it again; return whether the kill came in time.

    Raises:
        AssertionError: if a process, a half file or a refusal is left.
    """
    command = COMMANDS[name]
    folder.mkdir()
    command.prepare(folder)
    with marked_processes() as mark:
        process = command.start(folder)
        going(command, folder, process)
        time.sleep(draws(name, number).uniform(0, SPAN_S[name]))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = left_over(mark, wait_s=30)  # what was just starting ends after its imports
        assert left == [], f"left running: {left}"
        command.whole(folder)
        again = command.start(folder)
        words, _ = again.communicate(timeout=180)
        assert again.returncode == 0, words
        assert left_over(mark) == []
    command.finished(folder)
    assert list(folder.glob("*~*")) == [], "a folder for temporary files is left"
    return process.returncode == -signal.SIGKILL
