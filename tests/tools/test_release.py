"""The learner edition that is handed out: whole, stamped, usable, and without answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from course_utils import __version__, cli, sources
from course_utils.lessons import LESSONS
from course_utils.paths import SOURCES
from course_utils.tools import build, release
from course_utils.tools.merge import text_of

TOP = f"pytorch-workbook-{__version__}"


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory) -> Path:
    """The learner edition, unpacked from its zip."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "_require_in_step", lambda: None)  # other tests hold the notebooks in step
        made = release.release(out)
    with zipfile.ZipFile(made.archive) as archive:
        archive.extractall(out / "unpacked")
    return out / "unpacked" / TOP


def course(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("COURSE_", "PYTHONPATH"))}
    command = [sys.executable, str(folder / "course.py"), *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_every_lesson_and_the_package_are_there_and_nothing_that_holds_answers(handed_out):
    names = {path.relative_to(handed_out).as_posix() for path in handed_out.rglob("*") if path.is_file()}
    assert {f"notebooks/{lesson.stem}.ipynb" for lesson in LESSONS} <= names
    assert {"course.py", "README.md", "requirements.txt", "constraints.txt", "course_utils/cli.py"} <= names
    assert not [name for name in names if re.search(r"^tests/|source/|solutions/|__pycache__|\.pyc$|/\.", name)]


def test_each_exercise_is_its_blank_and_no_file_shows_a_reference_answer(handed_out):
    for path in sources.source_paths(SOURCES):
        notebook = json.loads((handed_out / "notebooks" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
        shown = {cell["id"]: text_of(cell) for cell in notebook["cells"]}
        for cell in sources.exercise_cells(path):
            assert shown[cell.id] == sources.learner_code(cell) != sources.reference_code(cell)
    for path in handed_out.rglob("*.ipynb"):
        assert "SOLUTION" not in path.read_text(encoding="utf-8")


def test_checksums_cover_every_file_and_fit(handed_out):
    sums = dict(reversed(line.split("  ", 1)) for line in (handed_out / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(handed_out).as_posix() for path in handed_out.rglob("*") if path.is_file()}
    assert set(sums) == files - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((handed_out / name).read_bytes()).hexdigest() == digest


def test_the_stamp_says_which_edition_this_is(handed_out):
    stamp = json.loads((handed_out / "RELEASE.json").read_text())
    assert stamp["version"] == __version__
    assert stamp["lessons"] == [lesson.stem for lesson in LESSONS]


def test_it_runs_where_it_was_unpacked(handed_out):
    done = course(handed_out, "progress")
    assert done.returncode == 0, done.stderr
    assert "01_tensors" in done.stdout


@pytest.mark.parametrize(
    "words", [["release", "--out", "x"], ["build"], ["test"], ["run", "01", "--edition", "solutions"]]
)
def test_what_it_cannot_do_is_said_in_a_sentence(handed_out, words):
    done = course(handed_out, *words)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert "learner edition" in done.stderr, done.stderr + done.stdout


def test_the_same_checkout_gives_the_same_zip_and_a_second_release_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "_require_in_step", lambda: None)
    first, second = release.release(tmp_path / "a"), release.release(tmp_path / "b")
    assert first.archive.read_bytes() == second.archive.read_bytes()
    assert release.release(tmp_path / "a").archive.read_bytes() == second.archive.read_bytes()


def test_another_folder_of_that_name_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release, "_require_in_step", lambda: None)
    (tmp_path / TOP).mkdir()
    (tmp_path / TOP / "mine.txt").write_text("mine")
    assert cli.run(["release", "--out", str(tmp_path)]) == 2
    assert "has other content" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [TOP]


def test_notebooks_that_have_drifted_are_not_handed_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        build, "build", lambda **options: build.BuildResult((build.Built(tmp_path, "drifted", ("x",)),))
    )
    assert cli.run(["release", "--out", str(tmp_path / "out")]) == 2
    assert "not in step" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release, "_require_in_step", lambda: None)
    (tmp_path / "out").write_text("")
    assert cli.run(["release", "--out", str(tmp_path / "out" / "below")]) == 2
    assert "can't be written to" in capsys.readouterr().err
