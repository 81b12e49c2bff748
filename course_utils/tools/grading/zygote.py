"""The process that has everything imported and makes a fresh pair of processes for each submission.

``python -m course_utils.tools.grading FOLDER [HIDDEN]...`` reads a job a line from its standard input and writes
a result a line to its standard output (both JSON). For each job it forks a judge and a student's process. The judge
runs the checks and no student's code; the student's process is confined. PyTorch is imported once; nothing is computed
here, since threads do not survive a fork.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from course_utils.exercises.judge import evaluate
from course_utils.exercises.registry import Exercise, exercises_of
from course_utils.exercises.verdicts import PASSED, UNTRIED, WRONG, Outcome
from course_utils.lessons import LESSONS, find_lesson
from course_utils.tools import processes
from course_utils.tools.grading import confine
from course_utils.tools.grading.answers import handed_out
from course_utils.tools.grading.carry import Channel, Lost, Reader, stand_in
from course_utils.tools.grading.confine import Allowance
from course_utils.tools.grading.controls import control_states, controls_of
from course_utils.tools.grading.student import Student, quiet

PRELOADED = ("numpy", "torch.nn.functional", "torch.utils.data", "sklearn.datasets", "torchvision")
CALL_S = 30.0  # one call of a student's function
CLOCK_PER_CPU = 6  # a cell may take so many times its processor time by the clock: other work shares the machine
SAMPLE_S = 0.05
REPORT_S = 20.0  # far longer than a process needs to pass on an exit code
WATCHFUL = 15  # steps of priority between who watches and who is watched
HERE, APART = "in the student's process, under controls", "apart from the student's process"
KINDS_CARRIED, KINDS_JUDGED = ("function", "value"), ("function", "value", "here")
KINDS = ("blank", "failed", *KINDS_JUDGED)
MSG_UNSOUND = (
    "After this notebook's code has run, known answers are judged wrongly: it has changed the check. No marks."
)


class Judge:
    """Judges the answers that arrive over a channel, and reports each outcome as soon as it is known.

    What arrives is not believed further than it must be: only exercises of the lesson count, those that can be carried
    are judged here whatever the other side says about them, and a process that misjudges a control has no marks.
    """

    def __init__(self, job: dict[str, Any], channel: Channel, report: Callable[[dict[str, Any]], None]) -> None:
        self.job = job
        self.channel = channel
        self.report = report
        self.known = {exercise.id: exercise for exercise in exercises_of(find_lesson(job["lesson"]))}
        self.carried = frozenset(job["carried"])
        self.unconfirmed: dict[str, list[dict[str, Any]]] = {}

    def run(self) -> None:
        """Follow the student's process to its end.

        Raises:
            Lost: if that process is gone or late, or sends what our side of it never would.
        """
        while True:
            message, storages = self.channel.receive(self.job["allowance"]["seconds"])
            if "controls" in message:
                self.report({"cell": ""})
                self._confirm()
                return
            if "cell" in message:
                self.report({"cell": str(message["cell"])[:200]})
                continue
            kind = next((kind for kind in KINDS if kind in message), "")
            exercise = self.known.get(str(message.get(kind)))
            if exercise is None or ((kind in KINDS_CARRIED) != (exercise.id in self.carried) and kind in KINDS_JUDGED):
                raise Lost("a message that can't be read")
            outcome, text, where = self._outcome(kind, exercise, message, storages)
            line = {"id": exercise.id, "state": outcome.state, "message": text, "judged": where}
            if where == HERE:
                self.unconfirmed.setdefault(exercise.id, []).append(line)
            else:
                self.report(line)

    def _outcome(
        self, kind: str, exercise: Exercise, message: dict[str, Any], storages: list[Any]
    ) -> tuple[Outcome, str, str]:
        if kind == "blank":
            return Outcome(exercise.id, UNTRIED), "", APART
        if kind == "failed":
            name, text = (str(part)[:500] for part in message["error"])
            return Outcome(exercise.id, WRONG), f"{name}: {text}", APART
        if kind == "here":
            state, miss = message.get("state"), message.get("miss")
            if state not in (PASSED, WRONG, UNTRIED):
                raise Lost("a message that can't be read")
            text = " | ".join(str(part)[:500] for part in miss[:3] if part) if isinstance(miss, list) else ""
            return Outcome(exercise.id, state), text, HERE
        answer = stand_in(self.channel, CALL_S) if kind == "function" else Reader(storages).decode(message["is"])
        outcome = evaluate(exercise, answer, self.job["seeds"][exercise.id])
        if kind == "function":
            self.channel.send({"done": True})
        return outcome, outcome.message, APART

    def _confirm(self) -> None:
        """Have controls judged on the other side and here; report what was judged there if both say the same.

        Controls are the reference answer, the same with its results changed, and the handed-out program of a clinic.
        They go over only now, when every answer has been judged.
        """
        # Read only now: what stands in this process's memory before the fork, the student's process would have too.
        wanted = {name: controls_of(name) for name in self.unconfirmed}
        self.channel.send({"programs": wanted})
        said: dict[str, Any] = {}
        while True:
            message, _ = self.channel.receive(self.job["allowance"]["seconds"])
            if "end" in message:
                break
            said[str(message.get("control"))] = message.get("states")
        for name, lines in self.unconfirmed.items():
            is_sound = said.get(name) == control_states(self.known[name], wanted[name], self.job["seeds"][name])
            for line in lines:
                self.report(line if is_sound else {**line, "state": WRONG, "message": MSG_UNSOUND})


class Zygote:
    """Forks, waits, ends, reports; one submission at a time."""

    def __init__(self, folder: Path, hidden: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.hidden = hidden
        self.parent = os.getppid()
        processes.adopt_orphans()
        # For root, whom no limit on processes binds, watching in time is all there is: it must not wait for a turn.
        with contextlib.suppress(OSError):
            os.nice(-WATCHFUL)

    def grade(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run one submission and return what came of it: a status, outcomes, seconds, and how it was confined."""
        allowance = Allowance(**job["allowance"])
        started = time.monotonic()
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        theirs, ours = socket.socketpair()
        read_end, write_end = os.pipe()
        student = self._fork_student(job, allowance, work, theirs, others=(ours.fileno(), read_end, write_end))
        judging = self._fork_judge(job, ours, write_end, others=(theirs.fileno(), read_end))
        theirs.close(), ours.close(), os.close(write_end)
        lines, how, peak = self._wait(read_end, student, judging, work, allowance, started)
        os.close(read_end)
        if not how and not any("end" in line for line in lines):
            _let_report(student)
        for pid in (student, judging):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        processes.end_below(os.getpid())
        codes = [_reap(pid) for pid in (student, judging)]
        shutil.rmtree(work, ignore_errors=True)
        confined = [line["confined"] for line in lines if "confined" in line]
        outcomes = [line for line in lines if "id" in line]
        lost = next((line["lost"] for line in lines if "lost" in line), "")
        cells = [line["cell"] for line in lines if "cell" in line]
        return {
            "cell": cells[-1] if cells else "",
            "status": how or ("graded" if any("end" in line for line in lines) else "died"),
            "outcomes": _best(outcomes),
            "lost": lost,
            "exit": codes[0],
            "confined": confined[0] if confined else confine.LIMITS,
            "seconds": round(time.monotonic() - started, 3),
            "peak_bytes": peak,
        }

    def _fork_judge(self, job: dict[str, Any], sock: socket.socket, write_end: int, others: tuple[int, ...]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for number in others:
                os.close(number)
            quiet()

            def report(line: dict[str, Any]) -> None:
                os.write(write_end, json.dumps(line).encode() + b"\n")

            try:
                first, _ = Channel(sock).receive(job["allowance"]["seconds"])
                report({"confined": str(first.get("confined"))})
                Judge(job, Channel(sock), report).run()
                report({"end": True})
            except Lost as error:
                report({"lost": str(error)})
        finally:
            os._exit(0)

    def _fork_student(
        self, job: dict[str, Any], allowance: Allowance, work: Path, sock: socket.socket, others: tuple[int, ...]
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            for number in others:
                os.close(number)
            os.setsid()
            os.nice(WATCHFUL)
            quiet()
            is_separate = confine.separate(work, allowance, self.hidden)
            if is_separate:
                inner = os.fork()  # the first process of the new name space; with it, all others there end
                if inner == 0:
                    os.setsid()  # signals to its own group reach nobody outside
                    confine.end_with_parent()
                else:
                    os.close(sock.fileno())
                    _, status = os.waitpid(inner, 0)
                    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
            os.chdir(work)
            os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = str(work)
            confine.limit(allowance)
            if is_separate:
                confine.drop_privileges()
            channel = Channel(sock)
            channel.send({"confined": confine.NAMESPACES if is_separate else confine.LIMITS})
            Student(job, channel).run()
        except BaseException:
            os._exit(1)
        finally:
            os._exit(0)

    def _wait(
        self, read_end: int, student: int, judging: int, work: Path, allowance: Allowance, started: float
    ) -> tuple[list[dict[str, Any]], str, int]:
        """Read the judge's report while watching clock, memory, processes and files; return it, the end, the peak."""
        text, how, peak = b"", "", 0
        meter = processes.Meter(student)
        cell, cell_since, cpu_before = "(start)", started, 0.0
        while True:
            ready, _, _ = select.select([read_end], [], [], SAMPLE_S)
            if ready:
                part = os.read(read_end, 2**16)
                if not part:
                    break
                text += part
                if b'"cell"' in part:
                    meter.sample()
                    cell, cell_since, cpu_before = _last_cell(text), time.monotonic(), _cpu_seconds(meter)
                continue
            if how:
                continue
            # Counted first, and cheaply: looking at each of a thousand processes takes too long.
            if (confine.count_apart(student) or 0) > allowance.processes:
                how = "too many processes"
                _end_tree(student)
                continue
            meter.sample()
            memory = meter.memory_bytes + _own_bytes(student)
            peak = max(peak, memory)
            now, used = time.monotonic(), _cpu_seconds(meter) - cpu_before
            # Processor time first: how much else the machine does must decide no grade.
            is_slow = used > allowance.cell_seconds or now > cell_since + CLOCK_PER_CPU * allowance.cell_seconds
            if now > started + allowance.seconds or (is_slow and cell):  # with no cell: the controls, which are ours
                how = "timeout"
            elif os.getppid() != self.parent:
                how = "abandoned"  # who asked was killed: nobody wants the result
            elif meter.processes > allowance.processes:
                how = "too many processes"
            elif memory > allowance.memory_bytes + 2**30:
                how = "too much memory"
            elif _disk_bytes(work) > allowance.disk_bytes:
                how = "too much disk space"
            if how:
                _end_tree(student)
        lines = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                lines.append(json.loads(line))
        return lines, how, peak


def _let_report(student: int) -> None:
    """Let a student's process that waits for the one inside its name space pass on how that one ended.

    The judge misses the inner process as soon as its socket closes; the outer one may not have heard of it yet, and
    killed now it would end by our signal instead of with the student's exit code.
    """
    with contextlib.suppress(psutil.Error):
        for inner in psutil.Process(student).children():
            inner.kill()  # changes nothing for one that is ending already
        deadline = time.monotonic() + REPORT_S
        while time.monotonic() < deadline and not os.waitid(os.P_PID, student, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(SAMPLE_S / 10)


def _end_tree(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # with it, its name space and all processes there
    processes.end_below(os.getpid())


def _last_cell(text: bytes) -> str:
    """Return the cell that the judge's report names last, empty for the controls."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
            return str(json.loads(line)["cell"])
    return ""


def _cpu_seconds(meter: processes.Meter) -> float:
    """Return the processor time of the student's process and of all that it started."""
    try:
        times = psutil.Process(meter.pid).cpu_times()
    except psutil.Error:
        return meter.cpu_seconds
    return meter.cpu_seconds + times.user + times.system


def _own_bytes(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


def _disk_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            total += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    return total


def _reap(pid: int) -> int | None:
    with contextlib.suppress(ChildProcessError):
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)
    return None


def _best(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one outcome for each exercise: the best of its copies, the first of equals."""
    rank = {PASSED: 0, WRONG: 1, UNTRIED: 2}
    best: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        mine = best.get(outcome["id"])
        if mine is None or rank[outcome["state"]] < rank[mine["state"]]:
            best[outcome["id"]] = outcome
    return list(best.values())


def imported_by_lessons() -> list[str]:
    """Return the modules that the lessons' set-up cells import, so that no submission has to wait for them."""
    found: dict[str, None] = {}
    for lesson in LESSONS:
        with contextlib.suppress(ValueError, KeyError, SyntaxError):
            for piece in handed_out(lesson.stem).setup:
                for node in ast.walk(ast.parse(piece.code)):
                    if isinstance(node, ast.Import):
                        found |= dict.fromkeys(alias.name for alias in node.names)
                    elif isinstance(node, ast.ImportFrom) and node.module:
                        found[node.module] = None
    return list(found)


def preload() -> None:
    """Import what submissions will want."""
    for name in (*PRELOADED, *imported_by_lessons()):
        with contextlib.suppress(ImportError):
            import_module(name)


def main() -> None:
    """Grade jobs until standard input ends."""
    folder = Path(sys.argv[1])
    jobs, results = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    sink = os.open(os.devnull, os.O_RDWR)
    os.dup2(sink, 0), os.dup2(2, 1)
    zygote = Zygote(folder, [Path(place) for place in sys.argv[2:]])
    try:
        results.write(json.dumps({"ready": True}) + "\n")
        results.flush()
        for line in jobs:
            result = zygote.grade(json.loads(line))
            results.write(json.dumps(result) + "\n")
            results.flush()
    except BrokenPipeError:
        pass  # who asked is gone
    finally:
        shutil.rmtree(folder, ignore_errors=True)
