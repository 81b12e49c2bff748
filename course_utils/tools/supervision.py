"""Watch a notebook from outside its process: keep the clocks and the limits, and end what breaks them.

A worker executes the notebook and may hang, lie or die; the code here only believes its own clock, the list of
processes, and what arrives in time. Ending a notebook goes in steps: an interrupt, so that a traceback shows where
the time went; then the kernel and everything below it is killed and the worker reports; then the worker is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.errors import EnvironmentProblem
from course_utils.paths import course_first
from course_utils.text import human_bytes
from course_utils.tools import processes
from course_utils.tools.outcomes import Ending, exit_text

SAMPLE_S = 0.2  # between two looks at clocks and memory
SAMPLE_SHARE = 0.02  # of a core's time at most, for looking
INTERRUPT_S = 2.0  # for a cell to end after an interrupt
NOTE_S = 0.2  # for a kernel to note where it is
REPORT_S = 8.0  # for a worker to save the notebook and report after its kernel was killed
HURRIED_REPORT_S = 2.0  # the same, when a person waits after Ctrl-C
WORKER_START_S = 120.0
LOG_LIMIT_BYTES = 4 * 1024**2  # of a kernel's own standard streams
EVENT_LIMIT_BYTES = 4 * 1024**2  # a line from a worker; it cuts what it reports far below


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a notebook may take. Whatever is None has no limit."""

    cell_s: float | None = 300.0  # one cell
    notebook_s: float | None = 900.0  # from the start of the kernel to the end of the last cell
    start_s: float = 60.0  # for a kernel to answer for the first time
    memory_bytes: int | None = None  # kernel and everything below it
    processes: int = 256  # the same, counted
    cell_output_bytes: int = 16 * 1024**2
    cell_messages: int = 5_000  # outputs of one cell
    notebook_output_bytes: int = 64 * 1024**2
    output_wait_s: int = 60  # for outputs that are still under way when a cell is done


@dataclass(frozen=True, kw_only=True)
class Job:
    """One notebook to run."""

    name: str
    edition: str
    source: Path
    output: Path
    cwd: Path
    parameters: dict[str, Any]
    threads: int = 1
    run: str = ""  # the name of the run that it belongs to, where there are several

    @property
    def label(self) -> str:
        """The notebook in messages."""
        return f"{self.run}/{self.name}" if self.run else self.name


@dataclass(frozen=True)
class RunClock:
    """The clock of the whole run, and the switch that ends it."""

    started: float  # on the monotonic clock
    limit_s: float
    stop: asyncio.Event  # set by Ctrl-C

    @property
    def is_over(self) -> bool:
        """Whether nothing more may start."""
        return self.stop.is_set() or time.monotonic() > self.started + self.limit_s


class WorkerLost(Exception):
    """The worker's process ended without being asked to."""


