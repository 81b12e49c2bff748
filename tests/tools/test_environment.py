"""Decisions of the start-up part, and the sentence for each failure. The real thing is tried in ``test_course.py``."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from course_utils.errors import EnvironmentProblem
from course_utils.paths import ROOT
from course_utils.tools import environment as env_module
from course_utils.tools import installer
from course_utils.tools.environment import Environment, check_space, split_cpu, starts, steps, system_error, wants_cpu
from course_utils.tools.pip_progress import LiveLine
from course_utils.tools.requirements import fingerprint

Usage = namedtuple("Usage", "total used free")
PINNED = {"torch": "2.14.1", "torchvision": "0.29.1", "click": "8.5.1"}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment's folder with nothing in it."""
    (tmp_path / "venv").mkdir()
    return Environment(tmp_path / "venv", shared=True)


@pytest.fixture
def line() -> LiveLine:
    return LiveLine(io.StringIO())


def look_finished(environment: Environment) -> None:
    """Give the folder what makes a later start trust it."""
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text("")
    (environment.folder / "pyvenv.cfg").write_text("")
    environment.note(cpu=False, finished=True)


# Where the environment is


def test_the_environment_is_beside_course_py_unless_a_variable_names_another_place():
    assert Environment.from_settings({}).folder == ROOT / ".venv"
    assert Environment.from_settings({"COURSE_VENV": " "}).folder == ROOT / ".venv"


def test_the_name_may_contain_the_hash_of_the_requirements_and_a_home():
    named = Environment.from_settings({"COURSE_VENV": "~/venv-{requirements}"})
    assert named.folder == Path.home() / f"venv-{fingerprint()}"
    assert named.shared


def test_a_relative_name_is_meant_from_the_present_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Environment.from_settings({"COURSE_VENV": "venv"}).folder == tmp_path / "venv"


# When it is trusted


def test_a_finished_environment_is_ready(environment):
    look_finished(environment)
    assert environment.is_ready()


@pytest.mark.parametrize(
    "change", [{"finished": False}, {"requirements": "0"}, {"python": None}, {"python": ["x", 1, 1]}]
)
def test_a_record_that_says_otherwise_is_not_trusted(change, environment):
    look_finished(environment)
    path = environment.folder / env_module.RECORD
    path.write_text(json.dumps(environment.record() | change))
    assert not environment.is_ready()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"finished": 1}', "\x00"])
def test_a_damaged_record_is_no_record(text, environment):
    look_finished(environment)
    (environment.folder / env_module.RECORD).write_text(text)
    assert not environment.is_ready()


def test_a_record_without_its_python_is_not_trusted(environment):
    look_finished(environment)
    environment.python.unlink()
    assert not environment.is_ready()


def test_only_an_environment_of_its_own_must_belong_to_this_checkout(environment):
    look_finished(environment)
    path = environment.folder / env_module.RECORD
    path.write_text(json.dumps(environment.record() | {"root": "/another/checkout"}))
    assert environment.is_ready()
    environment.shared = False
    assert not environment.is_ready()


@pytest.mark.parametrize("content", [None, "not a program", "#!/bin/sh\nexit 1\n"])
def test_a_python_that_is_gone_or_fails_does_not_start(content, environment):
    if content is not None:
        environment.python.parent.mkdir(parents=True)
        environment.python.write_text(content)
        environment.python.chmod(0o755)
    assert not starts(environment)


# --cpu


@pytest.mark.parametrize(
    ("args", "words", "cpu"),
    [
        ("run 01", "run 01", False),
        ("--cpu run 01", "run 01", True),
        ("run --cpu 01", "run 01", True),
        ("run 01 --cpu", "run 01", True),
        ("--cpu", "", True),
        ("test -k seeding --cpu", "test -k seeding", True),
        ("test -- --cpu", "test -- --cpu", False),
        ("env --cpu", "env --cpu", False),
    ],
)
def test_cpu_is_taken_from_anywhere_on_the_line_of_the_commands_that_know_it(args, words, cpu):
    assert split_cpu(args.split()) == (words.split(), cpu)


def on_linux(monkeypatch: pytest.MonkeyPatch, machine: str = "x86_64") -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: machine)


@pytest.mark.parametrize(
    ("asked", "noted", "wanted"),
    [("1", None, True), ("", None, False), ("", True, True), ("0", True, False), ("1", False, True)],
)
def test_the_cpu_build_is_taken_when_asked_for_now_or_when_the_environment_was_begun(
    asked, noted, wanted, environment, line, monkeypatch
):
    on_linux(monkeypatch)
    monkeypatch.setenv("COURSE_CPU", asked)
    if noted is not None:
        environment.note(cpu=noted, finished=False)
    assert wants_cpu(environment, line) is wanted


