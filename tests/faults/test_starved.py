"""Little memory, one core, no shared memory, a clock set back, a user without a name: it works, or says why not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from course_utils.errors import EnvironmentProblem, out_of_memory
from course_utils.paths import ROOT
from tests.faults.campaign import draws, report, size
from tests.tiny_checkout import begin, facts, finish, make_checkout, make_quick_venv, make_wheel, tiny_env
from tests.tools.running import left_over, marked_processes, write_notebook

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.faults
MIB = 2**20
READS = {"progress": ["progress"], "env": ["env"], "reset": ["reset", "01"], "update": ["update"]}
WORKERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
for batch in DataLoader(TensorDataset(torch.zeros(64, 100_000)), batch_size=16, num_workers=2):
    pass
print(len(batch))
"""
RUN = """
import sys
from pathlib import Path
from course_utils.tools.runner import RunOptions, run_course
run_course(RunOptions(lessons=(sys.argv[1],), out=Path(sys.argv[2]), device="cpu"))
"""


def campaign_only() -> None:
    if not size(0, 1):
        pytest.skip("a part of course.py test --faults")


def course(
    folder: Path, words: list[str], before: Callable[[], None] | None = None, by: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with a workspace and a place for temporary files of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    env = os.environ | {
        "COURSE_WORKSPACE": str(folder / "mine"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT),
    }
    env.pop("COURSE_PROGRESS", None)
    return subprocess.run(
        [*by, sys.executable, "-m", "course_utils", *words], cwd=folder, env=env | more, preexec_fn=before,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def run_small(folder: Path, code: str, by: tuple[str, ...] = (), before: Callable[[], None] | None = None) -> dict:
    """Run a notebook with one cell; return its entry in the report."""
    path = write_notebook(folder / "a.ipynb", code)
    done = subprocess.run(
        [*by, sys.executable, "-c", RUN, str(path), str(folder / "out")], cwd=ROOT, preexec_fn=before,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (folder / "out" / "report.json").is_file(), done.stdout + done.stderr
    (entry,) = json.loads((folder / "out" / "report.json").read_text())["notebooks"]
    return entry


# --- memory


def little_memory(mib: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (RuntimeError("std::bad_alloc"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_an_error_about_memory_is_told_from_others(error, is_memory):
    problem = out_of_memory(error)
    assert isinstance(problem, EnvironmentProblem) == is_memory
    if problem:
        assert problem.sentence.startswith("There is not enough memory")
        assert "raise the limit" in problem.sentence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on address space count on Linux")
def test_a_command_without_enough_memory_works_or_says_so_in_one_sentence(tmp_path):
    ended = {"works": 0, "says so": 0}
    for number in range(size(sample=1, whole=40)):
        draw = draws("memory", number)
        name = "progress" if number == 0 else draw.choice(list(READS))
        mib = 300 if number == 0 else draw.choice([40, 100, 300, 700, 1500, 2500, 3000, 3500, 5000])
        done = course(tmp_path, READS[name], little_memory(mib))
        said = done.stdout + done.stderr
        where = f"{name} with {mib} MiB: {said}"
        assert "Traceback" not in said, where
        assert "did not foresee" not in said, where
        if done.returncode == 0:
            ended["works"] += 1
            continue
        assert done.returncode == (2 if name != "env" else 0), where
        ended["says so"] += 1
        assert done.stderr.startswith("There is not enough memory"), where
        assert len(done.stderr.strip().splitlines()) == 1, where
    assert ended["says so"], "no limit was small enough"
    report("memory limit", f"{ended['works']} work, {ended['says so']} say that there is not enough memory")


def test_a_notebook_without_enough_memory_has_a_note_about_it(tmp_path):
    campaign_only()
    entry = run_small(tmp_path, "import torch", before=little_memory(2500))
    assert entry["status"] == "failed"
    assert any("not enough memory" in note for note in entry["notes"]), entry
    report("memory limit, a notebook", "failed, with a note")


# --- shared memory


@pytest.mark.parametrize("options", ["size=64k", "ro"])
def test_a_notebook_without_shared_memory_has_a_note_about_it(options, tmp_path):
    campaign_only()
    by = ("unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"', "sh")
    if not shutil.which("unshare") or subprocess.run([*by, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount of its own")
    entry = run_small(tmp_path, WORKERS, by=by)
    assert entry["status"] == "failed"
    assert any("/dev/shm" in note for note in entry["notes"]), entry
    report(f"/dev/shm, {options}", "failed, with a note")


# --- one core


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a way to take cores away")
def test_one_core_is_enough(tmp_path):
    campaign_only()
    core = min(os.sched_getaffinity(0))
    entry = run_small(tmp_path, WORKERS, before=lambda: os.sched_setaffinity(0, {core}))
    assert entry["status"] == "passed", entry
    done = course(tmp_path, ["env"], lambda: os.sched_setaffinity(0, {core}))
    assert "on 1 core" in done.stdout
    report("one core", "a notebook with two workers runs")


# --- the clock

# The clock stands still in the year 2001, for the course's own code: no file is older than that.
OLD_CLOCK = """
import datetime, sys, time
time.time = lambda: 1e9
class Then(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(1e9, tz)
datetime.datetime = Then
from course_utils.cli import run
raise SystemExit(run(sys.argv[1:]))
"""


def test_a_clock_that_was_set_back_loses_nothing(tmp_path):
    env = os.environ | {"COURSE_WORKSPACE": str(tmp_path / "mine"), "PYTHONPATH": str(ROOT)}
    notebook = tmp_path / "mine" / "01_tensors.ipynb"

    def do(*words: str) -> str:
        done = subprocess.run([sys.executable, "-c", OLD_CLOCK, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    do("update")
    answers = [f"my answer {number}" for number in range(size(sample=2, whole=5))]
    for answer in answers:
        content = json.loads(notebook.read_text())
        content["cells"][0]["source"] = answer
        notebook.write_text(json.dumps(content))
        os.utime(notebook, (time.time() + 86_400,) * 2)
        do("reset", "01")
    backups = [path.read_text() for path in (tmp_path / "mine").glob("01_tensors.backup-*.ipynb")]
    assert [any(answer in text for text in backups) for answer in answers] == [True] * len(answers)
    assert not any(answer in notebook.read_text() for answer in answers)
    report("clock set back", f"{len(answers)} copies taken in one second of the year 2001, none lost")


# --- a user that the system doesn't know

NAMELESS = 12345


def nameless() -> tuple[str, ...]:
    """Return the words before a command that make it run as nobody in particular, who may read all."""
    words = (
        "setpriv", f"--reuid={NAMELESS}", f"--regid={NAMELESS}", "--clear-groups", "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search", "env", "-u", "USER", "-u", "LOGNAME",
    )  # fmt: skip
    if not shutil.which("setpriv") or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("needs root, and setpriv")
    return words


@pytest.mark.parametrize("home", [None, "/", "/nowhere/at/all"])
def test_a_user_without_a_name_or_a_home_can_work(home, tmp_path):
    campaign_only()
    by = (*nameless(), *(["-u", "HOME"] if home is None else [f"HOME={home}"]))
    os.chown(tmp_path, NAMELESS, NAMELESS)
    (tmp_path / "tmp").mkdir()
    os.chown(tmp_path / "tmp", NAMELESS, NAMELESS)
    for words in READS.values():
        done = course(tmp_path, words, by=by, PYTHONDONTWRITEBYTECODE="1", COURSE_DATA=str(tmp_path / "data"))
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
    report(f"a user without a name, home {home}", ", ".join(READS))


def test_jupyterlab_starts_for_a_user_without_a_home(tmp_path):
    campaign_only()
    by = (*nameless(), "-u", "HOME")
    os.chown(tmp_path, NAMELESS, NAMELESS)
    env = os.environ | {"COURSE_WORKSPACE": str(tmp_path / "mine"), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [*by, sys.executable, "-m", "course_utils", "lab", "--no-browser"], env=env | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        said = []
        while line := process.stdout.readline():
            said.append(line)
            if "token=" in line:
                break
        assert "token=" in said[-1], "".join(said)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    report("JupyterLab for a user without a home", "starts")


# --- set-up


@contextlib.contextmanager
def tiny(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a tiny checkout, and variables for a start of it that needs no network and is quick."""
    wheels = make_wheel(folder / "wheels").parent
    env = tiny_env(wheels, PYTHONPATH=str(make_quick_venv(folder / "quick")), TMPDIR=str(folder / "tmp"))
    (folder / "tmp").mkdir()
    yield make_checkout(folder / "a course"), env


def test_a_set_up_killed_at_any_instant_is_completed_by_the_same_command(tmp_path):
    kills = size(sample=2, whole=25)
    (tmp_path / "quick").mkdir()
    with tiny(tmp_path) as (_, env), marked_processes() as mark:
        env |= {name: value for name, value in os.environ.items() if value == mark}
        clean = make_checkout(tmp_path / "first")
        clock = time.monotonic()
        code, out, err = finish(begin(clean, "setup", env=env))
        span_s = time.monotonic() - clock
        assert code == 0, err
        in_time = 0
        for number in range(kills):
            draw = draws("setup", number)
            checkout = make_checkout(tmp_path / f"checkout {number}")
            process = begin(checkout, "setup", env=env)
            time.sleep(draw.uniform(0, span_s))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            in_time += process.returncode == -signal.SIGKILL
            code, out, err = finish(begin(checkout, "setup", env=env))
            assert code == 0, f"kill {number} of {span_s:.1f} s: {err}"
            assert "Traceback" not in err
            assert facts(out)["prefix"] == str(checkout / ".venv")
            assert left_over(mark, wait_s=60) == []
            shutil.rmtree(checkout)
    report("kill, setup", f"{in_time} kills, 0 with a loss")