class Worker:
    """A process that executes notebooks, seen from the runner. Make one with ``await Worker.start(folder)``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.forking_pid: int | None = None  # below it, and no part of any notebook
        self._line: asyncio.Task[bytes] | None = None

    @classmethod
    async def start(cls, folder: Path) -> Worker:
        """Start a worker whose own messages go to a log in ``folder``, a part of the run's short-lived files.

        Raises:
            EnvironmentProblem: if it does not come up.
        """
        log = folder / "worker.log"
        env = os.environ | {
            "PYTHONPATH": course_first(os.environ.get("PYTHONPATH")),
            "JUPYTER_RUNTIME_DIR": str(folder),
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        with open(log, "ab") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "course_utils.tools.worker", str(folder.parent)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=env,
                limit=EVENT_LIMIT_BYTES,
                start_new_session=True,  # Ctrl-C is for the runner, which then ends the workers in order
            )
        worker = cls(process, log)
        try:
            event = await worker.event(WORKER_START_S)
        except WorkerLost:
            event = None
        if event is None:
            await worker.end()
            raise EnvironmentProblem(
                "The process that runs notebooks does not start.",
                got=worker.last_line(),
                fix="run `course setup` to repair the environment.",
            )
        return worker

    @property
    def pid(self) -> int:
        """Process number."""
        return self.process.pid

    def last_line(self) -> str:
        """Return the last line that the worker wrote about itself: the reason, if it crashed."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else ""
        return ""

    async def last_words(self) -> str:
        """Return how the worker ended, in words."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.wait(), timeout=1)
        return f"{exit_text(self.process.returncode)}. {self.last_line()}".strip()

    async def send(self, job: dict[str, Any]) -> None:
        """Give the worker a notebook."""
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        with contextlib.suppress(ConnectionError):  # its end is noticed where events are awaited
            await self.process.stdin.drain()

    async def event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event, or None if there is none in time.

        Raises:
            WorkerLost: if no event can come any more.
        """
        if self._line is None:
            self._line = asyncio.ensure_future(self.process.stdout.readline())
        done, _ = await asyncio.wait({self._line}, timeout=timeout_s)
        if not done:
            return None
        line, self._line = self._line, None
        try:
            return json.loads(line.result())
        except ValueError as error:  # an empty line is the end of the stream
            raise WorkerLost from error

    async def end(self) -> None:
        """Kill everything below the worker, then the worker."""
        await asyncio.to_thread(processes.end_below, self.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        if self._line is not None:
            self._line.cancel()
        self.process._transport.close()  # else the pipes are closed at some later time, with a warning


@dataclass
class Breach:
    """A limit that was broken, and what has been done about it."""

    how: str
    facts: str
    cell: int | None
    interrupted_at: float | None = None
    killed_at: float | None = None


class Watch:
    """One notebook in one worker: knows how far it is, what it uses, and which limit it broke first."""

    def __init__(self, worker: Worker, limits: Limits, run: RunClock, log: Path) -> None:
        self.worker = worker
        self.limits = limits
        self.run = run
        self.log = log  # of the kernel
        self.meter = processes.Meter(worker.pid, worker.forking_pid)
        self.started = time.monotonic()
        self.cell: int | None = None
        self.cell_started = self.started
        self.kernel_pid: int | None = None
        self.breach: Breach | None = None
        self.next_sample = 0.0

    def see(self, event: dict[str, Any]) -> None:
        """Note an event of the worker."""
        if event["event"] == "kernel":
            self.kernel_pid = event["pid"]
        elif event["event"] == "forking":
            self.meter.forking = self.worker.forking_pid = event["pid"]
        elif event["event"] == "cell":
            self.cell, self.cell_started = event["index"], time.monotonic()

    async def look(self) -> bool:
        """Check clocks and limits, act on a breach; return False when the worker is past hope."""
        now = time.monotonic()
        if now >= self.next_sample:
            self.meter.sample()
            cost_s = time.monotonic() - now
            self.next_sample = now + max(SAMPLE_S, cost_s / SAMPLE_SHARE)
            self._bound_log()
        if self.breach is None:
            self.breach = self._find_breach(now)
            if self.breach is not None:
                await self._answer(self.breach, now)
        elif self.breach.killed_at is None:
            if now > self.breach.interrupted_at + INTERRUPT_S:
                await self._ask_where()
                await self._kill(self.breach)
        else:
            return now < self.breach.killed_at + (HURRIED_REPORT_S if self.run.stop.is_set() else REPORT_S)
        return True

    def _find_breach(self, now: float) -> Breach | None:
        limits = self.limits
        if self.run.stop.is_set():
            return Breach("interrupted", "", self.cell)
        if now > self.run.started + self.run.limit_s:
            return Breach("job-timeout", seconds_text(self.run.limit_s), self.cell)
        if limits.notebook_s is not None and now > self.started + limits.notebook_s:
            return Breach("notebook-timeout", seconds_text(limits.notebook_s), self.cell)
        if limits.cell_s is not None and self.cell is not None and now > self.cell_started + limits.cell_s:
            return Breach("cell-timeout", seconds_text(limits.cell_s), self.cell)
        if limits.memory_bytes is not None and self.meter.memory_bytes > limits.memory_bytes:
            used, allowed = human_bytes(self.meter.memory_bytes), human_bytes(limits.memory_bytes)
            return Breach("memory", f"it used {used} of memory, and {allowed} are allowed.", self.cell)
        if self.meter.processes > limits.processes:
            return Breach("processes", f"it had more than {limits.processes:,} processes.", self.cell)
        return None

    def _bound_log(self) -> None:
        """Empty the log when it gets long: children of a kernel may write to it without end."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_LIMIT_BYTES:
                os.truncate(self.log, 0)

    def ending(self, done: dict[str, Any] | None, facts: str) -> Ending:
        """Return the facts of the end: a broken limit counts more than what the worker says about it.

        Args:
            done: the worker's last event, None if it never came.
            facts: how the worker ended, if it was lost.
        """
        done = done or {"how": "lost", "sentence": facts, "cell": self.cell}
        how, sentence, cell = done["how"], done.get("sentence", ""), done["cell"]
        if self.breach is not None:
            how, sentence = self.breach.how, self.breach.facts
            cell = self.cell if self.breach.cell is None else self.breach.cell
        return Ending(
            how=how,
            facts=sentence,
            cell=cell,
            ename=done.get("ename", ""),
            evalue=done.get("evalue", ""),
            traceback=done.get("traceback", ""),
            log=processes.last_words(self.log),
            exit_code=done.get("exit_code"),
            seconds=time.monotonic() - self.started,
            cpu_seconds=max(done.get("cpu_seconds", 0.0), self.meter.cpu_seconds),
            peak_bytes=max(done.get("peak_bytes", 0), self.meter.peak_bytes),
            left_running=tuple(done.get("left_running", ())),
        )

    async def _answer(self, breach: Breach, now: float) -> None:
        """Interrupt what takes too long, kill what takes too much."""
        if breach.how.endswith("timeout") and self.kernel_pid is not None and hasattr(signal, "SIGUSR2"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.kernel_pid, signal.SIGINT)
                breach.interrupted_at = now
                return
        await self._kill(breach)

    async def _ask_where(self) -> None:
        """Let a kernel that ignores interrupts note where it is, even in compiled code.

        Not at the same time as an interrupt: a signal that finds another one under way goes to another thread, and
        then it ends no wait of the main thread.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.kernel_pid, signal.SIGUSR2)
            await asyncio.sleep(NOTE_S)

    async def _kill(self, breach: Breach) -> None:
        """Kill everything below the worker; it will notice."""
        breach.killed_at = time.monotonic()
        await asyncio.to_thread(processes.end_below, self.worker.pid)


