"""Submissions are found in every way that they are collected, and a hostile archive finds nothing to harm."""

from __future__ import annotations

import contextlib
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


MOODLE = "{}_1234567_assignsubmission_file_"


@pytest.mark.parametrize(
    ("name", "student", "number"),
    [
        ("download/COMP101/" + MOODLE.format("Ada Lovelace") + "/file.ipynb", "Ada Lovelace", "1234567"),
        ("COMP101-Sheet 1-4711/" + MOODLE.format("Ada Lovelace") + "/work/a/file.ipynb", "Ada Lovelace", "1234567"),
        (MOODLE.format("Ada Lovelace") + "01_tensors.ipynb", "Ada Lovelace", "1234567"),  # not in folders
        (MOODLE.format("Ada Lovelace") + "file.ipynb", "Ada Lovelace", "1234567"),
        (MOODLE.format("Group 7-Ada Lovelace") + "/file.ipynb", "Group 7-Ada Lovelace", "1234567"),
        (MOODLE.format("Participant") + "/file.ipynb", "Participant", "1234567"),  # blind marking
        (MOODLE.format("Zoë O'Neill-García") + "/file.ipynb", "Zoë O'Neill-García", "1234567"),
        (MOODLE.format("Zoe\u0308") + "/file.ipynb", "Zoë", "1234567"),  # as macOS writes it
        (MOODLE.format("Data Singh") + "/file.ipynb", "Data Singh", "1234567"),  # called as a lesson is
        (MOODLE.format("Nguyễn Thị Minh Khai") + "/tệp của tôi.ipynb", "Nguyễn Thị Minh Khai", "1234567"),
        ("studentunicode_12345_678901_file-1.ipynb", "studentunicode", "12345"),
        ("o_neill_zoe_LATE_12345_678901_01_tensors.ipynb", "o_neill_zoe", "12345"),
        ("COMP101/section 2/lovelaceada_12345_678901_file.ipynb", "lovelaceada", "12345"),
        ("anon_aB3dE_678901_file.ipynb", "anon aB3dE", "anon_aB3dE"),
        ("LATE_anon_aB3dE_678901_file.ipynb", "anon aB3dE", "anon_aB3dE"),
        ("gruppe7_12345_678901_file.ipynb", "gruppe7", "12345"),
        ("ada_2026_01_tensors.ipynb", "ada_2026", ""),  # a year, not a number of Canvas
        ("submitted/ada/week 1/file.ipynb", "ada", ""),
        ("Data Singh/file.ipynb", "Singh", ""),
        ("ada/01_tensors.ipynb.txt", "ada", ""),
        ("ada/01_TENSORS.IPYNB", "ada", ""),
    ],
)
def test_downloads_in_the_layouts_of_moodle_and_canvas(tmp_path, name, student, number):
    put(tmp_path / "in", name)
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert (item.student, item.student_id, item.lesson, item.problem) == (student, number, "01_tensors", "")


CLASSES = {
    "Moodle's folders inside the course's": "download/COMP101/{0}_{1}_assignsubmission_file_/file.ipynb",
    "Moodle's files": "COMP101/{0}_{1}_assignsubmission_file_file.ipynb",
    "Canvas's files inside a folder": "COMP101/{0}_{1}_99{1}_file.ipynb",
    "a folder per student inside the course's": "download/COMP101/{0}/file.ipynb",
    "names in files inside the course's folder": "COMP101/{0}_01_tensors.ipynb",
    "nbgrader's folders": "submitted/{0}/sheet1/01_tensors.ipynb",
    "a folder per week": "week 1/{0}/file.ipynb",
}


