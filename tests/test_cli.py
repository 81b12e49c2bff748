"""The command line: what it passes on, what it prints, and the code it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from course_utils import cli
from course_utils.errors import EnvironmentProblem
from course_utils.tools import build, envreport, lab, runner, testing
from course_utils.tools.commands import COMMANDS, CPU_COMMANDS

REPORT = {
    "python": "3.11.7", "torch": "2.14.1", "torchvision": "0.29.1", "cuda": None, "device": "cpu", "threads": 2,
    "deterministic": False, "data": [], "problems": [], "platform": "Linux", "cores": 2, "environment": "/venv",
    "workspace": "/w",
}  # fmt: skip
PROGRESS = [
    {
        "lesson": "01_tensors",
        "exercises": [
            {"id": "tensors.softmax", "title": "Softmax", "state": "done"},
            {"id": "tensors.view", "title": "Views", "state": "tried"},
        ],
        "clinic": [{"id": "tensors.loss", "title": "A loss", "state": "todo"}],
    }
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand-ins for what the commands call; the dictionary holds what each was called with."""
    seen: dict[str, Any] = {"ok": True, "interrupted": False, "report": dict(REPORT)}

    def result() -> SimpleNamespace:
        return SimpleNamespace(ok=seen["ok"], interrupted=seen["interrupted"], summary=lambda: "the summary")

    def fake_run(options: runner.RunOptions) -> SimpleNamespace:
        seen["run"] = options
        return result()

    def fake_build(lessons: tuple[str, ...], **options: Any) -> SimpleNamespace:
        seen["build"] = lessons, options
        return result()

    def fake_lab(lesson: str | None, **options: Any) -> int:
        seen["lab"] = lesson, options
        return 0

    def fake_reset(lesson: str) -> str:
        seen["reset"] = lesson
        return "fresh again"

    def fake_tests(args: tuple[str, ...]) -> int:
        seen["test"] = args
        return 1

    monkeypatch.setattr(runner, "run_course", fake_run)
    monkeypatch.setattr(build, "build", fake_build)
    monkeypatch.setattr(lab, "open_lab", fake_lab)
    monkeypatch.setattr(lab, "reset", fake_reset)
    monkeypatch.setattr(testing, "run_tests", fake_tests)
    monkeypatch.setattr(envreport, "collect", lambda: seen["report"])
    monkeypatch.setattr("course_utils.exercises.progress.summary", lambda: PROGRESS)
    return seen


# The list of commands


def test_every_command_has_its_line_in_the_list_and_the_other_way_round():
    assert set(cli.cli.commands) == set(COMMANDS)
    assert {name: command.short_help for name, command in cli.cli.commands.items()} == COMMANDS


