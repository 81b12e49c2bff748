"""The runner against notebooks that fail, hang, die, flood and multiply: each gets its status, none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_utils.paths import ROOT
from course_utils.tools import processes, runner, supervision
from course_utils.tools.outcomes import Outcome
from course_utils.tools.report import RunReport
from course_utils.tools.runner import RunOptions, run_course
from tests.tools.running import code, left_over, marked_processes, outputs_text, refused, write_notebook

IGNORES_INTERRUPTS = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(0.1)"
LEAVES_CHILDREN = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1001"], start_new_session=True)
pid = os.fork()
if pid == 0:  # a daemon: a session of its own, its parent gone
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.waitpid(pid, 0)
"""
MAGIC = """
from IPython.core.magic import register_cell_magic
@register_cell_magic
def quietly(line, cell):
    get_ipython().run_cell(cell)
"""

# name -> (cells, status, a part of the sentence, id of the cell that is named)
FAULTS: dict[str, tuple[list, str, str, str | None]] = {
    "fine": (["print(1 + 1)", "import os; print(os.getcwd())"], "passed", "", None),
    "raises": (["x = 1", "x / 0", "x"], "failed", "ZeroDivisionError: division by zero", "c2"),
    "calls_sys_exit": (["import sys; sys.exit(0)", "print('never')"], "failed", "SystemExit: 0", "c1"),
    "ends_itself": (["import os; os._exit(0)", "print('never')"], "died", "exit status 0", "c1"),
    "crashes": (
        ["import os, signal\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()"],
        "died",
        "signal SIGSEGV",
        "c1",
    ),
    "takes_all_memory": (
        ["blocks = []\nwhile True: blocks.append(bytearray(10**7))"],
        "died",
        "600.0 MiB are allowed",
        "c1",
    ),
    "prints_a_hundred_megabytes": (
        ["for _ in range(100): print('x' * 1_000_000)", "print('never')"],
        "failed",
        "wrote more than 16.0 MiB of output",
        "c1",
    ),
    "makes_many_outputs": (
        ["for i in range(100_000): display(i)"],
        "failed",
        "made more than 300 outputs",
        "c1",
    ),
    "leaves_children": ([LEAVES_CHILDREN], "passed", "", None),
    "forks": (["import os\npid = os.fork()\nprint('both')"], "passed", "", None),
    "swallows_in_time": (["%%time\n1 / 0", "2"], "failed", "ZeroDivisionError: division by zero", "c1"),
    "swallows_in_magic": ([MAGIC, "%%quietly\nraise ValueError('lost')"], "failed", "a magic caught the error", "c2"),
    "is_tagged_to_raise": ([code("1 / 0", "raises-exception"), "2"], "failed", "ZeroDivisionError", "c1"),
    "is_tagged_to_be_skipped": ([code("1 / 0", "skip-execution"), "2"], "failed", "ZeroDivisionError", "c1"),
    "kills_its_worker": (["import os; os.kill(os.getppid(), 9)"], "died", "The process that ran the notebook", "c1"),
}
ALL_FAILED_RUN = [name for name, (_, status, _, _) in FAULTS.items() if status != "passed"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, str]:
    """One run of all notebooks in FAULTS, with limits that are soon reached, and the mark of its processes."""
    folder = tmp_path_factory.mktemp("faults")
    paths = [write_notebook(folder / f"{name}.ipynb", *cells) for name, (cells, *_) in FAULTS.items()]
    limits = supervision.Limits(cell_s=40, notebook_s=60, memory_bytes=600 * 2**20, cell_messages=300)
    with marked_processes() as mark, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunOptions, "limits", lambda self, jobs: limits)
        report = run_course(RunOptions(lessons=tuple(map(str, paths)), out=folder / "out", device="cpu", seed=7))
    return report, mark


def outcome(report: RunReport, name: str) -> Outcome:
    return next(outcome for outcome in report.outcomes if outcome.name == name)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_gets_its_status_and_a_sentence(faulty, name):
    _, status, part, cell_id = FAULTS[name]
    seen = outcome(faulty[0], name)
    assert (seen.status, part in (seen.error or "")) == (status, True), seen
    assert (seen.cell.id if seen.cell else None) == cell_id


def test_no_process_is_left_behind(faulty):
    assert left_over(faulty[1]) == []


def test_a_run_with_a_fault_is_not_ok(faulty):
    assert not faulty[0].ok


