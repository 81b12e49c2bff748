"""Grade a folder of submissions: several at a time, resumed where it was interrupted, the same result each time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.exercises.registry import exercises_of
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG
from course_utils.lessons import find_lesson
from course_utils.paths import ROOT, course_first, write_text
from course_utils.scratch import scratch_folder
from course_utils.seeding import derive
from course_utils.text import plural, table
from course_utils.tools import processes
from course_utils.tools.fingerprints import course_digest
from course_utils.tools.grading import confine
from course_utils.tools.grading.answers import Piece, Script, script_of
from course_utils.tools.grading.carriable import carried
from course_utils.tools.grading.confine import Allowance
from course_utils.tools.grading.submissions import Submission, find_submissions, read_notebook

MISSING = "missing"  # the notebook has no cell for the exercise
MAX_ATTEMPTS = 4  # a cell that ends the process is left out, and the others get another chance
START_S = 120.0  # for a process to import everything
GRACE_S = 20.0  # beyond a submission's own time, before its process is given up
START_RETRIES = 2
STOP_S = 10.0  # for the processes to end after Ctrl-C; far more than they need but on a crowded machine


@dataclass(frozen=True, kw_only=True)
class GradeOptions:
    """What to grade, and how."""

    folder: Path
    out: Path
    jobs: int | None = None
    dask: str | None = None  # address of a Dask scheduler; None: on this machine
    seed: int = 0
    allowance: Allowance = field(default_factory=Allowance)
    pseudonyms: bool = False


@dataclass(frozen=True)
class Grade:
    """One submission's grade, in the shape of ``grades.json``."""

    student: str
    lesson: str
    file: str
    status: str
    points: int
    max_points: int
    exercises: tuple[dict[str, str], ...]
    seconds: float
    student_id: str = ""
    notes: tuple[str, ...] = ()
    confined: str = ""
    system: str = ""  # "moodle" or "canvas", whose download it is from

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Grade:
        return cls(**{**entry, "exercises": tuple(entry["exercises"]), "notes": tuple(entry["notes"])})


@dataclass(frozen=True)
class ClassResult:
    """All grades of a run, sorted by student and lesson."""

    grades: tuple[Grade, ...]
    out: Path
    interrupted: bool = False
    reused: int = 0

    def summary(self) -> str:
        """Return a table of the lessons and where the files are."""
        rows = []
        for lesson in sorted({grade.lesson for grade in self.grades}):
            mine = [grade for grade in self.grades if grade.lesson == lesson]
            points = sum(grade.points for grade in mine) / len(mine)
            graded = sum(grade.status == "graded" for grade in mine)
            rows.append((lesson or "(no lesson)", len(mine), graded, f"{points:.1f} of {mine[0].max_points}"))
        lines = [table(rows, ("lesson", "submissions", "without trouble", "points on average"))]
        if self.interrupted:
            lines.append("Interrupted. The same command goes on where this one stopped.")
        else:
            reused = f", {self.reused} of them from an earlier run" if self.reused else ""
            lines.append(
                f"{plural(len(self.grades), 'grade')} in {self.out}{reused}: grades.csv, grades.json, class.html."
            )
        return "\n".join(lines)


