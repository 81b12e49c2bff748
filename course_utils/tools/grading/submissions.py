"""Find submissions in a folder, whatever way they were downloaded or collected.

Known layouts: a folder per student; Moodle's "Ada Lovelace_12345_assignsubmission_file_" folders, and its files where
"download in folders" is off; Canvas's "lovelaceada_LATE_123_456_name-1.ipynb" files; notebooks side by side with the
student's name in theirs; zip archives of any of these, and the course's folder around them. Nothing in the folder is
changed; archives are unpacked elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from course_utils.errors import UsageError
from course_utils.lessons import LESSONS, Lesson
from course_utils.text import human_bytes

MAX_CLASS_BYTES = 20 * 2**30  # of the archive that the instructor names, unpacked
MAX_CLASS_MEMBERS = 200_000
MAX_ARCHIVE_BYTES = 500 * 2**20  # of an archive inside the folder, with all archives inside it, unpacked
MAX_MEMBERS = 10_000
MAX_NOTEBOOK_BYTES = 100 * 2**20  # larger ones are reported, not read
MAX_DEPTH = 3  # archives inside archives
MAX_FOLDERS = 40  # folders inside folders
MAX_NAME_CHARS = 120  # of a student

_MOODLE = re.compile(r"^(?P<student>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+(?P<rest>_.*)?$", re.DOTALL)
_CANVAS = re.compile(r"^(?P<student>.+?)(?:_(?i:late))?_(?P<id>\d+)_(?P<submission>\d+)_(?P<name>.+)$", re.DOTALL)
_CANVAS_ANONYMOUS = re.compile(r"^(?:(?i:late)_)?anon_(?P<id>[A-Za-z0-9]{5})_(?P<submission>\d+)_(?P<name>.+)$")
_AGAIN = re.compile(r"(?:-| ?\(|_)(?P<number>\d{1,3})\)?$")  # "-1" by Canvas, " (2)" by browsers
_NOTEBOOK = re.compile(r"\.ipynb(\.json|\.txt)?$", re.IGNORECASE)  # some browsers add an ending
_IGNORED = (".ipynb_checkpoints", "__MACOSX")
_NOBODY = re.compile(  # folders that are not called after a person
    r"(submissions?|submitted|collected|downloads?|workspace|notebooks?|work"
    r"|(assignment|course|exercise|homework|hw|lab|lesson|sheet|task|unit|week)s?[\s_-]*\d*|\d{1,2})",
    re.IGNORECASE,
)
_JOINERS = "\u200c\u200d"  # invisible, and part of names
_DEVICES = re.compile(r"^(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Submission:
    """One notebook that somebody handed in.

    Args:
        student: the name, as folder or file tell it; of a group, the group's.
        lesson: the lesson's stem, ``01_tensors``; empty if it can't be told.
        path: the notebook; for what could not be read, the file that could not.
        student_id: the number in the download's names, empty if there is none.
        version: of several files for the same lesson, the highest is the one that counts.
        problem: a sentence if the file can't be graded.
        notes: sentences for the report.
        system: ``"moodle"`` or ``"canvas"`` if the names are those of its downloads.
    """

    student: str
    lesson: str
    path: Path
    student_id: str = ""
    version: int = 0
    problem: str = ""
    notes: tuple[str, ...] = ()
    system: str = ""

    @property
    def file(self) -> str:
        """The file's name, in characters that can be written anywhere."""
        return _clean(self.path.name)


@dataclass(frozen=True)
class _Owner:
    """Whose a file is; ``rest`` is what the name says besides."""

    student: str = ""
    student_id: str = ""
    system: str = ""
    rest: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.student.casefold(), self.student_id


@dataclass(frozen=True)
class _File:
    """A file with the names of the folders and archives around it, from the outermost."""

    path: Path
    around: tuple[str, ...]
    problem: str = ""

    @property
    def stem(self) -> str:
        return _NOTEBOOK.sub("", self.path.name) if _NOTEBOOK.search(self.path.name) else self.path.stem

    @property
    def is_notebook(self) -> bool:
        return _NOTEBOOK.search(self.path.name) is not None


