"""Many runs in one command, and runs that go on where they were interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from course_utils import cli
from course_utils.errors import UsageError
from course_utils.paths import ROOT
from course_utils.tools import kept, matrix, processes
from course_utils.tools.kept import only_one
from course_utils.tools.matrix import Matrix, resume, run_matrix
from course_utils.tools.runner import RunOptions
from tests.tools.running import left_over, marked_processes, outputs_text, write_notebook

WITH_RATE = 'SEED = 0\nDEVICE = "auto"\nFAST = True\nLR = 0.1'
# Notes each start; the run with seed 1 stays in its second notebook until the file "go" is there.
NOTE = "import os, time\nopen({log!r}, 'a').write(f'{name} {{SEED}}\\n')\n"
STAY = "while SEED == 1 and not os.path.exists({go!r}):\n    open({here!r}, 'w').close()\n    time.sleep(0.05)"


def test_every_combination_has_a_name_of_its_own():
    axes = Matrix(seeds=(0, 1), devices=("cpu",), parameters={"LR": (0.1, 0.01), "NAME": ("a/b", "a b")})
    runs = dict(axes.runs(RunOptions(parameters={"X": 5})))
    assert len(runs) == 8
    assert list(runs)[:3] == ["seed-0_LR-0.1_NAME-a-b", "seed-0_LR-0.1_NAME-a-b-2", "seed-0_LR-0.01_NAME-a-b"]
    last = runs["seed-1_LR-0.01_NAME-a-b-2"]
    assert (last.seed, last.device, last.parameters) == (1, "cpu", {"X": 5, "LR": 0.01, "NAME": "a b"})


def test_values_that_are_named_twice_run_once():
    runs = Matrix(seeds=(0, 0, 1), parameters={"LR": (1, 1)}).runs(RunOptions())
    assert [name for name, _ in runs] == ["seed-0", "seed-1"]
    assert Matrix(seeds=(3,), devices=("cpu",), parameters={"LR": (1,)}).is_one


def test_a_matrix_that_is_a_slip_of_the_hand_is_refused():
    with pytest.raises(UsageError, match="These are 2,000 runs"):
        Matrix(seeds=tuple(range(1000)), devices=("cpu", "auto")).runs(RunOptions())


def test_each_run_has_its_folder_with_notebook_parameters_environment_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    path = write_notebook(tmp_path / "n.ipynb", "print(SEED, LR)", parameters=WITH_RATE)
    options = RunOptions(
        lessons=(str(path),), device="cpu", out=tmp_path / "out", show_progress=False, environment=True
    )
    report = run_matrix(options, Matrix(seeds=(0, 1), parameters={"LR": (0.1, 0.5)}))
    assert report.ok
    seen = {name: outputs_text(tmp_path / "out" / name / "n.ipynb", "c1") for name, _ in report.runs}
    assert seen == {
        "seed-0_LR-0.1": "0 0.1\n",
        "seed-0_LR-0.5": "0 0.5\n",
        "seed-1_LR-0.1": "1 0.1\n",
        "seed-1_LR-0.5": "1 0.5\n",
    }
    folder = tmp_path / "out" / "seed-1_LR-0.5"
    assert json.loads((folder / "parameters.json").read_text()) == {
        "SEED": 1, "DEVICE": "cpu", "FAST": True, "LR": 0.5
    }  # fmt: skip
    assert {"python", "torch", "device", "problems"} <= json.loads((folder / "environment.json").read_text()).keys()
    mine = json.loads((folder / "report.json").read_text())
    assert (mine["seed"], mine["seconds"] > 0, mine["notebooks"][0]["status"]) == (1, True, "passed")
    whole = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [entry["run"] for entry in whole["notebooks"]] == list(seen)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f'href="{name}/report.html"' in page for name in seen)
    assert "4 runs passed" in report.summary()


# Interrupted, killed, resumed


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start a matrix of two seeds and two notebooks; it gets as far as the second notebook with seed 1."""
    facts = {name: str(tmp_path / name) for name in ("log", "go", "here")}
    quick = write_notebook(tmp_path / "quick.ipynb", NOTE.format(name="quick", **facts))
    slow = write_notebook(tmp_path / "slow.ipynb", (NOTE + STAY).format(name="slow", **facts), "print('end', SEED)")
    program = textwrap.dedent(f"""
        from pathlib import Path
        from course_utils.tools import kept
        from course_utils.tools.matrix import Matrix, run_matrix
        from course_utils.tools.runner import RunOptions
        kept.code_digest = lambda: "the course, unchanged"
        lessons, out = {(str(quick), str(slow))!r}, Path({str(tmp_path / "out")!r})
        options = RunOptions(lessons=lessons, device="cpu", jobs=1, out=out)
        report = run_matrix(options, Matrix(seeds=(0, 1)))
        print(report.summary())
        raise SystemExit(130 if report.interrupted else not report.ok)
    """)
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_resumed_run_repeats_nothing_that_is_done(tmp_path, monkeypatch, number):
    monkeypatch.setattr(kept, "code_digest", lambda: "the course, unchanged")  # somebody may be editing it meanwhile
    with marked_processes() as mark:
        process = start(tmp_path)
        deadline = time.monotonic() + 60
        while not (tmp_path / "here").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, number)
        said = process.communicate(timeout=30)[0].decode()
        assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
        assert left_over(mark) == []
    if number == signal.SIGINT:
        assert f"`course run --resume {tmp_path / 'out'}` goes on" in said
    (tmp_path / "go").touch()
    report = resume(tmp_path / "out", show_progress=False)
    assert (report.ok, [name for name, _ in report.runs]) == (True, ["seed-0", "seed-1"])
    assert [len(run.outcomes) for _, run in report.runs] == [2, 2]
    assert (tmp_path / "log").read_text().splitlines() == ["quick 0", "slow 0", "quick 1", "slow 1", "slow 1"]
    assert outputs_text(tmp_path / "out" / "seed-1" / "slow.ipynb", "c2") == "end 1\n"
    if number == signal.SIGINT:  # once more, and nothing is left to do; then a notebook changes
        return
    assert resume(tmp_path / "out", show_progress=False).ok
    write_notebook(tmp_path / "quick.ipynb", NOTE.format(name="new", log=str(tmp_path / "log")))
    assert resume(tmp_path / "out", show_progress=False).ok
    assert (tmp_path / "log").read_text().splitlines()[5:] == ["new 0", "new 1"]


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path, capsys):
    assert cli.run(["run", "--resume", str(tmp_path)]) == 2
    assert "No run can be resumed in" in (err := capsys.readouterr().err)
    assert "it has no run.json. Name the folder" in err
    (tmp_path / "run.json").write_text("{")
    assert cli.run(["run", "--resume", str(tmp_path)]) == 2
    assert "its run.json can't be read" in capsys.readouterr().err


