"""The commands for instructors: what they pass on, and the code they exit with; bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_utils import cli
from course_utils.errors import UsageError
from course_utils.tools import release, update
from course_utils.tools.grading import grade as grading


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the grader; the dictionary holds what it was asked for, and what it finds."""
    seen: dict[str, Any] = {"status": ["graded"], "interrupted": False}

    def fake(options: grading.GradeOptions, on_grade: Any, on_note: Any) -> SimpleNamespace:
        seen["options"] = options
        grades = [
            SimpleNamespace(student="Ada", lesson="01_tensors", file="a", points=1, max_points=2, status=status)
            for status in seen["status"]
        ]
        for item in grades:
            on_grade(item)
        return SimpleNamespace(grades=grades, interrupted=seen["interrupted"], summary=lambda: "the summary")

    monkeypatch.setattr(grading, "grade", fake)
    return seen


def test_grade_passes_every_option_on(asked, capsys):
    line = "grade in --out out --jobs 3 --seed 7 --timeout 60 --cell-timeout 5 --pseudonyms"
    assert cli.run(line.split()) == 0
    options = asked["options"]
    assert (options.folder, options.out, options.jobs, options.seed) == (Path("in"), Path("out"), 3, 7)
    assert options.pseudonyms
    assert options.allowance == grading.Allowance(seconds=60, cpu_seconds=60, cell_seconds=5)
    assert capsys.readouterr().out == "a student, 01_tensors: 1 of 2 (graded)\nthe summary\n"


def test_grade_by_its_defaults_names_students_and_fits_the_cells_into_the_whole(asked, capsys):
    assert cli.run(["grade", "in", "--out", "out"]) == 0
    assert asked["options"].allowance == grading.Allowance()
    assert "Ada, 01_tensors" in capsys.readouterr().out
    assert cli.run(["grade", "in", "--out", "out", "--timeout", "10"]) == 0
    assert asked["options"].allowance.cell_seconds == 10


@pytest.mark.parametrize(
    ("status", "interrupted", "code"),
    [(["graded", "graded"], False, 0), (["graded", "timeout"], False, 1), (["graded"], True, 130)],
)
def test_the_code_of_grading_tells_how_it_went(asked, status, interrupted, code):
    asked |= {"status": status, "interrupted": interrupted}
    assert cli.run(["grade", "in", "--out", "out"]) == code


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("grade", "Missing argument 'FOLDER'."),
        ("grade in", "Missing option '--out'."),
        ("grade in --out out --jobs 0", "0 is not in the range x>=1."),
        ("grade in --out out --timeout 0", "0.0 is not in the range x>=1."),
        ("grade in --out out --seed many", "'many' is not a valid integer."),
        ("grade {tmp}/nowhere --out {tmp}/out", "There is no folder"),
        ("grade {tmp}/empty --out {tmp}/out", "No notebook was found in"),
        ("grade {tmp}/empty --out {tmp}/empty/out", "is inside the folder of submissions."),
        ("grade {tmp}/empty --out {tmp}/file", "is a file."),
        ("demo-class", "Missing option '--out'."),
        ("demo-class --out {tmp}/file", "exists already and is not empty."),
        ("demo-clas --out x", "Did you mean 'demo-class'?"),
        ("release", "Missing option '--out'."),
        ("release --out {tmp}/file", "file"),
        ("update --from {tmp}/nowhere", "nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(line, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(release, "_require_in_step", lambda: None)
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "workspace"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    assert cli.run(line.format(tmp=tmp_path).split()) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").rglob("*.csv"))


def test_release_says_what_it_wrote_and_a_failure_is_its_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(release, "release", lambda out: SimpleNamespace(summary=lambda: f"released to {out}"))
    assert cli.run(["release", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"released to {tmp_path}\n"

    def fail(out: Path) -> None:
        raise UsageError(f"{out} exists already and has other content.", fix="Remove it.")

    monkeypatch.setattr(release, "release", fail)
    assert cli.run(["release", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path} exists already and has other content. Remove it.\n"


@pytest.mark.parametrize(("action", "code"), [("updated", 0), ("failed", 1)])
def test_the_code_of_an_update_tells_whether_all_went_well(action, code, monkeypatch, capsys):
    monkeypatch.setattr(update, "update", lambda old: [SimpleNamespace(action=action)])
    monkeypatch.setattr(update, "summary", lambda done: json.dumps([item.action for item in done]))
    assert cli.run(["update"]) == code
    assert capsys.readouterr().out == f'["{action}"]\n'