class _Budget:
    """What an archive, with all archives inside it, may still unpack to: bytes and files."""

    def __init__(self, size: int, files: int) -> None:
        self.size = self.left = size
        self.files = files

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise UnsafeArchive(f"it unpacks to more than {human_bytes(self.size)}")

    def take_files(self, count: int) -> None:
        self.files -= count
        if self.files < 0:
            raise UnsafeArchive(f"it holds {count:,} files")


def find_submissions(folder: Path, scratch: Path) -> list[Submission]:
    """Return what was handed in, one notebook for each student and lesson, sorted.

    Args:
        folder: a folder of submissions, or a zip archive of one.
        scratch: an empty folder for unpacked archives.

    Raises:
        UsageError: if there is no such folder, or nothing in it was handed in.
    """
    if folder.is_file() and folder.suffix.lower() == ".zip":
        files = list(
            _in_archive(folder, _place_in(scratch), scratch, (), 0, _Budget(MAX_CLASS_BYTES, MAX_CLASS_MEMBERS))
        )
    elif folder.is_dir():
        files = list(_in_folder(folder, scratch, (), 0, None))
    else:
        raise UsageError(f"There is no folder {folder}.", fix="Name the folder that holds the submissions, or its zip.")
    found = list(_owned(files))
    if not found:
        raise UsageError(f"No notebook was found in {folder}.", fix="Name the folder that holds the submissions.")
    return sorted(_latest(found), key=lambda item: (item.student.casefold(), item.student_id, item.lesson, item.file))


def _in_folder(
    folder: Path, scratch: Path, around: tuple[str, ...], depth: int, budget: _Budget | None
) -> Iterator[_File]:
    try:
        paths = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        yield _File(folder, around, problem=f"The folder can't be opened: {error.strerror}.")
        return
    for path in paths:
        if path.name in _IGNORED or path.name.startswith((".", "._")) or path.is_symlink():
            continue
        if path.is_dir():
            if len(around) < MAX_FOLDERS:
                yield from _in_folder(path, scratch, (*around, path.name), depth, budget)
        elif not path.is_file():  # a pipe or a socket: reading it could wait for ever
            continue
        elif path.suffix.lower() == ".zip":
            mine = _Budget(MAX_ARCHIVE_BYTES, MAX_MEMBERS) if budget is None else budget
            yield from _in_archive(path, _place_in(scratch), scratch, (*around, path.stem), depth, mine)
        elif ".backup-" not in path.name:
            yield _File(path, around)


def _place_in(scratch: Path) -> Path:
    return scratch / str(sum(1 for _ in scratch.glob("*")))


def _in_archive(
    archive: Path, target: Path, scratch: Path, around: tuple[str, ...], depth: int, budget: _Budget
) -> Iterator[_File]:
    try:
        if depth >= MAX_DEPTH:
            raise UnsafeArchive("archives inside archives inside archives")
        unpack(archive, target, budget)
    except Exception as error:  # whatever a damaged or hostile archive makes the library raise
        what = "this archive is damaged" if isinstance(error, (KeyError, TypeError, AttributeError)) else str(error)
        yield _File(archive, around, problem=f"The archive can't be unpacked: {what}. Ask for the notebook itself.")
        return
    yield from _in_folder(target, scratch, around, depth + 1, budget if depth or around else None)


class UnsafeArchive(Exception):
    """An archive that would write outside its folder, or more than anybody hands in."""