def test_elsewhere_the_cpu_build_is_no_choice_and_a_sentence_says_so(environment, line, monkeypatch):
    on_linux(monkeypatch, machine="aarch64")
    monkeypatch.setenv("COURSE_CPU", "1")
    assert wants_cpu(environment, line) is False
    assert "--cpu makes no difference here" in line.stream.getvalue()


def test_the_cpu_build_comes_from_pytorchs_own_index_and_alone():
    arguments = installer.pip_arguments("cpu torch", ROOT, PINNED)
    assert arguments[0] == "install"
    assert arguments[arguments.index("--index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert "--no-deps" in arguments, "that index has other versions of the rest"
    assert arguments[-2:] == ["torch==2.14.1+cpu", "torchvision==0.29.1+cpu"]


def test_the_standard_build_and_the_rest_come_from_the_usual_index():
    for step in ("torch", "rest", "course"):
        assert not any(
            "index" in argument or "+cpu" in argument for argument in installer.pip_arguments(step, ROOT, PINNED)
        )
    assert installer.pip_arguments("torch", ROOT, PINNED)[-2:] == ["torch==2.14.1", "torchvision==0.29.1"]
    assert installer.pip_arguments("rest", ROOT, PINNED)[-2:] == ["-r", str(ROOT / "requirements.txt")]
    assert installer.pip_arguments("course", ROOT, PINNED)[-2:] == ["--editable", str(ROOT)]


def test_pytorch_is_installed_first_and_only_if_it_is_lacking():
    assert [step for step, _ in steps(PINNED, True, dict.fromkeys(PINNED))][:2] == ["cpu torch", "rest"]
    assert [step for step, _ in steps(PINNED, False, {"torchvision": "0.1"})][:2] == ["torch", "rest"]
    assert steps(PINNED, True, {"click": None})[0][0] == "rest"


def test_a_read_only_checkout_is_used_without_being_installed(monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert [step for step, _ in steps(PINNED, False, {})] == ["rest"]


# Room on the disk


@pytest.mark.parametrize(
    ("free_gb", "cpu", "refused"), [(9, False, True), (13, False, False), (9, True, False), (2, True, True)]
)
def test_set_up_does_not_begin_without_room_for_it(free_gb, cpu, refused, environment, monkeypatch):
    on_linux(monkeypatch)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100e9, 0, free_gb * 1e9))
    if not refused:
        check_space(environment, PINNED, cpu)
        return
    with pytest.raises(EnvironmentProblem) as caught:
        check_space(environment, PINNED, cpu)
    needed = "3" if cpu else "12"
    assert caught.value.sentence.startswith(
        f"The disk is full: the one that holds {environment.folder} has {free_gb}.0 GB"
    )
    assert f"set-up needs about {needed} GB" in caught.value.sentence
    assert "COURSE_VENV" in caught.value.fix


# What the system refuses


@pytest.mark.parametrize(
    ("code", "beginning", "next_step"),
    [
        (errno.ENOSPC, "The disk is full", "Make room"),
        (errno.EDQUOT, "The disk is full", "Make room"),
        (errno.EACCES, "This folder can't be written to: /x", "Copy the course to a folder of your own"),
        (errno.EROFS, "This folder can't be written to: /x", "COURSE_VENV"),
        (errno.EIO, "The system refused a step of the set-up: Input/output error (/x).", "run the same command again"),
    ],
)
def test_what_the_system_refuses_is_a_sentence_with_a_next_step(code, beginning, next_step, tmp_path):
    problem = system_error(OSError(code, os.strerror(code), "/x"), tmp_path)
    assert problem.what.startswith(beginning)
    assert next_step in problem.fix


def test_a_read_only_checkout_ends_with_exit_status_2_and_one_sentence(monkeypatch, capsys, tmp_path):
    def refuse(self: Path, *args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setenv("COURSE_VENV", str(tmp_path / "venv"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert env_module.start(["run"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"This folder can't be written to: {tmp_path / 'venv'}. Copy the course")
    assert err.count("\n") == 1


# What pip and venv say


@pytest.mark.parametrize(
    ("output", "beginning", "next_step"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "The disk is full",
            "room",
        ),
        ("OSError: [Errno 122] Disk quota exceeded", "The disk is full", "room"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('...')'\n"
            "ERROR: Could not find a version that satisfies the requirement torch==2.14.1 (from versions: none)\n"
            "ERROR: No matching distribution found for torch==2.14.1",
            "The package index can't be reached",
            "run the same command again",
        ),
        (
            "pip._vendor.urllib3.exceptions.ReadTimeoutError: Read timed out.",
            "The package index can't be reached",
            "again",
        ),
        (
            "ERROR: No matching distribution found for torch==2.14.1",
            "There is no build of torch 2.14.1 for this system (",
            "README",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "A download arrived damaged",
            "again",
        ),
        (
            "The conflict is caused by:\n    The user requested numpy==2.4.6\n"
            "    The user requested (constraint) numpy==2.2.6",
            "The pinned versions can't be installed together: numpy==2.2.6 against numpy==2.4.6.",
            "requirements.txt",
        ),
        ("one\ntwo\n\nthree\nfour\n", "pip failed, and its last words were: two / three / four.", "goes on from here"),
        ("", "pip failed, and its last words were: none.", "log.txt"),
    ],
)
def test_each_failure_of_pip_is_a_sentence_with_a_next_step(output, beginning, next_step, tmp_path):
    problem = installer.pip_failure(output.splitlines(), tmp_path, tmp_path / "log.txt")
    assert problem.what.startswith(beginning)
    assert next_step in problem.fix


def test_a_python_without_its_venv_module_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="its venv or ensurepip module is missing") as caught:
        installer.make_venv(tmp_path, tmp_path / "log")
    assert f"sudo apt install python3.{sys.version_info[1]}-venv" in caught.value.fix


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "The virtual environment was not created successfully because ensurepip is not available.",
            "ensurepip module",
        ),
        ("Error: [Errno 28] No space left on device", "The disk is full"),
        ("Error: something\nnobody foresaw", "could not make a virtual environment in .*: nobody foresaw"),
        ("", "it printed nothing"),
    ],
)
def test_each_failure_of_venv_is_a_sentence(output, message, monkeypatch, tmp_path):
    monkeypatch.setattr(installer, "run_logged", lambda *args, **options: (1, output.splitlines()))
    with pytest.raises(EnvironmentProblem, match=message):
        installer.make_venv(tmp_path, tmp_path / "log")