def grade(
    options: GradeOptions,
    on_grade: Callable[[Grade], None] = lambda grade: None,
    on_note: Callable[[str], None] = lambda text: None,
) -> ClassResult:
    """Grade every submission in a folder and write the results.

    Each result is kept as soon as it is there, under a name that holds everything it depends on, so that an interrupted
    run goes on where it was, and nothing is graded twice.

    Args:
        options: what to grade.
        on_grade: is called with each grade, in the order in which they come.
        on_note: is called with sentences for the person who waits, when a cluster grades.

    Raises:
        UsageError: if there is nothing to grade.
        EnvironmentProblem: if this system can't fork processes, ``out`` can't be written to, or the cluster can't be
            used.
    """
    if not hasattr(os, "fork") and options.dask is None:
        raise EnvironmentProblem("Grading forks processes, which Windows can't.", fix="Use Linux, macOS or WSL.")
    if options.folder.is_dir() and options.out.resolve().is_relative_to(options.folder.resolve()):
        raise UsageError(
            f"{options.out} is inside the folder of submissions.", fix="Name a folder beside it with --out."
        )
    results = options.out / "results"
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"{options.out} can't be written to: {error.strerror}.", fix="Choose another folder."
        ) from error
    with processes.ends_interrupt(), scratch_folder("grade") as scratch:
        (scratch / "unpacked").mkdir()
        submissions = find_submissions(options.folder, scratch / "unpacked")
        todo: list[tuple[Submission, Path]] = []
        grades: list[Grade] = []
        for submission in submissions:
            kept = results / f"{_key(submission, options)}.json"
            known = _kept(kept)
            if known is None:
                todo.append((submission, kept))
            else:
                grades.append(_named(known, submission))
        reused = len(grades)
        if options.dask is not None:
            interrupted = _grade_on_cluster(todo, options, grades, on_grade, on_note)
        else:
            interrupted = _grade_all(todo, options, scratch, grades, on_grade)
    grades.sort(key=lambda item: (item.student.casefold(), item.lesson, item.file))
    result = ClassResult(tuple(grades), options.out, interrupted, reused)
    if not interrupted:
        from course_utils.tools.grading.report import write_report

        write_report(result, pseudonyms=options.pseudonyms)
    return result


def _grade_on_cluster(
    todo: list[tuple[Submission, Path]],
    options: GradeOptions,
    grades: list[Grade],
    on_grade: Callable[[Grade], None],
    on_note: Callable[[str], None],
) -> bool:
    """Let the workers of a cluster grade; return whether that was interrupted."""
    from course_utils.tools.grading.cluster import ClusterRun

    places = dict(todo)

    def on_result(submission: Submission, found: Grade) -> None:
        _keep(places.pop(submission), submission, found)  # pop: each counts once
        grades.append(found)
        on_grade(found)

    return ClusterRun(str(options.dask), options, on_result, on_note).grade(list(places))


def _grade_all(
    todo: list[tuple[Submission, Path]],
    options: GradeOptions,
    scratch: Path,
    grades: list[Grade],
    on_grade: Callable[[Grade], None],
) -> bool:
    """Let several processes work through the submissions; return whether that was interrupted."""
    count = min(options.jobs or _default_jobs(), len(todo))
    # What others handed in, and what they got, is nothing that a submission may read.
    others = confine.may_hide((options.folder, options.out, scratch / "unpacked"), needed=(scratch / "job0",))
    waiting: queue.SimpleQueue[tuple[Submission, Path]] = queue.SimpleQueue()
    for item in todo:
        waiting.put(item)
    lock, stop = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def work(grader: Grader) -> None:
        try:
            with grader:
                while not stop.is_set():
                    try:
                        submission, kept = waiting.get_nowait()
                    except queue.Empty:
                        return
                    found = grader.grade(submission, options)
                    if stop.is_set():  # its process was ended with us: that says nothing about the submission
                        return
                    _keep(kept, submission, found)
                    with lock:
                        grades.append(found)
                        on_grade(found)
        except BaseException as error:
            errors.append(error)
            stop.set()

    graders = [Grader(scratch / f"job{number}", others) for number in range(count)]
    threads = [threading.Thread(target=work, args=(grader,), daemon=True) for grader in graders]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
    except KeyboardInterrupt:
        stop.set()
        # A second one must not end the cleaning up.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in processes.ends()}
        deadline = time.monotonic() + STOP_S
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            for grader in graders:
                grader.close()
            processes.end_below(os.getpid(), 0.5)
            time.sleep(0.05)
        for number, handler in before.items():
            signal.signal(number, handler)
        return True
    if errors:
        raise errors[0]
    return False


