"""Find submissions in a folder, whatever way they were downloaded or collected.

Known layouts: a folder per student; Moodle's "Ada Lovelace_12345_assignsubmission_file_" folders; Canvas's
"lovelaceada_LATE_123_456_name-1.ipynb" files; notebooks side by side with the student's name in theirs; zip archives of
any of these. Nothing in the folder is changed; archives are unpacked elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from course_utils.errors import UsageError
from course_utils.lessons import LESSONS, Lesson
from course_utils.text import human_bytes

MAX_ARCHIVE_BYTES = 500 * 2**20  # of one archive, unpacked
MAX_MEMBERS = 10_000
MAX_NOTEBOOK_BYTES = 100 * 2**20  # larger ones are reported, not read
MAX_DEPTH = 3  # archives inside archives

_MOODLE = re.compile(r"^(?P<student>.+?)_(?P<id>\d+)_assignsubmission_\w+?_?$")
_CANVAS = re.compile(r"^(?P<student>[^_]+)(?:_(?i:late))?_(?P<id>\d+)_(?P<submission>\d+)_(?P<name>.+)$")
_AGAIN = re.compile(r"(?:-| ?\(|_)(?P<number>\d{1,3})\)?$")  # "-1" by Canvas, " (2)" by browsers
_IGNORED = (".ipynb_checkpoints", "__MACOSX")
_DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Submission:
    """One notebook that somebody handed in.

    Args:
        student: the name, as folder or file tell it.
        lesson: the lesson's stem, ``01_tensors``; empty if it can't be told.
        path: the notebook; for what could not be read, the file that could not.
        student_id: the number in the download's names, empty if there is none.
        version: of several files for the same lesson, the highest is the one that counts.
        problem: a sentence if the file can't be graded.
        notes: sentences for the report.
    """

    student: str
    lesson: str
    path: Path
    student_id: str = ""
    version: int = 0
    problem: str = ""
    notes: tuple[str, ...] = ()


def find_submissions(folder: Path, scratch: Path) -> list[Submission]:
    """Return what was handed in, one notebook for each student and lesson, sorted.

    Args:
        folder: a folder of submissions, or a zip archive of one.
        scratch: an empty folder for unpacked archives.

    Raises:
        UsageError: if there is no such folder, or nothing in it was handed in.
    """
    if folder.is_file() and folder.suffix.lower() == ".zip":
        found = list(_in_archive(folder, scratch / "0", owner=("", ""), depth=0))
    elif folder.is_dir():
        found = list(_in_folder(folder, scratch, owner=("", ""), depth=0))
    else:
        raise UsageError(f"There is no folder {folder}.", fix="Name the folder that holds the submissions, or its zip.")
    if not found:
        raise UsageError(f"No notebook was found in {folder}.", fix="Name the folder that holds the submissions.")
    return sorted(_latest(found), key=lambda item: (item.student.casefold(), item.lesson, str(item.path)))


def _in_folder(folder: Path, scratch: Path, owner: tuple[str, str], depth: int) -> Iterator[Submission]:
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name in _IGNORED or path.name.startswith((".", "._")) or path.is_symlink():
            continue
        if path.is_dir():
            yield from _in_folder(path, scratch, owner if owner[0] else _owner_of(path.name), depth)
        elif path.suffix.lower() == ".zip":
            inside = owner if owner[0] else _owner_of_file(path.stem)[0]
            yield from _in_archive(path, scratch / str(sum(1 for _ in scratch.glob("*"))), inside, depth)
        elif path.suffix.lower() == ".ipynb" and ".backup-" not in path.name:
            yield _submission(path, owner)


def _in_archive(archive: Path, target: Path, owner: tuple[str, str], depth: int) -> Iterator[Submission]:
    try:
        if depth >= MAX_DEPTH:
            raise UnsafeArchive("archives inside archives inside archives")
        unpack(archive, target)
    except (UnsafeArchive, zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError) as error:
        yield Submission(
            owner[0] or _owner_of_file(archive.stem)[0][0] or archive.stem, "", archive, owner[1],
            problem=f"The archive can't be unpacked: {error}. Ask for the notebook itself.",
        )  # fmt: skip
        return
    yield from _in_folder(target, target.with_name(target.name + "-inner"), owner, depth + 1)


class UnsafeArchive(Exception):
    """An archive that would write outside its folder, or more than anybody hands in."""


def unpack(archive: Path, target: Path) -> None:
    """Unpack a zip archive, refusing what no honest one holds; of a refused archive nothing is left.

    Raises:
        UnsafeArchive: for names that lead elsewhere, links, device names, too many or too large members.
        zipfile.BadZipFile: if it is no archive, or damaged.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            if len(members) > MAX_MEMBERS:
                raise UnsafeArchive(f"it holds {len(members):,} files")
            for member in members:
                _check_member(member)
            left = MAX_ARCHIVE_BYTES
            for member in members:
                if not member.is_dir():
                    left -= _copy(file, member, target / PurePosixPath(member.filename.replace("\\", "/")), left)
            target.mkdir(parents=True, exist_ok=True)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _check_member(member: zipfile.ZipInfo) -> None:
    name = member.filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or re.match(r"^[A-Za-z]:", name) or "\0" in name:
        raise UnsafeArchive(f"{member.filename!r} leads out of its folder")
    if any(_DEVICES.match(part) for part in parts):
        raise UnsafeArchive(f"{member.filename!r} is the name of a device")
    mode = member.external_attr >> 16
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
        raise UnsafeArchive(f"{member.filename!r} is a link or a device")
    if member.file_size > MAX_ARCHIVE_BYTES:
        raise UnsafeArchive(f"{member.filename!r} unpacks to {human_bytes(member.file_size)}")