def unpack(archive: Path, target: Path, budget: _Budget | None = None) -> None:
    """Unpack a zip archive, refusing what no honest one holds; of a refused archive nothing is left.

    Raises:
        UnsafeArchive: for names that lead elsewhere, links, device names, too many or too large members.
        zipfile.BadZipFile: if it is no archive, or damaged.
    """
    budget = _Budget(MAX_ARCHIVE_BYTES, MAX_MEMBERS) if budget is None else budget
    try:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            budget.take_files(len(members))
            for member in members:
                _check_member(member, budget)
            target.mkdir(parents=True, exist_ok=True)
            for member in members:
                if not member.is_dir():
                    _copy(file, member, target / PurePosixPath(member.filename.replace("\\", "/")), budget)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _check_member(member: zipfile.ZipInfo, budget: _Budget) -> None:
    name = member.filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or re.match(r"^[A-Za-z]:", name) or "\0" in name:
        raise UnsafeArchive(f"{member.filename!r} leads out of its folder")
    if any(_DEVICES.match(part) for part in parts):
        raise UnsafeArchive(f"{member.filename!r} is the name of a device")
    mode = member.external_attr >> 16
    if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
        raise UnsafeArchive(f"{member.filename!r} is a link or a device")
    if len(parts) > MAX_FOLDERS:
        raise UnsafeArchive(f"it has {len(parts)} folders inside one another")
    if member.file_size > budget.left:
        raise UnsafeArchive(f"{member.filename!r} unpacks to {human_bytes(member.file_size)}")