@pytest.mark.parametrize("name", FAULTS)
def test_the_executed_notebook_is_kept_whatever_happened(faulty, name):
    report = faulty[0]
    notebook = json.loads((report.out / f"{name}.ipynb").read_text())
    tags = [tag for cell in notebook["cells"] for tag in cell["metadata"].get("tags", [])]
    assert tags.count("injected-parameters") == 1
    assert ("papermill-error-cell-tag" in tags) == (name in ALL_FAILED_RUN)


def test_executed_notebooks_are_valid(faulty):
    import nbformat

    for name in FAULTS:
        nbformat.validate(nbformat.read(faulty[0].out / f"{name}.ipynb", as_version=4))


def test_the_cells_before_a_failure_keep_their_outputs_and_those_after_never_ran(faulty):
    notebook = json.loads((faulty[0].out / "raises.ipynb").read_text())
    counts = {cell["id"]: cell.get("execution_count") for cell in notebook["cells"]}
    assert (counts["c1"], counts["c2"], counts["c3"]) == (3, 4, None)
    assert outcome(faulty[0], "raises").cells_run == 3
    assert outcome(faulty[0], "raises").cells_total == 5


def test_an_error_comes_with_its_traceback(faulty):
    assert "ZeroDivisionError" in outcome(faulty[0], "raises").traceback


def test_a_crash_says_where_in_the_cell_it_was(faulty):
    assert 'File "<cell>", line 3 in crash' in outcome(faulty[0], "crashes").traceback


def test_the_kernel_runs_in_the_folder_of_its_notebook(faulty):
    report = faulty[0]
    assert outputs_text(report.out / "fine.ipynb", "c2").strip() == str(report.out.parent)


def test_output_that_is_too_much_is_cut_with_a_sentence(faulty):
    text = outputs_text(faulty[0].out / "prints_a_hundred_megabytes.ipynb", "c1")
    assert 15 * 2**20 < len(text) <= 17 * 2**20
    assert "[Left out from here: this cell wrote more than 16.0 MiB of output.]" in text


def test_children_that_were_left_are_reported(faulty):
    (note,) = outcome(faulty[0], "leaves_children").notes
    assert note.startswith("3 processes still ran at the end and were stopped:")
    assert "sleep 1000" in note


def test_peak_memory_and_processor_time_are_those_of_the_kernel(faulty):
    hungry, fine = outcome(faulty[0], "takes_all_memory"), outcome(faulty[0], "fine")
    assert 20 < fine.peak_mib < 200
    assert 600 < hungry.peak_mib < 1500
    assert 0.1 < fine.cpu_seconds < 30


