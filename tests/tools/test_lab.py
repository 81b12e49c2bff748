"""The learner's workspace is theirs, and JupyterLab opens on it and goes away cleanly."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS
from course_utils.paths import ROOT
from course_utils.tools import lab

STEMS = [lesson.stem for lesson in LESSONS]


def handed_out(stem: str, outputs: tuple[dict, ...] = ()) -> dict[str, Any]:
    """Return a notebook with one cell, as it is stored if it has outputs, else as the learner gets it."""
    cell = {"cell_type": "code", "id": "one", "metadata": {}, "source": f"print({stem!r})"}
    results = {"outputs": list(outputs), "execution_count": 1 if outputs else None}
    return {"cells": [cell | results], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a learner edition of every lesson."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for stem in STEMS:
        (folder / f"{stem}.ipynb").write_text(json.dumps(handed_out(stem)))
    monkeypatch.setattr(lab, "NOTEBOOKS", folder)
    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace that does not exist yet."""
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "my workspace"))
    return tmp_path / "my workspace"


def contents(folder: Path) -> dict[str, Any]:
    """Return what lies in a folder: notebooks as objects, anything else as text."""
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    return {name: json.loads(text) if text.startswith("{") else text for name, text in texts.items()}


# The workspace


def test_the_first_time_every_lesson_is_copied(notebooks, workspace):
    assert lab.prepare_workspace() == [workspace / f"{stem}.ipynb" for stem in STEMS]
    assert contents(workspace) == contents(notebooks)


def test_what_the_learner_has_is_never_overwritten_and_what_is_missing_is_added(notebooks, workspace):
    workspace.mkdir()
    (workspace / f"{STEMS[0]}.ipynb").write_text("my answers")
    (workspace / "notes.txt").write_text("my notes")
    assert lab.prepare_workspace() == [workspace / f"{stem}.ipynb" for stem in STEMS[1:]]
    assert contents(workspace)[f"{STEMS[0]}.ipynb"] == "my answers"
    assert contents(workspace)["notes.txt"] == "my notes"
    assert lab.prepare_workspace() == []


def test_reset_gives_a_fresh_copy_and_keeps_the_old_one_under_another_name(notebooks, workspace):
    lab.prepare_workspace()
    (workspace / "01_tensors.ipynb").write_text("my answers")
    said = lab.reset("01_tensors")
    (backup,) = workspace.glob("01_tensors.backup-*.ipynb")
    assert backup.read_text() == "my answers"
    assert json.loads((workspace / "01_tensors.ipynb").read_text()) == handed_out("01_tensors")
    assert backup.name in said


def test_reset_never_overwrites_a_backup(notebooks, workspace, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 12, 1, 9, 30, 15)

    monkeypatch.setattr(lab, "datetime", Stopped)
    for number in range(3):
        lab.prepare_workspace()
        (workspace / "01_tensors.ipynb").write_text(f"answers {number}")
        lab.reset("01_tensors")
    assert {name: text for name, text in contents(workspace).items() if "backup" in name} == {
        "01_tensors.backup-2026-12-01-093015.ipynb": "answers 0",
        "01_tensors.backup-2026-12-01-093015-2.ipynb": "answers 1",
        "01_tensors.backup-2026-12-01-093015-3.ipynb": "answers 2",
    }


def test_reset_of_an_unchanged_lesson_makes_no_backup(notebooks, workspace):
    lab.prepare_workspace()
    assert "nothing to do" in lab.reset("01_tensors")
    assert len(contents(workspace)) == len(STEMS)


def test_reset_of_a_lesson_that_was_never_opened_makes_its_copy(notebooks, workspace):
    assert "new" in lab.reset("01_tensors")
    assert contents(workspace) == {"01_tensors.ipynb": handed_out("01_tensors")}


def test_the_learners_copy_begins_without_results_for_they_answer_the_predictions(notebooks, workspace):
    said = {"output_type": "stream", "name": "stdout", "text": "01_tensors\n"}
    (notebooks / "01_tensors.ipynb").write_text(json.dumps(handed_out("01_tensors", (said,))))
    lab.prepare_workspace()
    assert contents(workspace)["01_tensors.ipynb"] == handed_out("01_tensors")
    assert contents(notebooks)["01_tensors.ipynb"]["cells"][0]["outputs"] == [said], "the checkout keeps its results"


def test_a_damaged_notebook_of_the_checkout_is_named(notebooks, workspace):
    (notebooks / "01_tensors.ipynb").write_text('{"cells": [')
    with pytest.raises(EnvironmentProblem, match=r"(?s)01_tensors is damaged.*git checkout"):
        lab.prepare_workspace()


def test_a_notebook_that_the_checkout_lacks_is_named_with_the_way_to_get_it(notebooks, workspace):
    (notebooks / "01_tensors.ipynb").unlink()
    with pytest.raises(EnvironmentProblem, match="01_tensors is missing") as caught:
        lab.prepare_workspace()
    assert "course.py build" in caught.value.fix


def test_a_file_in_the_place_of_the_workspace_is_a_sentence(notebooks, workspace):
    workspace.write_text("")
    with pytest.raises(EnvironmentProblem, match="can't be written to: a file is in the way"):
        lab.prepare_workspace()