def _copy(file: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, budget: _Budget) -> None:
    """Write one member with its time; what its header says of its size is not believed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open(member) as source, open(path, "wb") as sink:
        while block := source.read(2**20):
            budget.take(len(block))
            sink.write(block)
    try:
        written = datetime(*member.date_time).timestamp()
        os.utime(path, (written, written))
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        os.utime(path, (0, 0))


def _owned(files: Iterable[_File]) -> Iterator[Submission]:
    """Yield the submission that each notebook is, then those of people who handed in files but no notebook."""
    files = list(files)
    read = {file: _content(file) for file in files if file.is_notebook and not file.problem}
    layers = _layers_around(files, read)
    seen: set[tuple[str, str]] = set()
    others: dict[tuple[str, str], list[tuple[_Owner, _File]]] = defaultdict(list)
    for file in files:
        owner = _owner_of(file, layers)
        if file not in read and not file.problem:
            if owner.system or any(_person_in(name) for name in file.around[layers:]):
                others[owner.key].append((owner, file))
            continue
        seen.add(owner.key)
        student = owner.student or f"unknown ({_clean(file.path.name)})"
        named = _lesson_in(owner.rest)
        found = Submission(
            student, named.stem if named else "", file.path, owner.student_id, _version_of(file), file.problem,
            system=owner.system,
        )  # fmt: skip
        yield found if file.problem else _of_its_lesson(found, read[file])
    for key, left in others.items():
        if key not in seen:
            owner, first = left[0]
            names = ", ".join(_clean(file.path.name) for _, file in left[:3])
            yield Submission(
                owner.student, "", first.path, owner.student_id, system=owner.system,
                problem=f"No notebook was handed in, only {names}. Ask for the .ipynb file.",
            )  # fmt: skip


def _content(file: _File) -> tuple[str, str]:
    """Return the lesson that a notebook's content belongs to, and a sentence if it can't be read."""
    try:
        return lesson_of(read_notebook(file.path)), ""
    except ValueError as error:
        return "", str(error)


def _of_its_lesson(found: Submission, content: tuple[str, str]) -> Submission:
    said, problem = content
    if problem:
        return replace(found, problem=problem)
    if not said and not found.lesson:
        return replace(found, problem="It is none of the course's lessons: it has none of their exercises.")
    if said and found.lesson and said != found.lesson:
        note = f"Its name says {found.lesson}, its cells are those of {said}; graded as {said}."
        return replace(found, lesson=said, notes=(note,))
    return replace(found, lesson=said or found.lesson)


def _owner_of(file: _File, layers: int) -> _Owner:
    """Return whose file it is.

    The outermost name that Moodle or Canvas made decides: what a student calls things inside their own folder or
    archive doesn't. Without one it is the outermost name of a person, below the folders that are around all.
    """
    for name in file.around:
        if (owner := _by_system(name)) is not None:
            return replace(owner, rest=file.stem)
    if (owner := _by_system(file.stem)) is not None:
        return owner
    named = (_person_in(name) for name in (*file.around[layers:], file.stem))
    return _Owner(next(filter(None, named), ""), rest=file.stem)


def _by_system(name: str) -> _Owner | None:
    """Return the student in a name that Moodle or Canvas made, of a folder or a file without its ending."""
    if moodle := _MOODLE.match(name):
        return _Owner(_clean(moodle["student"]), moodle["id"], "moodle", moodle["rest"] or "")
    if anonymous := _CANVAS_ANONYMOUS.match(name):
        return _Owner(f"anon {anonymous['id']}", f"anon_{anonymous['id']}", "canvas", anonymous["name"])
    canvas = _CANVAS.match(name)
    if canvas and not any(f"{canvas['submission']}_{canvas['name']}".startswith(lesson.stem) for lesson in LESSONS):
        return _Owner(_clean(canvas["student"]), canvas["id"], "canvas", canvas["name"])
    return None


def _layers_around(files: list[_File], read: dict[_File, tuple[str, str]]) -> int:
    """Return how many of the outermost folders are around all students, as the course's own folder is.

    They are those that all notebooks of a known layout share, if the next names are then several for one lesson:
    ``COMP101/ada/01_tensors.ipynb`` beside ``COMP101/bob/01_tensors.ipynb``.
    """
    plain = [file for file in files if file in read and read[file][0] and _by_system_anywhere(file) is None]
    if not plain:
        return 0
    shared = 0
    while len({file.around[shared : shared + 1] for file in plain}) == 1 and len(plain[0].around) > shared:
        shared += 1
    people: dict[str, set[str]] = defaultdict(set)
    for file in plain:
        below = [_person_in(name) for name in (*file.around[shared:], file.stem)]
        people[read[file][0]].add(next((name for name in below if name), ""))
    return shared if any(len(names - {""}) > 1 for names in people.values()) else 0


def _by_system_anywhere(file: _File) -> _Owner | None:
    return next(filter(None, map(_by_system, (*file.around, file.stem))), None)


def _person_in(name: str) -> str:
    """Return what is left of a name without the lesson, the version and what no person is called."""
    name, _ = _without_version(name)
    lesson = _lesson_in(name)
    student = name
    if lesson is not None:
        student = re.sub(re.escape(lesson.stem), " ", name, count=1, flags=re.IGNORECASE)
        if student == name:  # named by the lesson's number or word alone
            student = re.sub(rf"(?i)(?<![a-z0-9])({lesson.number}|{lesson.name})(?![a-z0-9])", " ", name)
    student = _clean(re.sub(r"^[\s_.,-]+|[\s_.,-]+$", "", student))
    return "" if _NOBODY.fullmatch(student) else student


def _clean(name: str) -> str:
    """Return a name that can be written anywhere: one form of each letter, no control characters, not too long."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    unseen = {sign for sign in name if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp")} - set(_JOINERS)
    name = "".join(" " if sign in unseen else sign for sign in name)
    return " ".join(name.split())[:MAX_NAME_CHARS]


def _version_of(file: _File) -> int:
    """Return the version that the file's name tells, else that of the archive that Canvas named."""
    own = _by_system(file.stem)
    names = [own or _Owner(rest=file.stem), *filter(None, map(_by_system, file.around))]
    versions = (_without_version(owner.rest, is_sure=owner.system == "canvas")[1] for owner in names)
    return next(filter(None, versions), 0)


def _without_version(name: str, *, is_sure: bool = False) -> tuple[str, int]:
    """Return a name and the number at its end; unless it is sure that there may be one, only after a lesson."""
    again = _AGAIN.search(name)
    if again is None or not (is_sure or again.group()[0] == " " or _lesson_in(name[: again.start()])):
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
    groups: dict[tuple[str, str, str, str], list[Submission]] = {}
    for item in found:
        key = (item.student.casefold(), item.student_id, item.lesson, str(item.path) if not item.lesson else "")
        groups.setdefault(key, []).append(item)
    for items in groups.values():
        best = max(items, key=lambda item: (not item.problem, item.version, item.path.stat().st_mtime, str(item.path)))
        if len(items) > 1:
            note = f"{len(items)} files were handed in for this lesson; graded is {best.file}."
            best = replace(best, notes=(*best.notes, note))
        yield best
