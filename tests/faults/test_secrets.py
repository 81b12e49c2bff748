"""Passwords and tokens of whoever starts a command: not in a report, not on the screen, not with the code of others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.cli import run
from course_utils.paths import ROOT
from course_utils.tools import envreport
from course_utils.tools.grading.confine import LIMITS, harmless
from course_utils.tools.runner import RunOptions, run_course
from tests.tools.grading.class_of import FIRST, notebook, put
from tests.tools.running import write_notebook

pytestmark = pytest.mark.faults
WORD = "open-sesame-3141"
SECRETS = {
    "GITHUB_TOKEN": WORD,
    "AWS_SECRET_ACCESS_KEY": WORD,
    "MOODLE_PASSWORD": WORD,
    "CANVAS_API_KEY": WORD,
    "HTTPS_PROXY": f"http://teacher:{WORD}@127.0.0.1:9",
    "https_proxy": f"http://teacher:{WORD}@127.0.0.1:9",
    "PIP_INDEX_URL": f"https://teacher:{WORD}@127.0.0.1:9/simple",
    "DATABASE_URL": f"postgres://teacher:{WORD}@127.0.0.1/grades",
    "SSH_AUTH_SOCK": f"/tmp/{WORD}",
    "TORCH_HUB_TOKEN": WORD,
    "SOMETHING_ELSE": WORD,
}
# What a submission finds, in its own variables and in those of the processes around it.
LOOKS_AROUND = f"""
import glob, os
own = sorted(name for name, value in os.environ.items() if {WORD!r} in value)
around = 0
for place in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(place, "rb") as file:
            around += {WORD.encode()!r} in file.read()
    except OSError:
        pass
home, path = os.environ.get("HOME"), "PATH" in os.environ
raise LookupError(f"found in variables: {{own}}, around: {{around}}, home {{home}}, path {{path}}")
"""


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def places_of(word: str, folder: Path) -> list[str]:
    """Return the files that hold a word."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def test_what_a_graded_process_gets_is_a_list_of_names():
    kept = {
        "PATH": "/bin", "HOME": "/home/t", "LANG": "C.UTF-8", "LC_ALL": "C", "TZ": "UTC", "TMPDIR": "/tmp",
        "OMP_NUM_THREADS": "1", "PYTHONPATH": "/course", "CUDA_VISIBLE_DEVICES": "0", "COURSE_WORKSPACE": "/w",
        "LD_LIBRARY_PATH": "/lib",
    }  # fmt: skip
    assert harmless({**kept, **SECRETS}) == kept


def test_a_submission_sees_no_secret_and_none_reaches_the_results(secrets, tmp_path):
    put(tmp_path / "in", "ada", notebook({FIRST: LOOKS_AROUND}))
    words = ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    done = subprocess.run([sys.executable, "-m", "course_utils", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out" / "grades.json").read_text())
    message = next(row["message"] for row in found["exercises"] if row["id"] == FIRST)
    assert "found in variables: []" in message, message
    assert f"home {Path.home()}," not in message
    assert message.endswith("path True")
    if found["confined"] != LIMITS:  # limits alone keep nobody from asking the system about other processes
        assert "around: 0," in message, message
    assert places_of(WORD, tmp_path / "out") == []


def test_a_run_writes_no_secret_into_its_reports(secrets, tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "1 + 1", "import os\nraise ValueError(len(os.environ))")
    run_course(RunOptions(lessons=(str(path),), out=tmp_path / "out", device="cpu", environment=True))
    assert (tmp_path / "out" / "environment.json").is_file()
    assert places_of(WORD, tmp_path / "out") == []


@pytest.mark.parametrize("words", [["env"], ["env", "--json"]])
def test_the_environment_report_shows_no_password(words, secrets, monkeypatch, capsys):

    def fails() -> dict[str, object]:
        raise OSError(f"no answer from http://teacher:{WORD}@127.0.0.1:9")

    monkeypatch.setattr(envreport, "torch_facts", fails)
    run(words)
    said = capsys.readouterr()
    assert "teacher" in said.out
    assert WORD not in said.out + said.err


def test_an_error_that_nobody_foresaw_keeps_passwords_out_of_sentence_and_log(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails() -> None:
        raise RuntimeError(f"no answer from http://teacher:{WORD}@127.0.0.1:9")

    monkeypatch.setattr(envreport, "collect", fails)
    assert run(["env"]) == 2
    assert "teacher" in capsys.readouterr().err
    (log,) = tmp_path.glob("course-*.log")
    assert "teacher" in log.read_text()
    assert places_of(WORD, tmp_path) == []
