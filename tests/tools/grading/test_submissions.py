"""Submissions are found in every way that they are collected, and a hostile archive finds nothing to harm."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path

import pytest

from course_utils.errors import UsageError
from course_utils.tools.grading import submissions
from course_utils.tools.grading.submissions import find_submissions, read_notebook

NOTEBOOK = {
    "cells": [{"cell_type": "code", "id": "a", "metadata": {}, "source": "check('tensors.softmax', softmax)"}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def put(folder: Path, name: str, content: object = NOTEBOOK) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def found(folder: Path) -> list[tuple[str, str]]:
    scratch = folder.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    return [(item.student, item.lesson) for item in find_submissions(folder, scratch)]


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("ada/01_tensors.ipynb", "ada"),
        ("Ada Lovelace/work/01_tensors.ipynb", "Ada Lovelace"),
        ("Ada Lovelace_12345_assignsubmission_file_/01_tensors.ipynb", "Ada Lovelace"),
        ("Ada Lovelace_12345_assignsubmission_file/homework.ipynb", "Ada Lovelace"),
        ("lovelaceada_12345_678910_01_tensors.ipynb", "lovelaceada"),
        ("lovelaceada_LATE_12345_678910_01_tensors-2.ipynb", "lovelaceada"),
        ("01_tensors_ada.ipynb", "ada"),
        ("ada_01_tensors.ipynb", "ada"),
        ("01_tensors - Ada Lovelace.ipynb", "Ada Lovelace"),
        ("Ada Lovelace (2).ipynb", "Ada Lovelace"),
        ("ada.ipynb", "ada"),
        ("赵云_01_tensors.ipynb", "赵云"),
        ("tensors/ada.ipynb", "ada"),
    ],
)
def test_student_and_lesson_are_told_by_folder_file_or_content(tmp_path, name, student):
    put(tmp_path / "in", name)
    assert found(tmp_path / "in") == [(student, "01_tensors")]


def test_the_number_of_a_download_is_kept(tmp_path):
    put(tmp_path / "in", "Ada_12345_assignsubmission_file_/01_tensors.ipynb")
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert item.student_id == "12345"


def test_of_several_files_the_last_version_counts_and_the_report_says_so(tmp_path):
    for name in ("a_1_2_01_tensors.ipynb", "a_1_2_01_tensors-1.ipynb", "a_1_2_01_tensors-10.ipynb"):
        put(tmp_path / "in", name)
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert item.path.name == "a_1_2_01_tensors-10.ipynb"
    assert "3 files" in item.notes[0]


def test_of_two_files_without_a_version_the_newer_counts(tmp_path):
    old, new = put(tmp_path / "in", "ada/a/01_tensors.ipynb"), put(tmp_path / "in", "ada/b/01_tensors.ipynb")
    os.utime(old, (1, 1))
    os.utime(new, (2, 2))
    assert find_submissions(tmp_path / "in", tmp_path)[0].path == new


def test_what_nobody_handed_in_is_left_out(tmp_path):
    put(tmp_path / "in", "ada/01_tensors.ipynb")
    for name in ("ada/.ipynb_checkpoints/01_tensors-checkpoint.ipynb", "__MACOSX/._01_tensors.ipynb"):
        put(tmp_path / "in", name)
    put(tmp_path / "in", "ada/01_tensors.backup-2026-01-01-101010.ipynb")
    put(tmp_path / "in", "ada/notes.txt", "hello")
    assert found(tmp_path / "in") == [("ada", "01_tensors")]


def test_the_content_decides_when_the_name_says_another_lesson(tmp_path):
    put(tmp_path / "in", "ada/05_training.ipynb")
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert item.lesson == "01_tensors"
    assert "graded as 01_tensors" in item.notes[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "broken or cut off"), ("", "broken or cut off"), ("[1]", "no cells"), ('{"cells": 3}', "no cells"),
        ("[" * 100_000, "broken or cut off"), ({"cells": [], "metadata": {}}, "none of the course's lessons"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_notebook_is_a_sentence(tmp_path, content, words):
    put(tmp_path / "in", "ada.ipynb", content)
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert item.student == "ada"
    assert words in item.problem


def test_marks_line_ends_and_the_old_format_are_read(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(NOTEBOOK, indent=1).replace("\n", "\r\n").encode())
    assert read_notebook(path)["cells"] == NOTEBOOK["cells"]
    old = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}]}
    path.write_text(json.dumps(old))
    assert len(read_notebook(path)["cells"]) == 1


def archive(path: Path, *members: tuple[str, bytes], mode: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return path


def test_archives_are_unpacked_the_whole_class_or_one_students(tmp_path):
    content = json.dumps(NOTEBOOK).encode()
    whole = archive(
        tmp_path / "class.zip", ("Ada_1_assignsubmission_file_/01_tensors.ipynb", content), ("bob/x.ipynb", content)
    )
    (tmp_path / "scratch").mkdir()
    assert [i.student for i in find_submissions(whole, tmp_path / "scratch")] == ["Ada", "bob"]
    archive(tmp_path / "in/Ada_1_assignsubmission_file_/work.zip", ("a/01_tensors.ipynb", content))
    archive(tmp_path / "in/bob_7_8_work.zip", ("01_tensors.ipynb", content))
    assert found(tmp_path / "in") == [("Ada", "01_tensors"), ("bob", "01_tensors")]


@pytest.mark.parametrize(
    "name",
    [
        "../evil.ipynb",
        "/etc/evil.ipynb",
        "a/../../evil.ipynb",
        "..\\evil.ipynb",
        "C:\\evil.ipynb",
        "aux.ipynb",
        "a/NUL",
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    archive(tmp_path / "in/ada.zip", ("ok.ipynb", b"{}"), (name, b"{}"))
    (tmp_path / "scratch").mkdir()
    (item,) = find_submissions(tmp_path / "in", tmp_path / "scratch")
    assert item.student == "ada"
    assert "can't be unpacked" in item.problem
    assert not list((tmp_path / "scratch").rglob("*"))
    assert not (tmp_path / "evil.ipynb").exists()


def test_links_bombs_and_damage_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_ARCHIVE_BYTES", 10_000)
    monkeypatch.setattr(submissions, "MAX_MEMBERS", 5)
    archive(tmp_path / "in/link.zip", ("x.ipynb", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777)
    archive(tmp_path / "in/bomb.zip", ("x.ipynb", b"0" * 20_000))
    archive(tmp_path / "in/bits.zip", *((f"{i}", b"0" * 4000) for i in range(4)))
    archive(tmp_path / "in/many.zip", *((f"{i}", b"") for i in range(6)))
    (tmp_path / "in/cut.zip").write_bytes(
        archive(tmp_path / "whole.zip", ("x.ipynb", os.urandom(3000))).read_bytes()[:2000]
    )
    (tmp_path / "scratch").mkdir()
    problems = {item.student: item.problem for item in find_submissions(tmp_path / "in", tmp_path / "scratch")}
    assert "link" in problems["link"]
    assert "unpacks to" in problems["bomb"]
    assert "more than" in problems["bits"]
    assert "6 files" in problems["many"]
    assert "can't be unpacked" in problems["cut"]
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]


def test_an_archive_in_an_archive_in_an_archive_ends(tmp_path):
    inner = archive(tmp_path / "0.zip", ("01_tensors.ipynb", json.dumps(NOTEBOOK).encode()))
    for level in range(1, 6):
        inner = archive(tmp_path / f"{level}.zip", (f"{level - 1}.zip", inner.read_bytes()))
    (tmp_path / "in").mkdir()
    inner.rename(tmp_path / "in/ada.zip")
    (tmp_path / "scratch").mkdir()
    (item,) = find_submissions(tmp_path / "in", tmp_path / "scratch")
    assert "archives inside archives" in item.problem


def test_links_in_the_folder_are_not_followed(tmp_path):
    put(tmp_path / "in", "ada/01_tensors.ipynb")
    put(tmp_path / "secret", "01_tensors.ipynb")
    (tmp_path / "in/eve").symlink_to(tmp_path / "secret")
    assert found(tmp_path / "in") == [("ada", "01_tensors")]


def test_an_empty_or_missing_folder_is_a_sentence(tmp_path):
    (tmp_path / "in").mkdir()
    for folder in (tmp_path / "in", tmp_path / "nowhere"):
        with pytest.raises(UsageError):
            find_submissions(folder, tmp_path)