class Grader:
    """A process that grades, started anew when a submission has ended it."""

    def __init__(self, folder: Path, hidden: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.hidden = hidden
        self.process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.is_wrapped = False
        self.is_closed = False

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, for good: whoever grades with it in another thread gets an error."""
        self.is_closed = True
        self.end()

    def grade(self, submission: Submission, options: GradeOptions) -> Grade:
        """Grade one submission; whatever it does becomes a status."""
        if submission.problem:
            return unreadable(submission, submission.problem)
        try:
            notebook = read_notebook(submission.path)
        except ValueError as error:
            return unreadable(submission, str(error))
        return self.grade_notebook(submission, notebook, options)

    def grade_notebook(self, submission: Submission, notebook: dict[str, Any], options: GradeOptions) -> Grade:
        """Grade the content of a notebook; the submission's own file is not read."""
        started = time.monotonic()
        try:
            script = script_of(notebook, submission.lesson)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return unreadable(submission, f"It can't be read: {error}")
        result = self._outcomes(script, options)
        missing_names = [o for o in result["outcomes"].values() if o["message"].startswith("NameError")]
        if missing_names:
            whole = self._outcomes(script_of(notebook, submission.lesson, whole=True), options)
            if _n_passed(whole["outcomes"]) > _n_passed(result["outcomes"]):
                result = whole
        notes = (*submission.notes, *script.notes, *result["notes"])
        seconds = time.monotonic() - started
        return _grade_of(submission, result["status"], result["outcomes"], notes, result["confined"], seconds)

    def _outcomes(self, script: Script, options: GradeOptions) -> dict[str, Any]:
        """Run a script until it comes to its end, leaving out cells that end the process or take too long."""
        outcomes: dict[str, dict[str, str]] = {}
        notes: list[str] = []
        status, confined = "graded", ""
        for _ in range(MAX_ATTEMPTS):
            result = self._ask(script, options)
            confined = result["confined"] or confined
            for outcome in result["outcomes"]:
                known = outcomes.get(outcome["id"])
                if known is None or known["state"] != PASSED:
                    outcomes[outcome["id"]] = outcome
            if result["status"] == "graded":
                break
            status = result["status"]
            culprit = next((piece for piece in script.pieces if piece.name == result["cell"]), None)
            if culprit is None:
                notes.append(f"The notebook could not be graded to its end ({_ending_text(result)}).")
                break
            notes.append(f"Cell {culprit.name!r} was left out: {_ending_text(result)}.")
            for exercise_id, _expression in culprit.answers:
                outcomes[exercise_id] = {
                    "id": exercise_id,
                    "state": WRONG,
                    "message": f"This cell: {_ending_text(result)}.",
                }
            script = replace(script, pieces=tuple(_without(script.pieces, culprit)))
        return {"outcomes": outcomes, "notes": notes, "status": status, "confined": confined}

    def _ask(self, script: Script, options: GradeOptions) -> dict[str, Any]:
        """Send a script to the process and return its result; a process that is gone is a result too."""
        ids = [exercise.id for exercise in exercises_of(find_lesson(script.lesson))]
        job = {
            **script.to_json(),
            "lesson": script.lesson,
            "seeds": {name: derive(options.seed, "grade", name) for name in ids},
            "carried": sorted(carried() & set(ids)),
            "allowance": asdict(options.allowance),
        }
        lost = {"status": "died", "outcomes": [], "cell": "", "confined": "", "exit": None}
        process = self._running()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            line = self._lines.get(timeout=options.allowance.seconds + GRACE_S)
            result = json.loads(line)
        except (OSError, ValueError, RecursionError, queue.Empty):
            self.end()
            return lost
        if self.is_wrapped and result["confined"]:
            result["confined"] = f"{confine.BUBBLEWRAP}, {result['confined']}"
        return result

    def _running(self) -> subprocess.Popen[str]:
        if self.is_closed:
            raise EnvironmentProblem("The process that grades was ended meanwhile.")
        for _ in range(START_RETRIES):
            if self.process is not None and self.process.poll() is None:
                return self.process
            self._start()
        if self.process is None or self.process.poll() is not None:
            raise EnvironmentProblem("The process that grades does not start.", fix="Run `python3 course.py setup`.")
        return self.process

    def _start(self) -> None:
        self.end()
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "course_utils.tools.grading", str(self.folder), *map(str, self.hidden)]
        wrapped = confine.sandboxed(command, self.folder, self.hidden)
        self.is_wrapped = wrapped != command
        env = {**confine.harmless(os.environ), **processes.PATIENT_THREADS} | {
            "PYTHONPATH": course_first(os.environ.get("PYTHONPATH")), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "COURSE_PROGRESS": "off", "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        self.process = subprocess.Popen(
            wrapped, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
            cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        if self.is_closed:  # meanwhile, by another thread that found no process to end
            self.end()
            raise EnvironmentProblem("The process that grades was ended meanwhile.")
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read_lines, args=(self.process, self._lines), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            self._lines.get(timeout=START_S)

    def end(self) -> None:
        """Kill the process and everything below it."""
        process, self.process = self.process, None  # two threads may come here at once
        if process is None:
            return
        processes.end_below(process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in process.stdout:
            lines.put(line)
    lines.put("")  # no JSON: the process is gone


def _without(pieces: Sequence[Piece], culprit: Piece) -> list[Piece]:
    return [piece for piece in pieces if piece is not culprit]


def _ending_text(result: dict[str, Any]) -> str:
    status = result["status"]
    if status == "timeout":
        return "it took too long"
    if status == "died":
        code = result.get("exit")
        return "it ended the process" + (f" (exit code {code})" if code is not None else "")
    return f"it took {status}"


def _n_passed(outcomes: dict[str, dict[str, str]]) -> int:
    return sum(outcome["state"] == PASSED for outcome in outcomes.values())


def unreadable(submission: Submission, why: str) -> Grade:
    """Return the grade of a file that can't be graded, with the sentence that says why."""
    return _grade_of(submission, "unreadable", {}, notes=(why,))


def died(submission: Submission, why: str) -> Grade:
    """Return the grade of a notebook that ended whoever graded it."""
    return _grade_of(submission, "died", {}, notes=(*submission.notes, f"It could not be graded: {why}."))


def _grade_of(
    submission: Submission,
    status: str,
    outcomes: dict[str, dict[str, str]],
    notes: tuple[str, ...] = (),
    confined: str = "",
    seconds: float = 0.0,
) -> Grade:
    rows = []
    known = exercises_of(find_lesson(submission.lesson)) if submission.lesson else ()
    for exercise in known:
        found = outcomes.get(exercise.id)
        state, message = (found["state"], found["message"]) if found else (MISSING, "The notebook has no answer to it.")
        row = {"id": exercise.id, "title": exercise.title, "state": state, "message": _writable(message)}
        rows.append(row | {"judged": found.get("judged", "") if found else ""})
    return Grade(
        student=submission.student, lesson=submission.lesson, file=submission.file, status=status,
        points=sum(row["state"] == PASSED for row in rows), max_points=len(rows), exercises=tuple(rows),
        seconds=round(seconds, 2), student_id=submission.student_id, notes=tuple(map(_writable, notes)),
        confined=confined, system=submission.system,
    )  # fmt: skip


def _writable(text: str) -> str:
    """Return a text that can be written as UTF-8: half of a character, as a hostile message may hold, can't."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _key(submission: Submission, options: GradeOptions) -> str:
    """Return a name that holds all that a grade depends on."""
    parts = [submission.student, submission.student_id, submission.lesson, submission.problem, str(submission.notes)]
    digest = hashlib.sha256("\0".join([*parts, str(options.seed), repr(options.allowance), course_digest()]).encode())
    with contextlib.suppress(OSError):
        digest.update(submission.path.read_bytes())
    return digest.hexdigest()[:24]


def _keep(path: Path, submission: Submission, found: Grade) -> None:
    """Keep a result for a later run, without the student's name: the submission has it."""
    ours = {*submission.notes, submission.problem}
    notes = tuple(note for note in found.notes if note not in ours)
    nameless = replace(found, student="", student_id="", file="", notes=notes)
    write_text(path, json.dumps(asdict(nameless), indent=1) + "\n")


def _named(known: Grade, submission: Submission) -> Grade:
    """Return a kept result with the name and the notes that it was kept without."""
    notes = (*submission.notes, *filter(None, [submission.problem]), *known.notes)
    return replace(
        known, student=submission.student, student_id=submission.student_id, file=submission.file,
        system=submission.system, notes=notes,
    )  # fmt: skip


def _kept(path: Path) -> Grade | None:
    try:
        return Grade.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _default_jobs() -> int:
    return max(1, min(processes.core_count(), processes.available_memory_bytes() // (3 * 2**30)))


__all__ = ["MISSING", "UNTRIED", "ClassResult", "Grade", "GradeOptions", "grade"]