# Programs, locks, incomplete packages


def test_a_programs_output_is_kept_in_the_log_and_given_line_by_line(tmp_path):
    seen: list[str] = []
    program = "import sys; print('größe'); print('b', file=sys.stderr); sys.exit(3)"
    code, lines = installer.run_logged([sys.executable, "-c", program], tmp_path / "log", on_line=seen.append)
    assert code == 3
    assert sorted(lines) == sorted(seen) == ["b", "größe"]
    assert "größe\n" in (tmp_path / "log").read_text(encoding="utf-8")


@pytest.mark.skipif(os.name != "posix", reason="process groups as POSIX has them")
def test_a_program_that_we_stop_waiting_for_ends_with_all_it_started(tmp_path):
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\nchild.wait()"
    )
    seen: list[int] = []

    def interrupt(text: str) -> None:
        seen.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        installer.run_logged([sys.executable, "-c", program], tmp_path / "log", on_line=interrupt)
    deadline = time.monotonic() + 10  # the child of the child got the same signal, and takes its own moment
    while is_running(seen[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(seen[0])


def is_running(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not collected yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state != "" and not state.startswith("Z")


def test_the_lock_is_held_by_one_process_at_a_time(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom course_utils.tools.installer import locked\n"
        "with locked(Path(sys.argv[2]), lambda: print('waiting', flush=True)): print('mine', flush=True)"
    )
    with installer.locked(tmp_path / "lock", lambda: pytest.fail("nobody holds it")):
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(ROOT), str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting\n"
    assert other.communicate(timeout=30)[0] == "mine\n"


def make_package(site: Path, name: str = "tiny") -> Path:
    """Write an installed package with one module, as pip leaves it, and return its dist-info folder."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text("x = 1\n")
    (info / "METADATA").write_text("Name: tiny\n")
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text(
        f"{name}.py,sha256=abc,6\n__pycache__/{name}.cpython-311.pyc,,\n{info.name}/RECORD,,\n"
    )
    return info


def cut_off_module(info: Path) -> None:
    (info.parent / "tiny.py").write_text("x")


def lose_module(info: Path) -> None:
    (info.parent / "tiny.py").unlink()


def lose_record(info: Path) -> None:
    (info / "RECORD").unlink()


def empty_metadata(info: Path) -> None:
    (info / "METADATA").write_text("")


@pytest.mark.parametrize("damage", [cut_off_module, lose_module, lose_record, empty_metadata])
def test_an_incomplete_package_is_found_and_taken_out_of_pips_sight(damage, tmp_path):
    info = make_package(tmp_path)
    make_package(tmp_path, "whole")
    assert list(installer.half_installed(tmp_path)) == []
    damage(info)
    assert installer.remove_half_installed(tmp_path) == ["tiny 1.0"]
    assert [path.name for path in tmp_path.glob("*.dist-info")] == ["whole-1.0.dist-info"]