@pytest.mark.parametrize("layout", CLASSES)
@pytest.mark.parametrize("packed", ["a folder", "a zip", "a zip in the folder", "a zip for each student"])
def test_no_student_of_a_class_is_lost(tmp_path, layout, packed):
    names = ["Ada", "Bob", "Cyd"]
    files = [CLASSES[layout].format(name, number) for number, name in enumerate(names, start=1)]
    content = json.dumps(NOTEBOOK).encode()
    place = tmp_path / "in"
    if packed == "a folder":
        for file in files:
            put(place, file)
    elif packed == "a zip for each student":
        for file in files:
            inside = "work/file.ipynb" if layout.startswith(("Moodle's files", "Canvas", "names")) else "f.ipynb"
            archive((place / file).with_suffix(".zip"), (inside, content))
    else:
        archive(place / "COMP101-Sheet 1-47.zip", *((file, content) for file in files))
        place = place / "COMP101-Sheet 1-47.zip" if packed == "a zip" else place
    (tmp_path / "scratch").mkdir()
    assert [item.student for item in find_submissions(place, tmp_path / "scratch")] == names


def test_a_student_can_hand_in_for_nobody_else(tmp_path):
    content = json.dumps(NOTEBOOK).encode()
    put(tmp_path / "in", "Eve_9_assignsubmission_file_/Bob_2_assignsubmission_file_/01_tensors.ipynb")
    put(tmp_path / "in", "Eve_9_assignsubmission_file_/bob_2_3_01_tensors-9.ipynb")
    archive(tmp_path / "in/mallory_7_8_work.zip", ("bob_2_4_01_tensors-9.ipynb", content))
    put(tmp_path / "in", "Bob_2_assignsubmission_file_/01_tensors.ipynb")
    items = find_submissions(tmp_path / "in", tmp_path)
    assert [(item.student, item.student_id) for item in items] == [("Bob", "2"), ("Eve", "9"), ("mallory", "7")]
    assert items[0].notes == ()


def test_namesakes_stay_apart_and_so_do_files_without_a_name(tmp_path):
    put(tmp_path / "in", "Wei Wang_1_assignsubmission_file_/01_tensors.ipynb")
    put(tmp_path / "in", "Wei Wang_2_assignsubmission_file_/01_tensors.ipynb")
    put(tmp_path / "in", "01_tensors.ipynb")
    put(tmp_path / "in", "01_tensors (1).ipynb")
    names = [item.student for item in find_submissions(tmp_path / "in", tmp_path)]
    assert names == ["unknown (01_tensors (1).ipynb)", "unknown (01_tensors.ipynb)", "Wei Wang", "Wei Wang"]


def test_of_resubmissions_the_last_that_can_be_read_counts_in_archives_too(tmp_path):
    folder = tmp_path / "in"
    put(folder, "ada_1_10_file.ipynb", {**NOTEBOOK, "metadata": {"n": 0}})
    archive(folder / "ada_1_11_work-1.zip", ("file.ipynb", json.dumps({**NOTEBOOK, "metadata": {"n": 1}}).encode()))
    put(folder, "ada_LATE_1_12_01_tensors-2.ipynb", "{")
    (item,) = find_submissions(folder, tmp_path)
    assert read_notebook(item.path)["metadata"] == {"n": 1}
    put(folder, "ada_LATE_1_12_file-3.ipynb", {**NOTEBOOK, "metadata": {"n": 3}})
    (item,) = find_submissions(folder, tmp_path)
    assert read_notebook(item.path)["metadata"] == {"n": 3}
    assert "files were handed in" in item.notes[0]


def test_files_in_an_archive_keep_their_time(tmp_path):
    path = tmp_path / "in/Ada_1_assignsubmission_file_/work.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        for name, year in (("b.ipynb", 2020), ("a.ipynb", 2024), ("c.ipynb", 1999)):
            file.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), json.dumps(NOTEBOOK))
        file.writestr(zipfile.ZipInfo("d.ipynb", (2040, 0, 0, 0, 0, 0)), json.dumps(NOTEBOOK))
    (item,) = find_submissions(tmp_path / "in", tmp_path)
    assert item.path.name == "a.ipynb"


