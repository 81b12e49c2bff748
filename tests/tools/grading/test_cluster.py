"""Grading on a real Dask cluster on loopback: workers come, go and are killed, and every submission counts once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from course_utils import cli
from course_utils.errors import EnvironmentProblem
from course_utils.paths import course_first
from course_utils.tools.grading import cluster
from course_utils.tools.grading import grade as grading
from course_utils.tools.grading.confine import Allowance
from course_utils.tools.grading.grade import ClassResult, Grade, GradeOptions, grade
from tests.tools.grading.class_of import FIRST, SECOND, notebook, put, right
from tests.tools.grading.hostile import WRONG
from tests.tools.running import left_over, marked_processes

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="grading forks processes"),
]
QUICK = Allowance(seconds=60, cell_seconds=20, cpu_seconds=30, memory_bytes=2**30)
# Somebody may be editing the course while this runs; what differing versions do is a test of its own.
SAME = "from course_utils.tools.grading import cluster; cluster.course_digest = lambda: 'the same'"
LATER = "import time; time.sleep(0.5)"  # so that a worker that is killed was in the middle of something


@pytest.fixture(autouse=True, scope="module")
def _settings_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep Dask from reading and writing its settings in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_CONFIG", str(tmp_path_factory.mktemp("dask")))
        yield


class Cluster:
    """A scheduler and workers, each a process of its own with nothing in common but the address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start("scheduler", "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                   "--scheduler-file", str(folder / "scheduler.json"))  # fmt: skip
        deadline = time.monotonic() + 60
        while not (folder / "scheduler.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.address = json.loads((folder / "scheduler.json").read_text())["address"]

    def start(self, name: str, module: str, *words: str) -> None:
        scratch = self.folder / name
        scratch.mkdir()
        env = os.environ | {
            "PYTHONPATH": course_first(os.environ.get("PYTHONPATH")), "DASK_CONFIG": str(self.folder),
            "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *words], cwd=scratch, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def add_worker(self, name: str) -> None:
        self.start(name, "dask_worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny",
                   "--no-dashboard", "--name", name, "--memory-limit", "0", "--preload", SAME)  # fmt: skip

    def end(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="dask-") as folder, marked_processes() as mark:
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            made.end()
            assert left_over(mark, wait_s=40) == []
            assert list(Path(folder).glob("*/grade~*")) == []


def facts(result: ClassResult) -> list[Grade]:
    """Return the grades without what may differ between two runs."""
    return [replace(item, seconds=0.0) for item in result.grades]


@pytest.mark.slow
def test_a_lost_worker_s_submissions_are_graded_elsewhere_and_each_counts_once(tmp_path, monkeypatch):
    for module in (cluster, grading):
        monkeypatch.setattr(module, "course_digest", lambda: "the same")
    both = {FIRST: right(FIRST), SECOND: right(SECOND)}
    for name in ("ada", "bob", "cyd"):
        put(tmp_path / "in", name, notebook(both, before=LATER))
    put(tmp_path / "in", "eve", notebook({FIRST: WRONG["no output at all"], SECOND: right(SECOND)}))
    put(tmp_path / "in", "fay", notebook({FIRST: "import os; os._exit(0)", SECOND: right(SECOND)}))
    put(tmp_path / "in", "gus", "{")
    options = GradeOptions(folder=tmp_path / "in", out=tmp_path / "out", dask="", seed=3, allowance=QUICK)
    seen: list[str] = []
    killed: list[str] = []

    with running() as made:
        made.add_worker("one")
        made.add_worker("two")  # the grading begins as soon as one of them is there; the other comes while it runs

        def on_grade(done: Grade) -> None:
            seen.append(done.student)
            if not killed and done.student != "gus":
                killed.append(kill_a_busy_worker(made))

        result = grade(replace(options, dask=made.address), on_grade)
        assert len(killed) == 1
        assert made.processes[killed[0]].wait(10) != 0
        left = " ".join(commands_of(made))
        assert "tools.grading" not in left, "workers that live on keep nothing of a run that has ended"
    assert sorted(seen) == ["ada", "bob", "cyd", "eve", "fay", "gus"]
    assert [item.points for item in result.grades] == [2, 2, 2, 1, 1, 0]
    alone = grade(replace(options, dask=None, jobs=1, out=tmp_path / "alone"))
    assert facts(alone) == facts(result)
    assert (tmp_path / "alone/grades.csv").read_text() == (tmp_path / "out/grades.csv").read_text()
    assert grade(replace(options, dask="tcp://127.0.0.1:1")).reused == 6, "what is graded needs no cluster"


def kill_a_busy_worker(made: Cluster) -> str:
    """Kill a worker in the middle of a submission and return its name."""
    from distributed import Client

    with Client(made.address, set_as_default=False) as client:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            workers = client.scheduler_info(n_workers=-1)["workers"]
            busy = [workers[address]["name"] for address, keys in client.processing().items() if keys]
            if busy and len(workers) == 2:
                made.processes[busy[0]].kill()
                return busy[0]
            time.sleep(0.05)
    raise AssertionError("no worker is busy")


def commands_of(made: Cluster) -> list[str]:
    found = []
    for process in made.processes.values():
        if process.poll() is None:
            found += [" ".join(child.cmdline()) for child in psutil.Process(process.pid).children(recursive=True)]
    return found


def test_a_worker_with_another_version_of_the_course_declines():
    task = json.dumps({"course": "another", "run": "r"})
    answer = json.loads(_in_no_worker(task))
    assert answer == {"worker": "tcp://here:1", "course": cluster.identity()}


def _in_no_worker(task: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "_own_address", lambda: "tcp://here:1")
        return cluster.grade_task(task)


class _Future:
    """Stands in for a task of Dask that has ended."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.status = "error" if isinstance(answer, Exception) else "finished"

    def done(self) -> bool:
        return True

    def result(self) -> object:
        return self.answer

    def exception(self) -> object:
        return self.answer


class _Client:
    """Stands in for a cluster whose workers all answer in one way."""

    status = "running"

    def __init__(self, answers: dict[str, object]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.ran: list[object] = []
        self.cancelled = False

    def scheduler_info(self, n_workers: int) -> dict[str, object]:
        return {"workers": {worker: {"nthreads": 1} for worker in self.answers}}

    def submit(self, function: object, text: str, key: str, pure: bool, workers: list[str] | None = None) -> _Future:
        self.asked.append(sorted(workers or self.answers))
        return _Future(self.answers[self.asked[-1][0]])

    def cancel(self, futures: list[object], force: bool) -> None:
        assert force
        self.cancelled = True

    def run(self, function: object, name: str, on_error: str) -> None:
        self.ran.append(function)


@pytest.fixture
def submission(tmp_path: Path) -> grading.Submission:
    return grading.Submission("ada", "01_tensors", put(tmp_path, "ada", notebook()), notes=("mine",))


def on(client: _Client, submission: grading.Submission) -> tuple[list[Grade], list[str]]:
    """Grade one submission on a cluster."""
    grades: list[Grade] = []
    notes: list[str] = []
    options = GradeOptions(folder=Path(), out=Path(), dask="tcp://x:1")
    run = cluster.ClusterRun("tcp://x:1", options, lambda _, done: grades.append(done), notes.append)
    run._run(client, [(submission, "{}")])
    return grades, notes


def good(confined: str = "namespaces") -> str:
    done = Grade("", "01_tensors", "notebook.ipynb", "graded", 1, 2, (), 0.5, confined=confined)
    return json.dumps({"grade": cluster.asdict(done)})


def declines(worker: str) -> str:
    return json.dumps({"worker": worker, "course": "old"})


def test_a_submission_goes_to_the_others_when_a_worker_declines(submission):
    client = _Client({"a": declines("a"), "b": good()})
    grades, notes = on(client, submission)
    assert [(done.student, done.points, done.notes) for done in grades] == [("ada", 1, ("mine",))]
    assert client.asked == [["a", "b"], ["b"]]
    assert notes == ["The worker a has another version of the course; it gets nothing to grade."]


def test_when_all_workers_have_another_version_that_is_a_sentence(submission):
    with pytest.raises(EnvironmentProblem, match="The workers have another version of the course: a has old, here it"):
        on(_Client({"a": declines("a")}), submission)


def test_a_submission_whose_workers_are_lost_one_after_the_other_has_died(submission):
    from distributed import KilledWorker

    grades, _ = on(_Client({"a": KilledWorker("grade-1", None, 4)}), submission)
    assert (grades[0].status, grades[0].points) == ("died", 0)
    assert "the workers that had it were lost" in grades[0].notes[-1]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModuleNotFoundError("no", name="course_utils"), "A worker lacks the package 'course_utils'."),
        (EnvironmentProblem("It does not start."), "A worker can't grade: It does not start."),
        (ValueError("odd"), "A worker can't grade: ValueError: odd."),
    ],
)
def test_a_worker_that_cannot_grade_is_a_sentence(submission, error, sentence):
    with pytest.raises(EnvironmentProblem) as caught:
        on(_Client({"a": error}), submission)
    assert sentence in caught.value.what


def test_a_worker_without_walls_is_told(submission):
    _, notes = on(_Client({"a": good(confined="limits")}), submission)
    assert notes == ["A worker's system has no name spaces: submissions there reach the network and the cluster."]


def whole(client: _Client, submission: grading.Submission, monkeypatch: pytest.MonkeyPatch, on_result=print) -> bool:
    """Let a run of one submission go from the connection to its end."""

    @contextmanager
    def connected(address: str) -> Iterator[_Client]:
        yield client

    monkeypatch.setattr(cluster, "connected", connected)
    run = cluster.ClusterRun("tcp://x:1", GradeOptions(folder=Path(), out=Path()), on_result, print)
    return run.grade([submission])


def test_ctrl_c_takes_back_what_is_under_way_and_ends_what_the_workers_keep(submission, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    client = _Client({"a": good()})
    assert whole(client, submission, monkeypatch, interrupt) is True
    assert client.cancelled
    assert client.ran == [cluster.release]


def test_a_scheduler_that_goes_away_is_a_sentence(submission, monkeypatch):
    client = _Client({"a": good()})
    client.status = "closed"
    with pytest.raises(EnvironmentProblem, match="The scheduler at tcp://x:1 is gone") as caught:
        whole(client, submission, monkeypatch)
    assert "the same command goes on" in caught.value.fix


def test_no_worker_is_a_sentence(submission, monkeypatch):
    monkeypatch.setattr(cluster, "WORKERS_S", 0.1)
    with pytest.raises(EnvironmentProblem, match="No worker has joined the scheduler at tcp://x:1") as caught:
        whole(_Client({}), submission, monkeypatch)
    assert "`dask worker tcp://x:1`" in caught.value.fix


def test_what_a_worker_keeps_for_a_run_ends_with_the_run(tmp_path):
    bench = cluster.Bench()
    with bench.grader("run") as first:
        assert not first.is_closed
    with bench.grader("run") as again:
        assert again is first, "kept between submissions"
        bench.release("run")
        assert again.is_closed, "ended although it is busy"
    assert not first.folder.exists()
    assert (bench.idle, bench.busy) == ([], {})
    with bench.grader("other") as another:
        assert another is not first
    bench.clear()
    assert another.is_closed


def test_names_and_outputs_stay_here(submission):
    submission.path.write_text(json.dumps(notebook(after="x = 1")))
    options = GradeOptions(folder=Path(), out=Path())
    ((_, text),) = cluster.ClusterRun("tcp://x:1", options, print, print)._tasks([submission])
    task = json.loads(text)
    assert "ada_01" not in text
    assert not {"student", "student_id", "file", "path"} & task.keys()
    assert all("outputs" not in cell for cell in task["cells"])
    assert task["cells"][-1]["source"] == "x = 1"
    assert task["course"] == cluster.identity()


def test_no_scheduler_is_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    put(tmp_path / "in", "ada", notebook())
    line = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--dask"]
    assert cli.run([*line, "tcp://127.0.0.1:1"]) == 2
    assert "No Dask scheduler answers at tcp://127.0.0.1:1. Start one" in capsys.readouterr().err
    assert cli.run([*line, "tcp://127.0.0.1:1", "--jobs", "2"]) == 2
    assert "give --dask without --jobs." in capsys.readouterr().err