async def supervise(
    worker: Worker, job: Job, limits: Limits, run: RunClock, folder: Path, on_cell: Callable[[int], None]
) -> tuple[Ending, bool]:
    """Let a worker execute a notebook and see to it that it ends.

    Args:
        worker: a process that is idle.
        job: the notebook.
        limits: what it may take.
        run: the clock of the whole run.
        folder: an empty folder for short-lived files, with a short path.
        on_cell: is called with the number of each code cell that starts.

    Returns:
        How the notebook ended, and whether the worker can take another; if not, it has been ended.
    """
    token = secrets.token_hex(8)
    watch = Watch(worker, limits, run, folder / processes.LOG_NAME)
    await worker.send(_order(job, limits, folder, token))
    done: dict[str, Any] | None = None
    facts = ""
    try:
        while done is None and await watch.look():
            event = await worker.event(SAMPLE_S)
            if event is not None and event["event"] == "done":
                done = event
            elif event is not None:
                watch.see(event)
                if event["event"] == "cell":
                    on_cell(event["number"])
    except WorkerLost:
        facts = await worker.last_words()
    finally:
        reusable = done is not None and done["how"] == "complete" and not done["resisting"] and watch.breach is None
        if not reusable:
            await worker.end()
        processes.end(await asyncio.to_thread(processes.marked, processes.TOKEN, token))
    return watch.ending(done, facts), reusable


def _order(job: Job, limits: Limits, folder: Path, token: str) -> dict[str, Any]:
    """Return a job as the worker takes it."""
    return {
        "source": str(job.source),
        "output": str(job.output),
        "cwd": str(job.cwd),
        "parameters": job.parameters,
        "threads": job.threads,
        "folder": str(folder),
        "token": token,
        "startup_s": int(limits.start_s),
        "output_limits": [limits.cell_output_bytes, limits.notebook_output_bytes, limits.cell_messages],
        "output_wait_s": limits.output_wait_s,
    }


def seconds_text(seconds: float) -> str:
    """Return a time limit for people: ``90 s``, ``15 min``."""
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"