class Stopwatch:
    """Runs notebooks with deadlines that are soon over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *cells: str, more: tuple[Path, ...] = (), **options: object) -> RunReport:
        path = write_notebook(self.folder / "slow.ipynb", *cells)
        lessons = tuple(map(str, (path, *more)))
        options = {"device": "cpu", "out": self.folder / "out", "jobs": 1, **options}
        return run_course(RunOptions(lessons=lessons, **options))


@pytest.fixture
def stopwatch(tmp_path: Path) -> Iterator[Stopwatch]:
    with marked_processes() as mark:
        yield Stopwatch(tmp_path)
        assert left_over(mark) == []


def test_a_cell_that_takes_too_long_is_interrupted_where_it_is(stopwatch):
    report = stopwatch.run("import time\ntime.sleep(60)", "2", cell_timeout_s=2)
    seen = report.outcomes[0]
    assert (seen.status, seen.cell.id) == ("timeout", "c1")
    assert seen.error == "Cell 3 (id 'c1') ran longer than 2 s."
    assert "KeyboardInterrupt" in seen.traceback
    assert seen.seconds < 30


def test_a_cell_that_ignores_interrupts_is_killed_and_its_stack_is_shown(stopwatch):
    report = stopwatch.run(f"def wait():\n{textwrap.indent(IGNORES_INTERRUPTS, '    ')}\nwait()", cell_timeout_s=2)
    seen = report.outcomes[0]
    assert (seen.status, seen.cell.id) == ("timeout", "c1")
    assert 'File "<cell>", line 4 in wait' in seen.traceback


def test_a_cell_that_survives_its_interrupt_does_not_pass(stopwatch):
    survives = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')"
    seen = stopwatch.run(survives, "time.sleep(60)", cell_timeout_s=2).outcomes[0]
    assert (seen.status, seen.cell.id) == ("timeout", "c1")
    assert outputs_text(seen.notebook, "c1") == "caught\n"


def test_a_worker_that_is_wedged_does_not_sink_the_run(stopwatch, monkeypatch, tmp_path):
    monkeypatch.setattr(supervision, "INTERRUPT_S", 0.3)
    monkeypatch.setattr(supervision, "REPORT_S", 0.5)
    after = write_notebook(tmp_path / "after.ipynb", "1")
    halt = "import os, signal, time\nprint('halted', flush=True)\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)"
    report = stopwatch.run(halt, more=(after,), cell_timeout_s=1.5)
    assert [seen.status for seen in report.outcomes] == ["timeout", "passed"]


def test_a_pool_that_waits_for_ever_is_ended_with_its_children(stopwatch):
    pool = "import multiprocessing\ndef f(x): return x\nmultiprocessing.get_context('spawn').Pool(1).map(f, [1])"
    assert stopwatch.run(pool, cell_timeout_s=1.5).outcomes[0].status == "timeout"


def test_a_fork_bomb_is_stopped(stopwatch, monkeypatch):
    limits = supervision.Limits(processes=20, cell_s=20, notebook_s=30)
    monkeypatch.setattr(RunOptions, "limits", lambda self, jobs: limits)
    bomb = "import os, time\nfor _ in range(6): os.fork()\ntime.sleep(60)"
    seen = stopwatch.run(bomb).outcomes[0]
    assert (seen.status, "it had more than 20 processes" in seen.error) == ("died", True)


def test_the_deadline_of_a_notebook_counts_all_its_cells(stopwatch):
    seen = stopwatch.run("import time", *["time.sleep(0.4)"] * 20, timeout_s=2.5).outcomes[0]
    assert (seen.status, seen.cells_run > 1) == ("timeout", True)
    assert "The notebook ran longer than 2.5 s" in seen.error


def test_the_deadline_of_the_run_skips_what_has_not_started(stopwatch, tmp_path):
    late = write_notebook(tmp_path / "late.ipynb", "1")
    report = stopwatch.run("import time; time.sleep(60)", more=(late,), job_timeout_s=2.5)
    assert [seen.status for seen in report.outcomes] == ["timeout", "skipped"]
    assert "was not started" in report.outcomes[1].error


def test_one_message_that_is_too_large_costs_its_cell_not_the_memory_of_the_runner(stopwatch, monkeypatch):
    limits = supervision.Limits(output_wait_s=1, cell_s=30, notebook_s=60)
    monkeypatch.setattr(RunOptions, "limits", lambda self, jobs: limits)
    seen = stopwatch.run("print('x' * 150_000_000)").outcomes[0]
    assert (seen.status, "some of its output is lost" in seen.error) == ("failed", True)


def test_what_a_process_of_an_earlier_cell_prints_is_not_lost_while_the_notebook_runs(stopwatch):
    late = "import subprocess, time; process = subprocess.Popen(['sh', '-c', 'sleep 0.5; echo late'])"
    seen = stopwatch.run(late, "process.wait(); time.sleep(1)").outcomes[0]
    assert outputs_text(seen.notebook, "c1") + outputs_text(seen.notebook, "c2") == "late\n"


def script(folder: Path, *lessons: Path) -> str:
    names = tuple(map(str, lessons))
    return textwrap.dedent(f"""
        from course_utils.tools.runner import RunOptions, run_course
        from pathlib import Path
        report = run_course(RunOptions(lessons={names!r}, out=Path({str(folder)!r}), device="cpu", jobs=1))
        raise SystemExit(130 if report.interrupted else not report.ok)
    """)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A runner in its own process, in the second of three notebooks, which sleeps and has a daemon."""
    quick = write_notebook(tmp_path / "quick.ipynb", "1")
    stuck = write_notebook(tmp_path / "stuck.ipynb", LEAVES_CHILDREN, "open('here', 'w').close()", IGNORES_INTERRUPTS)
    never = write_notebook(tmp_path / "never.ipynb", "1")
    (tmp_path / "temporary").mkdir()
    with marked_processes() as mark:
        command = [sys.executable, "-c", script(tmp_path / "out", quick, stuck, never)]
        env = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL, env=env)
        deadline = time.monotonic() + 40
        while not (tmp_path / "here").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield process, mark
        process.kill()
        process.wait()
        assert left_over(mark) == []


def test_ctrl_c_ends_the_run_within_seconds_and_leaves_a_report(started, tmp_path):
    process, mark = started
    clock = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - clock < 5
    assert left_over(mark, wait_s=0) == []
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [entry["status"] for entry in report["notebooks"]] == ["passed", "skipped", "skipped"]
    assert report["interrupted"]
    assert {"report.html", "junit.xml", "quick.ipynb", "stuck.ipynb"} <= {p.name for p in (tmp_path / "out").iterdir()}