def test_a_full_disk_leaves_no_half_notebook(workspace, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        path.write_text("ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    workspace.mkdir()
    (workspace / "mine.ipynb").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            lab.put_copy(b"content", workspace / "a.ipynb")
        with pytest.raises(EnvironmentProblem, match="No space left on device"):
            lab.keep_backup(b"content", workspace / "mine.ipynb")
    assert [path.name for path in workspace.iterdir()] == ["mine.ipynb"]


# The command


def options_of(command: list[str]) -> dict[str, str]:
    return dict(part.removeprefix("--").split("=", 1) for part in command[3:])


def test_jupyterlab_listens_on_this_machine_only_and_keeps_its_token(workspace):
    options = options_of(lab.lab_command(None, browser=True, port=None))
    assert options["ServerApp.ip"] == "127.0.0.1"
    assert options["ServerApp.root_dir"] == str(workspace)
    assert options["ServerApp.open_browser"] == "True"
    assert not any("token" in name or "password" in name for name in options)
    assert options["LabApp.default_url"] == "/lab/tree/START.md"


def test_a_lesson_and_a_port_are_passed_on(workspace):
    options = options_of(lab.lab_command("01_tensors", browser=False, port=8899))
    assert options["LabApp.default_url"] == "/lab/tree/01_tensors.ipynb"
    assert options["ServerApp.open_browser"] == "False"
    assert (options["ServerApp.port"], options["ServerApp.port_retries"]) == ("8899", "0")


def test_kernels_find_the_course_and_the_learners_files_wherever_they_start(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_WORKSPACE", "mine")
    monkeypatch.setenv("COURSE_PROGRESS", "mine/progress.json")
    monkeypatch.setenv("PYTHONPATH", f"/before{os.pathsep}{ROOT}")
    monkeypatch.setenv("JUPYTER_PATH", "/kernels")
    env = lab.lab_environment()
    assert env["COURSE_WORKSPACE"] == str(tmp_path / "mine")
    assert env["COURSE_PROGRESS"] == str(tmp_path / "mine/progress.json")
    assert env["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/before"]
    assert env["JUPYTER_PATH"].split(os.pathsep) == [str(lab.SETTINGS), "/kernels"], "our kernel comes first"


def test_progress_that_is_off_stays_off_and_none_is_set(monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    assert lab.lab_environment()["COURSE_PROGRESS"] == "off"
    monkeypatch.delenv("COURSE_PROGRESS")
    assert "COURSE_PROGRESS" not in lab.lab_environment()


def test_the_news_question_is_switched_off_as_a_default_only():
    path = Path(lab.lab_environment()["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0])
    settings = json.loads((path / "labconfig/default_setting_overrides.json").read_text(encoding="utf-8"))
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_a_taken_port_is_a_sentence_before_anything_starts(notebooks, workspace):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} can't be used"):
            lab.open_lab(None, browser=False, port=port)
    assert not workspace.exists()


# The real thing


def ask(url: str, token: str = "", body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"Authorization": f"token {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def wait_until_listening(server: str) -> None:
    """Wait for the server, which says its address a moment before it listens there."""
    port = int(server.rpartition(":")[2])
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens at {server}")


def wait_until_gone(pattern: str) -> bool:
    """Say whether no process with ``pattern`` in its command is left within ten seconds."""
    for _ in range(100):
        if subprocess.run(["pgrep", "-f", pattern], capture_output=True).returncode == 1:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C as POSIX has it")
def test_jupyterlab_opens_the_lesson_for_its_owner_only_and_ctrl_c_leaves_nothing_behind(
    notebooks, workspace, tmp_path
):
    program = (
        "import sys; from pathlib import Path; from course_utils.tools import lab\n"
        f"lab.NOTEBOOKS = Path({str(notebooks)!r})\n"
        "sys.exit(lab.open_lab('01_tensors', browser=False))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        address = next(match for line in lines if (match := re.search(r"(http://127\.0\.0\.1:\d+)/(\S+)", line)))
        server, (path, _, token) = address[1], address[2].partition("?token=")
        assert path == "lab/tree/01_tensors.ipynb"
        wait_until_listening(server)
        assert ask(f"{server}/api/contents")[0] == 403
        assert ask(f"{server}/{path}", token)[0] == 200
        names = {entry["name"] for entry in json.loads(ask(f"{server}/api/contents", token)[1])["content"]}
        assert names == {f"{stem}.ipynb" for stem in STEMS}
        assert ask(f"{server}/api/kernels", token, b'{"name": "python3"}')[0] == 201
        assert subprocess.run(["pgrep", "-f", str(tmp_path / "runtime")], capture_output=True).returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()
    assert wait_until_gone(str(tmp_path / "runtime")), "its kernel is gone too"


def test_kernels_threads_wait_without_spinning(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert lab.lab_environment()["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.skipif(os.name != "posix", reason="HOME is POSIX's")
@pytest.mark.parametrize("home", ["writable", "absent", "a file"])
def test_without_a_home_folder_jupyterlab_gets_one_in_the_workspace(home, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "mine"))
    (tmp_path / "writable").mkdir()
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / home))
    found = Path(lab.lab_environment()["HOME"])
    assert found == (tmp_path / home if home == "writable" else tmp_path / "mine" / ".home")
    assert found.is_dir()