def _copy(file: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, left: int) -> int:
    """Write one member and return its size; what its header says of its size is not believed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with file.open(member) as source, open(path, "wb") as sink:
        while block := source.read(2**20):
            size += len(block)
            if size > left:
                raise UnsafeArchive(f"it unpacks to more than {human_bytes(MAX_ARCHIVE_BYTES)}")
            sink.write(block)
    return size


def _owner_of(name: str) -> tuple[str, str]:
    """Return student and number from a folder's name; ("", "") if the folder is named after a lesson."""
    if moodle := _MOODLE.match(name):
        return moodle["student"], moodle["id"]
    if _lesson_in(name) is not None or name.lower() in ("submissions", "workspace", "notebooks"):
        return "", ""
    return name, ""


def _owner_of_file(stem: str) -> tuple[tuple[str, str], str, int]:
    """Return student and number, the rest of the name, and the version, from a file's name without its ending."""
    if canvas := _CANVAS.match(stem):
        name, version = _without_version(canvas["name"])
        return (canvas["student"], canvas["id"]), name, version
    name, version = _without_version(stem)
    lesson = _lesson_in(name)
    student = name
    if lesson is not None:
        student = re.sub(re.escape(lesson.stem), " ", name, count=1, flags=re.IGNORECASE)
        if student == name:  # named by the lesson's number or word alone
            student = re.sub(rf"(?i)(?<![a-z0-9])({lesson.number}|{lesson.name})(?![a-z0-9])", " ", name)
    return (re.sub(r"^[\s_.,-]+|[\s_.,-]+$", "", student), ""), name, version


def _without_version(name: str) -> tuple[str, int]:
    again = _AGAIN.search(name)
    if again is None or (_lesson_in(name[: again.start()]) is None and again.group()[0] != " "):
        return name, 0
    return name[: again.start()], int(again["number"])


def _lesson_in(name: str) -> Lesson | None:
    """Return the lesson whose stem a name holds, else the one whose word stands in it by itself."""
    lowered = name.lower()
    for lesson in LESSONS:
        if lesson.stem in lowered:
            return lesson
    words = re.findall(r"[a-z]+|\d+", lowered)
    return next((lesson for lesson in LESSONS if lesson.name in words), None)


def _submission(path: Path, owner: tuple[str, str]) -> Submission:
    named, _, version = _owner_of_file(path.stem)
    canvas = _CANVAS.match(path.stem)
    student, number = named if canvas or not owner[0] else owner
    lesson = _lesson_in(path.stem)
    found = Submission(student or "unknown", lesson.stem if lesson else "", path, number, version)
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        return replace(found, problem=str(error))
    said = lesson_of(notebook)
    if not said and not found.lesson:
        return replace(found, problem="It is none of the course's lessons: it has none of their exercises.")
    notes = ()
    if said and found.lesson and said != found.lesson:
        notes = (f"Its name says {found.lesson}, its cells are those of {said}; graded as {said}.",)
    return replace(found, lesson=said or found.lesson, notes=notes)


def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook's content, with Windows or Unix line ends, with or without a byte-order mark.

    Raises:
        ValueError: with a sentence, if it can't be read as a notebook.
    """
    try:
        if path.stat().st_size > MAX_NOTEBOOK_BYTES:
            raise ValueError(f"The file is too large ({human_bytes(path.stat().st_size)}); clear its outputs.")
        notebook = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"The file can't be opened: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        if str(error).startswith("The file"):
            raise
        raise ValueError("The file is no notebook: its JSON is broken or cut off. Ask for it once more.") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if cells is None and isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):  # format 3
        sheets = [sheet for sheet in notebook["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets for cell in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise ValueError("The file is no notebook: it has no cells.")
    return {**notebook, "cells": [cell for cell in cells if isinstance(cell, dict)]}


def lesson_of(notebook: dict[str, Any]) -> str:
    """Return the stem of the lesson that a notebook's content belongs to, or an empty text."""
    metadata = notebook.get("metadata")
    course = metadata.get("course") if isinstance(metadata, dict) else None
    said = course.get("lesson") if isinstance(course, dict) else None
    stems = {lesson.name: lesson.stem for lesson in LESSONS}
    if said in stems.values():
        return str(said)
    counts = dict.fromkeys(stems, 0)
    for cell in notebook["cells"]:
        for name in re.findall(r"""check\(\s*["'](\w+)\.""", _text(cell)):
            counts[name] = counts.get(name, 0) + 1
    name = max(stems, key=lambda name: counts[name])
    return stems[name] if counts[name] else ""


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _latest(found: Iterable[Submission]) -> Iterator[Submission]:
    """Yield one submission for each student and lesson: the highest version, then the newest file."""
    groups: dict[tuple[str, str, str], list[Submission]] = {}
    for item in found:
        key = (item.student_id or item.student.casefold(), item.lesson, str(item.path) if not item.lesson else "")
        groups.setdefault(key, []).append(item)
    for items in groups.values():
        best = max(items, key=lambda item: (not item.problem, item.version, item.path.stat().st_mtime, str(item.path)))
        others = [item.path.name for item in items if item is not best]
        if others:
            note = f"{len(items)} files were handed in for this lesson; graded is {best.path.name}."
            best = replace(best, notes=(*best.notes, note))
        yield best