def test_a_runner_that_is_killed_takes_its_kernels_and_short_lived_files_along(started, tmp_path):
    process, mark = started
    assert list((tmp_path / "temporary").glob("course~*"))
    process.kill()
    process.wait()
    assert left_over(mark) == []
    assert not list((tmp_path / "temporary").glob("course~*"))


PRINT_FACTS = """
import json, os, sys, tempfile
names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "COURSE_PROGRESS", "PYTHONPATH", "MPLBACKEND"]
facts = {name: os.environ.get(name) for name in names}
facts |= {"SEED": SEED, "DEVICE": DEVICE, "FAST": FAST, "EXTRA": EXTRA, "python": sys.executable, "cwd": os.getcwd()}
facts["oom"] = open("/proc/self/oom_score_adj").read().strip() if sys.platform == "linux" else "1000"
facts["scratch"] = tempfile.mkdtemp()
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a kernel finds: parameters, environment, folder."""
    folder = tmp_path_factory.mktemp("facts {with} braces")
    path = write_notebook(folder / "facts.ipynb", PRINT_FACTS, parameters='SEED = 0\nDEVICE = ""\nFAST = 1\nEXTRA = 0')
    notebook = json.loads(path.read_text())
    notebook["metadata"]["kernelspec"] = {"name": "py39_new", "display_name": "my env", "language": "python"}
    path.write_text(json.dumps(notebook))
    (folder / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "core_count", lambda: 6)
        patch.setenv("PYTHONPATH", "/somewhere")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MPLBACKEND"):
            patch.delenv(name, raising=False)
        options = RunOptions(
            lessons=(str(path),),
            out=folder / "out",
            device="cpu",
            seed=41,
            full=True,
            parameters={"EXTRA": (1, "two", None, {"three": 3.5})},
            cwd=folder / "elsewhere",
        )
        report = run_course(options)
    assert report.ok, report.summary()
    return json.loads(outputs_text(report.out / "facts.ipynb", "c1")) | {"folder": str(folder), "report": report}


def test_parameters_arrive_with_their_values(facts):
    assert {name: facts[name] for name in ("SEED", "DEVICE", "FAST")} == {"SEED": 41, "DEVICE": "cpu", "FAST": False}
    assert facts["EXTRA"] == [1, "two", None, {"three": 3.5}]


def test_the_kernel_is_this_interpreter_whatever_the_notebook_names(facts):
    assert facts["python"] == sys.executable


def test_the_kernel_gets_the_cores_that_are_its_share(facts):
    assert (facts["OMP_NUM_THREADS"], facts["MKL_NUM_THREADS"]) == ("6", "6")


def test_the_environment_is_that_of_every_course_kernel(facts):
    assert facts["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert "/somewhere" in facts["PYTHONPATH"]
    assert (facts["PYTHONHASHSEED"], facts["COURSE_PROGRESS"]) == ("0", "off")


def test_the_working_folder_can_be_named(facts):
    assert facts["cwd"] == str(Path(str(facts["folder"])) / "elsewhere")


def test_temporary_files_of_a_kernel_go_with_the_run_though_nobody_removed_them(facts):
    scratch = Path(str(facts["scratch"]))
    assert scratch.parents[2].name.startswith("course~")
    assert not scratch.exists()


def test_a_kernel_goes_before_the_runner_when_the_machine_is_out_of_memory(facts):
    assert facts["oom"] == "1000"


def test_the_report_knows_how_the_run_was_set_up(facts):
    report = facts["report"]
    assert (report.device, report.seed, report.jobs, report.threads) == ("cpu", 41, 1, 6)
    assert report.parameters["EXTRA"] == [1, "two", None, {"three": 3.5}]
    assert report.versions["papermill"]


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    def full(_report: RunReport) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "write_report", full)
    monkeypatch.setattr(runner, "run_jobs", lambda *_, **__: ((), False))
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), device="cpu", out=tmp_path / "out"))
    assert "The report can't be written" in text
    assert "No space left on device" in text


def test_a_worker_that_does_not_start_is_one_sentence_with_its_reason(tmp_path, monkeypatch):
    broken = tmp_path / "broken" / "papermill"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('papermill is in pieces')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), device="cpu", out=tmp_path / "out", jobs=1))
    assert "The process that runs notebooks does not start." in text
    assert "papermill is in pieces" in text