def test_the_commands_that_take_cpu_are_those_of_the_list():
    with_cpu = {name for name, command in cli.cli.commands.items() if any(p.name == "cpu" for p in command.params)}
    assert with_cpu == set(CPU_COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    assert cli.run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: course {name}")
    options = [param for param in cli.cli.commands[name].params if isinstance(param, click.Option)]
    assert all(option.help for option in options), "each option says what it does"


def test_help_lists_the_commands_in_the_order_of_the_list(capsys):
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    places = [out.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)


# What is passed on


def test_run_passes_every_option_on(calls):
    line = (
        "run 1 training --edition solutions --device cpu --seed 3 --full -p LR 1e-3 -p NAME x -p SHIFT -1 "
        "--jobs 2 --timeout 60.5 --out there"
    )
    assert cli.run(line.split()) == 0
    assert calls["run"] == runner.RunOptions(
        lessons=("01_tensors", "05_training"), edition="solutions", device="cpu", seed=3, full=True,
        parameters={"LR": 1e-3, "NAME": "x", "SHIFT": -1}, jobs=2, timeout_s=60.5, out=Path("there"), environment=True,
    )  # fmt: skip


def test_run_without_options_is_the_whole_course_by_the_runners_defaults(calls):
    assert cli.run(["run"]) == 0
    assert calls["run"] == runner.RunOptions(environment=True)


def test_build_passes_its_options_on(calls):
    assert cli.run(["build", "--check", "00", "--jobs", "2"]) == 0
    assert calls["build"] == (("00_start",), {"check": True, "jobs": 2, "force": False})


@pytest.mark.parametrize("name", ["01", "1", "tensors", "01_tensors", "01_tensors.ipynb"])
def test_a_lesson_goes_by_its_number_and_its_name(name, calls):
    assert cli.run(["lab", name, "--no-browser", "--port", "8899"]) == 0
    assert calls["lab"] == ("01_tensors", {"browser": False, "port": 8899})


def test_lab_without_a_lesson_opens_a_browser_on_a_free_port(calls):
    assert cli.run(["lab"]) == 0
    assert calls["lab"] == (None, {"browser": True, "port": None})


def test_reset_says_what_was_done(calls, capsys):
    assert cli.run(["reset", "5"]) == 0
    assert calls["reset"] == "05_training"
    assert capsys.readouterr().out == "fresh again\n"


def test_test_gives_its_arguments_to_pytest_and_its_code_back(calls):
    assert cli.run(["test", "-x", "-k", "hash", "tests/test_cli.py", "--durations=3", "-khash"]) == 1
    assert calls["test"] == ("-x", "-k", "hash", "tests/test_cli.py", "--durations=3", "-khash")


def test_cpu_is_accepted_where_there_is_nothing_to_set_up(calls):
    assert cli.run(["run", "--cpu"]) == 0
    assert cli.run(["--cpu", "test"]) == 1
    assert calls["test"] == ()


# What is printed


def test_progress_is_a_table_with_what_to_return_to(calls, capsys):
    assert cli.run(["progress"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lesson", "exercises", "clinic"]
    assert lines[2].split() == ["01_tensors", "1", "of", "2", "0", "of", "1"]
    assert lines[-2:] == ["Tried, not right yet:", "  tensors.view: Views"]


def test_progress_for_programs_keeps_its_shape(calls, capsys):
    assert cli.run(["progress", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == PROGRESS


def test_env_for_programs_keeps_its_keys(calls, capsys):
    assert cli.run(["env", "--json"]) == 0
    keys = {"python", "torch", "torchvision", "cuda", "device", "threads", "deterministic", "data", "problems"}
    assert keys <= json.loads(capsys.readouterr().out).keys()


def test_setup_ends_with_1_if_something_is_wrong_and_env_only_reports_it(calls, capsys):
    assert cli.run(["setup"]) == 0
    calls["report"]["problems"] = ["The disk is on fire; put it out."]
    assert cli.run(["setup"]) == 1
    assert cli.run(["env"]) == 0
    assert capsys.readouterr().out.count("  - The disk is on fire; put it out.") == 2


# Exit codes


@pytest.mark.parametrize(
    ("ok", "interrupted", "code"),
    [(True, False, 0), (False, False, 1), (False, True, 130)],
    ids=["ok", "not ok", "ctrl-c"],
)
def test_the_code_of_a_run_tells_how_it_went(ok, interrupted, code, calls, capsys):
    calls |= {"ok": ok, "interrupted": interrupted}
    assert cli.run(["run"]) == code
    assert capsys.readouterr().out == "the summary\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("rum", "There is no command 'rum'. Did you mean 'run'?"),
        ("lab tensor", "There is no lesson called 'tensor'. Did you mean '01_tensors'? See `course lab --help`."),
        ("run --jobs 0", "Invalid value for '--jobs': 0 is not in the range x>=1. See `course run --help`."),
        ("run --edition gold", "Invalid value for '--edition': 'gold' is not one of"),
        ("run --sed 3", "No such option '--sed'. Did you mean '--seed'?"),
        ("reset", "Missing argument 'LESSON'. See `course reset --help`."),
    ],
)
def test_wrong_usage_is_one_sentence_and_code_2(line, sentence, calls, capsys):
    assert cli.run(line.split()) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_no_command_shows_the_commands_and_is_wrong_usage(capsys):
    assert cli.run([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_a_deliberate_error_is_its_sentence_and_code_2(calls, monkeypatch, capsys):
    def fail(lesson: str) -> str:
        raise EnvironmentProblem("The workspace can't be written to.", got="/w", fix="Set COURSE_WORKSPACE.")

    monkeypatch.setattr(lab, "reset", fail)
    assert cli.run(["reset", "1"]) == 2
    assert capsys.readouterr().err == "The workspace can't be written to. Set COURSE_WORKSPACE.\n"


def test_an_error_nobody_foresaw_is_a_sentence_with_the_file_of_its_traceback(calls, monkeypatch, capsys):
    def fail(lesson: str) -> str:
        return {}["nothing"]

    monkeypatch.setattr(lab, "reset", fail)
    assert cli.run(["reset", "1"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    log = Path(err.split("The full story is in ")[1].split(";")[0])
    assert 'return {}["nothing"]' in log.read_text(encoding="utf-8")
    log.unlink()


def test_a_missing_package_names_the_repair(calls, monkeypatch, capsys):
    def fail(lesson: str) -> str:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(lab, "reset", fail)
    assert cli.run(["reset", "1"]) == 2
    assert capsys.readouterr().err.startswith("The package 'torch' is missing. Run `python3 course.py setup`")


def test_ctrl_c_ends_with_130(calls, monkeypatch, capsys):
    def fail(lesson: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(lab, "reset", fail)
    assert cli.run(["reset", "1"]) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


# As a program


def course(*words: str, isolated: bool = False) -> subprocess.CompletedProcess[str]:
    options = ["-I", "-S"] if isolated else []
    start = f"import sys; sys.path.insert(0, {str(cli.__file__.rsplit('course_utils', 1)[0])!r}); " * isolated
    program = f"{start}from course_utils.cli import main; main()"
    return subprocess.run([sys.executable, *options, "-c", program, *words], capture_output=True, text=True)


def test_without_its_packages_the_program_says_how_to_get_them():
    done = course("env", isolated=True)  # no site-packages
    assert done.returncode == 2
    assert done.stderr.startswith("The package 'click' is missing")
    assert "Traceback" not in done.stderr


def test_the_command_line_starts_without_heavy_imports():
    heavy = {"torch", "numpy", "matplotlib", "papermill", "IPython", "yaml", "rich"}
    program = f"import sys, course_utils.cli; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f"'{sys.executable}' -m course_utils run --help | true", shell=True, capture_output=True, text=True
    )
    assert done.stderr == ""