def test_two_processes_do_not_run_into_one_folder(tmp_path):
    with only_one(tmp_path), pytest.raises(UsageError, match="Another process is running notebooks into"), only_one(
        tmp_path
    ):  # fmt: skip
        pass


# The command line


@pytest.mark.parametrize(
    ("line", "seeds", "devices", "parameters"),
    [
        ("--seed 0,2 --seed 5-7", (0, 2, 5, 6, 7), (), {}),
        ("--device cpu --device auto", (), ("cpu", "auto"), {}),
        ("-p LR 1e-1 -p LR 2", (), (), {"LR": (0.1, 2)}),
    ],
)
def test_several_values_make_a_matrix(monkeypatch, line, seeds, devices, parameters):
    seen = []
    monkeypatch.setattr(matrix, "run_matrix", lambda options, axes: seen.append(axes) or _Done())
    assert cli.run(["run", *line.split()]) == 0
    assert seen == [Matrix(seeds=seeds, devices=devices, parameters=parameters)]


class _Done:
    ok, interrupted = True, False

    def summary(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--seed x", "'x' is no seed; give a whole number, or several as 0,1,2 or 0-9."),
        ("--seed 3-1", "'3-1' is no seed"),
        ("--resume there --seed 3", "--resume goes on with what was asked then; leave out --seed."),
        ("00 -p SEEED 1", "The notebook 00_start.ipynb has no parameter called 'SEEED'. Did you mean 'SEED'?"),
        ("00 -p RATE 1 -p RATE 2 --seed 0,1", "The notebook 00_start.ipynb has no parameter called 'RATE'."),
    ],
)
def test_wrong_usage_is_a_sentence_and_nothing_starts(tmp_path, capsys, line, sentence):
    assert cli.run(["run", *line.split(), *([] if "--resume" in line else ["--out", str(tmp_path / "out")])]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
