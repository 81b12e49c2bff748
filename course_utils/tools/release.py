"""Write the learner edition as a folder and a zip: everything that learning needs, and no solutions."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

from course_utils import __version__
from course_utils.errors import CourseError, EnvironmentProblem, UsageError
from course_utils.lessons import LESSONS
from course_utils.paths import ROOT, SOURCES, atomic_folder, atomic_path, remove_stale, write_files
from course_utils.text import human_bytes, plural
from course_utils.tools.edition import require

NAME = "pytorch-workbook"
STAMP, SUMS = "RELEASE.json", "SHA256SUMS"
# What goes out, as patterns below the checkout. No sources, no solutions, no tests: those hold the answers.
FILES = (
    "course.py", "pyproject.toml", "requirements.txt", "constraints.txt", "environment.yml", "CHANGELOG.md",
    "LICENSE", "LICENSE-TEXT.md", "course_utils/**/*", "notebooks/*.ipynb", "notebooks/settings/*", "data/*.md",
    "docs/**/*",
)  # fmt: skip
RENAMED = {"docs/learners.md": "README.md"}
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the same files give the same zip


@dataclass(frozen=True)
class Release:
    """What was written: the folder, the zip, and how many files they hold."""

    folder: Path
    archive: Path
    count: int

    def summary(self) -> str:
        size = human_bytes(self.archive.stat().st_size)
        return f"{plural(self.count, 'file')} in {self.folder}\nand as {self.archive} ({size})."


def release(out: Path) -> Release:
    """Write the learner edition of this checkout into ``out``.

    Raises:
        UsageError: if ``out`` holds this version already, with other content.
        EnvironmentProblem: if the notebooks aren't in step with their sources, or ``out`` can't be written to.
    """
    _require_in_step()
    contents = collect()
    target, archive = out / f"{NAME}-{__version__}", out / f"{NAME}-{__version__}.zip"
    if target.exists():
        if _read_all(target) != contents:
            raise UsageError(
                f"{target} exists already and has other content.", fix="Remove it, or choose another folder with --out."
            )
        remove_stale(target)
    else:
        _write_folder(contents, target)
    _write_zip(contents, archive, target.name)
    return Release(target, archive, len(contents))


def collect() -> dict[str, bytes]:
    """Return the files of the learner edition by their name in it, version stamp and checksums included."""
    contents: dict[str, bytes] = {}
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in Path(name).parts):
                contents[RENAMED.get(name, name)] = path.read_bytes()
    lessons = [lesson.stem for lesson in LESSONS]
    stamp = {
        "name": NAME,
        "version": __version__,
        "edition": "learner",
        "lessons": lessons,
        "content": _digest(contents),
    }
    contents[STAMP] = (json.dumps(stamp, indent=1) + "\n").encode()
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in sorted(contents.items())]
    contents[SUMS] = ("\n".join(sums) + "\n").encode()
    return dict(sorted(contents.items()))


def _digest(contents: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()[:16]


def _require_in_step() -> None:
    from course_utils.tools.build import build

    require(SOURCES, "sources")
    result = build(check=True)
    if not result.ok:
        raise EnvironmentProblem(
            "The notebooks are not in step with their sources.",
            fix="Run `python3 course.py build`, then release again.",
        )


def _write_folder(contents: dict[str, bytes], target: Path) -> None:
    """Write all files or none."""
    try:
        with atomic_folder(target) as unfinished:
            write_files(unfinished, contents)
    except OSError as error:
        raise _not_writable(target.parent, error) from error


def _write_zip(contents: dict[str, bytes], archive: Path, top: str) -> None:
    try:
        with atomic_path(archive) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in contents.items():
                entry = zipfile.ZipInfo(f"{top}/{name}", _ZIP_TIME)
                entry.external_attr = 0o100644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                file.writestr(entry, content)
    except OSError as error:
        raise _not_writable(archive.parent, error) from error


def _read_all(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return dict(sorted((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files))


def _not_writable(folder: Path, error: OSError) -> CourseError:
    reason = error.strerror or str(error)
    return EnvironmentProblem(f"{folder} can't be written to: {reason}.", fix="Make room, or choose another folder.")
