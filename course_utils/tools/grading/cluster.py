"""Grade on a Dask cluster: submissions go out as plain data, grades come back as JSON, workers may come and go.

No file system is shared. A task holds the cells of one notebook without their outputs, the seed and the limits; no
name travels. It also holds the fingerprint of the course: a worker with another version declines, and the submission
goes to the others. A worker grades as ``--jobs`` does, in processes of its own that are watched from outside; what
Dask carries was made by the course's code in the worker, never by the student's process.

When a worker is lost, Dask gives its submissions to others, and whatever arrives first counts, once. Who can reach
the scheduler can run code on the workers: keep it on a network of your own, or use Dask's TLS.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.errors import CourseError, EnvironmentProblem
from course_utils.scratch import scratch_folder
from course_utils.tools.fingerprints import course_digest
from course_utils.tools.grading.confine import BUBBLEWRAP, NAMESPACES, Allowance
from course_utils.tools.grading.submissions import Submission, read_notebook

if TYPE_CHECKING:
    from distributed import Client, Future

    from course_utils.tools.grading.grade import Grade, GradeOptions, Grader

CONNECT_S = 10.0
WORKERS_S = 60.0  # for the first worker to join
POLL_S = 0.05
LOOK_S = 0.5  # between two questions to the scheduler which workers there are
ALONE_S = 10.0  # without any worker, before it is said
PER_THREAD = 3  # tasks under way for each thread of a worker: it never waits for the next, the scheduler holds little
LEAST_UNDER_WAY = 8


@dataclass
class ClusterRun:
    """One run of the grader on a cluster.

    Args:
        address: of the scheduler, ``tcp://host:8786``.
        options: what to grade, and how.
        on_result: is called with each submission and its grade, once.
        on_note: is called with sentences for the person who waits.
    """

    address: str
    options: GradeOptions
    on_result: Callable[[Submission, Grade], None]
    on_note: Callable[[str], None]
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    declined: dict[str, str] = field(default_factory=dict)  # worker -> its version of the course
    warned: set[str] = field(default_factory=set)

    def grade(self, submissions: Sequence[Submission]) -> bool:
        """Grade submissions; return whether that was interrupted.

        Raises:
            EnvironmentProblem: if there is no scheduler or worker, or none with this version of the course.
        """
        tasks = list(self._tasks(submissions))
        if not tasks:
            return False
        with connected(self.address) as client:
            self._wait_for_workers(client)
            try:
                self._run(client, tasks)
            except KeyboardInterrupt:
                return True
            finally:
                with contextlib.suppress(Exception):  # workers that are gone have nothing to release
                    client.run(release, self.name, on_error="ignore")
        return False

    def _tasks(self, submissions: Sequence[Submission]) -> Iterator[tuple[Submission, str]]:
        """Yield what is to be sent for each submission; those that can't be read are graded here."""
        from course_utils.tools.grading.grade import unreadable

        for submission in submissions:
            try:
                if submission.problem:
                    raise ValueError(submission.problem)
                notebook = read_notebook(submission.path)
            except ValueError as error:
                self.on_result(submission, unreadable(submission, str(error)))
                continue
            yield (
                submission,
                json.dumps(
                    {
                        "run": self.name,
                        "course": identity(),
                        "seed": self.options.seed,
                        "allowance": asdict(self.options.allowance),
                        "lesson": submission.lesson,
                        "cells": [
                            {name: value for name, value in cell.items() if name not in ("outputs", "execution_count")}
                            for cell in notebook["cells"]
                        ],
                    }
                ),
            )

    def _wait_for_workers(self, client: Client) -> None:
        deadline = time.monotonic() + WORKERS_S
        while not workers_of(client):
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"No worker has joined the scheduler at {self.address}.",
                    fix=f"Start one in a checkout of the course: `dask worker {self.address}`.",
                )
            time.sleep(POLL_S)

    def _run(self, client: Client, tasks: list[tuple[Submission, str]]) -> None:
        waiting = list(enumerate(tasks))[::-1]
        under_way: dict[int, Future] = {}
        alone_since: float | None = None
        looked, threads = 0.0, {}
        try:
            while waiting or under_way:
                if time.monotonic() > looked + LOOK_S:
                    looked, threads = time.monotonic(), self._workers(client)
                if client.status not in ("running", "connecting"):
                    raise self._scheduler_gone()
                room = max(LEAST_UNDER_WAY, PER_THREAD * sum(threads.values())) - len(under_way)
                for _ in range(min(room, len(waiting))):
                    index, (_, text) = waiting.pop()
                    under_way[index] = self._submit(client, index, text, threads)
                for index in [index for index, future in under_way.items() if future.done()]:
                    submission, text = tasks[index]
                    grade = self._result(client, submission, under_way.pop(index))
                    if grade is None:
                        waiting.append((index, (submission, text)))
                    else:
                        self.on_result(submission, grade)
                if threads or not under_way:
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                elif time.monotonic() > alone_since + ALONE_S and "alone" not in self.warned:
                    self.warned.add("alone")
                    self.on_note("No worker is left; waiting for one to join.")
                time.sleep(POLL_S)
        finally:
            with contextlib.suppress(Exception):  # the scheduler may be what is gone
                client.cancel(list(under_way.values()), force=True)

    def _workers(self, client: Client) -> dict[str, int]:
        try:
            return workers_of(client)
        except (OSError, TimeoutError) as error:
            raise self._scheduler_gone() from error

    def _submit(self, client: Client, index: int, text: str, threads: dict[str, int]) -> Future:
        """Send a task to any worker but those that declined."""
        willing = [worker for worker in threads if worker not in self.declined]
        if threads and not willing:
            worker, theirs = next(iter(self.declined.items()))
            raise EnvironmentProblem(
                f"The workers have another version of the course: {worker} has {theirs}, here it is {identity()}.",
                fix="Bring their checkouts and environments to this version.",
            )
        where = {"workers": willing} if self.declined else {}
        key = f"grade-{self.name}-{index}-{uuid.uuid4().hex[:8]}"
        return client.submit(grade_task, text, key=key, pure=False, **where)

    def _result(self, client: Client, submission: Submission, future: Future) -> Grade | None:
        """Return the grade that a finished task brings; None if the submission must go out again."""
        from distributed import KilledWorker

        from course_utils.tools.grading.grade import Grade, died

        if future.status == "finished":
            answer = json.loads(future.result())
            if "grade" in answer:
                grade = Grade.from_json(answer["grade"])
                self._warn_of_weak_walls(grade)
                notes = (*submission.notes, *grade.notes)
                return replace(
                    grade,
                    student=submission.student,
                    student_id=submission.student_id,
                    file=submission.file,
                    system=submission.system,
                    notes=notes,
                )
            self.declined[answer["worker"]] = answer["course"]
            self.on_note(f"The worker {answer['worker']} has another version of the course; it gets nothing to grade.")
            return None
        if future.status == "error":
            error = future.exception()
            if isinstance(error, KilledWorker):
                return died(submission, "the workers that had it were lost, one after the other")
            if isinstance(error, CourseError):
                raise EnvironmentProblem(f"A worker can't grade: {error.sentence}")
            if isinstance(error, ModuleNotFoundError):
                raise EnvironmentProblem(
                    f"A worker lacks the package {error.name!r}.",
                    fix="Start it with the Python of a checkout's environment.",
                )
            raise EnvironmentProblem(f"A worker can't grade: {type(error).__name__}: {error}.")
        if client.status != "running":
            raise self._scheduler_gone()
        return None  # cancelled or lost with the connection: once more

    def _warn_of_weak_walls(self, grade: Grade) -> None:
        is_weak = bool(grade.confined) and not {NAMESPACES, BUBBLEWRAP} & set(grade.confined.split(", "))
        if is_weak and "walls" not in self.warned:
            self.warned.add("walls")
            self.on_note("A worker's system has no name spaces: submissions there reach the network and the cluster.")

    def _scheduler_gone(self) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"The scheduler at {self.address} is gone.", fix="What is graded is kept: the same command goes on."
        )