def test_who_handed_in_something_else_is_not_lost(tmp_path):
    put(tmp_path / "in", "Ada_1_assignsubmission_file_/01_tensors.py", "x = 1")
    put(tmp_path / "in", "Ada_1_assignsubmission_file_/work.rar", "Rar!")
    put(tmp_path / "in", "bob/answers.html", "<p>")
    put(tmp_path / "in", "cyd/01_tensors.ipynb")
    put(tmp_path / "in", "list of students.csv", "a,b")
    ada, bob, cyd = find_submissions(tmp_path / "in", tmp_path)
    assert ada.problem == "No notebook was handed in, only 01_tensors.py, work.rar. Ask for the .ipynb file."
    assert "answers.html" in bob.problem
    assert not cyd.problem


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="makes a pipe")
def test_names_that_cannot_be_written_and_files_that_never_end(tmp_path):
    put(tmp_path / "in", "eve/01_tensors.ipynb")
    os.mkfifo(tmp_path / "in/eve/pipe.ipynb")
    with contextlib.suppress(OSError):  # a file system may take no such names
        put(tmp_path / "in", os.fsdecode(b"b\xff\x1b[2Jb") + "/01_tensors.ipynb")
    for item in find_submissions(tmp_path / "in", tmp_path):
        (item.student + item.file).encode()
        assert "\x1b" not in item.student


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
    put(tmp_path / "in", "bob/01_tensors.ipynb")
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


def test_archives_inside_one_another_share_their_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_ARCHIVE_BYTES", 10_000)
    inner = [archive(tmp_path / f"{i}.zip", ("x.ipynb", b"0" * 4000)).read_bytes() for i in range(3)]
    archive(tmp_path / "in/bomb_1_2_x.zip", *((f"{i}.zip", content) for i, content in enumerate(inner)))
    archive(tmp_path / "in/ok_3_4_x.zip", ("x.ipynb", json.dumps(NOTEBOOK).encode()))
    (tmp_path / "scratch").mkdir()
    bomb, ok = sorted(find_submissions(tmp_path / "in", tmp_path / "scratch"), key=lambda item: item.student)[-2:]
    problems = [i.problem for i in find_submissions(tmp_path / "in", tmp_path / "scratch") if i.student == "bomb"]
    assert any("more than" in problem or "unpacks to" in problem for problem in problems)
    assert (bomb.student, ok.student, ok.problem) == ("bomb", "ok", "")


def test_a_whole_class_may_be_larger_than_one_student(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_ARCHIVE_BYTES", 10_000)
    monkeypatch.setattr(submissions, "MAX_MEMBERS", 3)
    files = [
        (f"S{i}_{i}_assignsubmission_file_/f.ipynb", json.dumps(NOTEBOOK).encode() + b" " * 3000) for i in range(9)
    ]
    (tmp_path / "scratch").mkdir()
    found = find_submissions(archive(tmp_path / "class.zip", *files), tmp_path / "scratch")
    assert [item.problem for item in found] == [""] * 9


def test_whatever_an_archive_makes_the_library_raise_is_a_sentence(tmp_path):
    good = archive(tmp_path / "good.zip", ("x.ipynb", json.dumps(NOTEBOOK).encode() * 50)).read_bytes()
    (tmp_path / "in").mkdir()
    for place in range(0, len(good), 7):  # damage, one place after the other
        (tmp_path / f"in/s{place}_1_2_x.zip").write_bytes(good[:place] + b"\xff" + good[place + 1 :])
    archive(tmp_path / "in/deep_1_2_x.zip", ("a/" * 2000 + "x.ipynb", b"{}"))
    archive(tmp_path / "in/both_1_2_x.zip", ("a", b"{}"), ("a/x.ipynb", b"{}"))
    archive(tmp_path / "in/long_1_2_x.zip", ("a" * 5000 + ".ipynb", b"{}"))
    (tmp_path / "scratch").mkdir()
    found = find_submissions(tmp_path / "in", tmp_path / "scratch")
    assert {"deep", "both", "long"} <= {item.student for item in found}
    for item in found:
        assert item.problem.endswith(".")


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