@contextlib.contextmanager
def connected(address: str) -> Iterator[Client]:
    """Connect to a scheduler, and leave it in the end as it was.

    Raises:
        EnvironmentProblem: if Dask is not installed or nobody answers there.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"Grading on a cluster needs the package {error.name!r}.", fix="Run `python3 course.py setup`."
        ) from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False, name="course-grade")
    except (OSError, ValueError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"No Dask scheduler answers at {address}.", got=str(error), fix="Start one with `dask scheduler`."
        ) from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=CONNECT_S)


def workers_of(client: Client) -> dict[str, int]:
    """Return the workers that are there, with their threads."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {address: facts["nthreads"] for address, facts in workers.items()}


def identity() -> str:
    """Return what must be the same on every worker: the course's code and notebooks, and PyTorch."""
    try:
        torch = version("torch").partition("+")[0]
    except PackageNotFoundError:
        torch = "none"
    return f"{course_digest()[:12]} with torch {torch}"


# In the workers


class Bench:
    """The processes that grade in this worker: kept between tasks, since each has imported torch."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[Grader] = []
        self.busy: dict[Grader, str] = {}  # with the run that it works for
        self.over: set[str] = set()  # runs that have ended
        self.folders: dict[Grader, contextlib.ExitStack] = {}

    @contextlib.contextmanager
    def grader(self, run: str) -> Iterator[Grader]:
        """Give a process that nobody else uses meanwhile."""
        with self.lock:
            mine = self.idle.pop() if self.idle else self._new()
            self.busy[mine] = run
        try:
            yield mine
        finally:
            with self.lock:
                self.busy.pop(mine, None)
                keep = run not in self.over
                if keep:
                    self.idle.append(mine)
            if not keep:
                self._end(mine)

    def release(self, run: str) -> None:
        """End the processes that work for a run, and those that work for none."""
        with self.lock:
            self.over.add(run)
            idle, self.idle = self.idle, []
            for grader, theirs in self.busy.items():
                if theirs == run:
                    grader.close()
        for grader in idle:
            self._end(grader)

    def clear(self) -> None:
        """End all of them: this worker ends."""
        for run in {*self.busy.values(), ""}:
            self.release(run)

    def _new(self) -> Grader:
        from course_utils.tools.grading.grade import Grader

        folder = contextlib.ExitStack()
        grader = Grader(folder.enter_context(scratch_folder("grade")))
        self.folders[grader] = folder
        return grader

    def _end(self, grader: Grader) -> None:
        grader.close()
        self.folders.pop(grader).close()


BENCH = Bench()
atexit.register(BENCH.clear)


def grade_task(text: str) -> str:
    """Grade one submission in this worker; both sides are JSON. A worker with another course says so instead."""
    from course_utils.tools.grading.grade import GradeOptions

    task: dict[str, Any] = json.loads(text)
    if task["course"] != identity():
        return json.dumps({"worker": _own_address(), "course": identity()})
    submission = Submission("", task["lesson"], Path("notebook.ipynb"))
    options = GradeOptions(
        folder=Path(), out=Path(), seed=task["seed"], allowance=Allowance(**task["allowance"])
    )  # fmt: skip
    with BENCH.grader(task["run"]) as grader:
        found = grader.grade_notebook(submission, {"cells": task["cells"]}, options)
    return json.dumps({"grade": asdict(found)})


def release(run: str) -> None:
    """End what this worker keeps for a run."""
    BENCH.release(run)


def _own_address() -> str:
    from distributed import get_worker

    return str(get_worker().address)
