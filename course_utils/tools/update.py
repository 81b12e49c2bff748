"""Carry a learner's workspace over to this edition: their answers stay, the lessons' new text comes in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.errors import CourseError, UsageError
from course_utils.exercises import progress
from course_utils.lessons import LESSONS, goes_by
from course_utils.paths import workspace, write_text
from course_utils.text import plural
from course_utils.tools import lab
from course_utils.tools.merge import Notebook, merge
from course_utils.tools.notebooks import shape_problem

BACKUP = ".backup-"
CARRIED = ".carried"


@dataclass(frozen=True)
class Updated:
    """What happened to one file of the workspace. ``action``: updated, unchanged, added, skipped or failed."""

    path: Path
    action: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.action:<9} {self.path.name}" + (f": {self.note}" if self.note else "")


def update(old: Path | None = None) -> list[Updated]:
    """Bring every notebook of the workspace up to this edition; what was there is kept as a backup beside it.

    Args:
        old: a workspace of an earlier edition; its files are copied first, its progress is joined with this one's.

    Raises:
        UsageError: if ``old`` is no folder.
        EnvironmentProblem: if the workspace can't be written to.
    """
    if old is not None:
        if not old.is_dir():
            raise UsageError(
                f"There is no folder {old}.", fix="Name the earlier workspace, the folder with your notebooks."
            )
        if old.resolve() == workspace().resolve():
            old = None
    done = list(_carried(old)) if old is not None else []
    for path in sorted(workspace().glob("*.ipynb")):
        if BACKUP not in path.name:
            done.append(_update_one(path))
    return done + [Updated(path, "added") for path in lab.prepare_workspace()]


def summary(done: list[Updated]) -> str:
    """Return a line for each file, and what to know afterwards."""
    lines = [str(item) for item in done]
    updated = sum(item.action == "updated" for item in done)
    failed = sum(item.action == "failed" for item in done)
    lines.append(f"{plural(updated, 'notebook')} updated in {workspace()}; your earlier copies are kept beside them.")
    if failed:
        lines.append(f"{plural(failed, 'notebook')} could not be read and stayed as they were.")
    return "\n".join(lines)


def _carried(old: Path) -> Iterator[Updated]:
    """Copy the notebooks of an earlier workspace, never over one that is there; join the progress."""
    for path in sorted(old.glob("*.ipynb")):
        target = workspace() / path.name
        try:
            content = path.read_bytes()
        except OSError as error:
            yield Updated(path, "failed", f"it can't be read ({error.strerror or error}).")
            continue
        if lab.put_copy(content, target) or _came_from(content, target):
            continue
        other = target.with_name(f"{path.stem}{CARRIED}.ipynb")
        if lab.put_copy(content, other):
            yield Updated(other, "added", f"{target.name} exists already, so yours has this name.")
        elif not _came_from(content, other):
            yield Updated(path, "skipped", f"{other.name} exists already and differs; rename it first.")
    try:
        joined = progress.join(old / "progress.json")
    except OSError as error:
        yield Updated(old / "progress.json", "failed", f"it can't be joined with yours ({error.strerror or error}).")
        return
    if joined:
        yield Updated(old / "progress.json", "added", f"{plural(joined, 'exercise')} joined with your progress.")


def _came_from(content: bytes, path: Path) -> bool:
    """Tell whether a file is this one, or was made of it: an update keeps what was there as a backup.

    So the same command does not carry a notebook twice, also after it was interrupted.
    """
    backups = (other for other in path.parent.glob("*.ipynb") if other.name.startswith(path.stem + BACKUP))
    for other in (path, *backups):
        with suppress(OSError):
            if other.read_bytes() == content:
                return True
    return False


def _update_one(path: Path) -> Updated:
    try:
        content = path.read_bytes()
        mine = _read(content)
    except (OSError, ValueError, RecursionError) as error:
        return Updated(path, "failed", f"it can't be read as a notebook ({type(error).__name__}); restore a backup.")
    stem = _lesson_of(mine, path)
    if stem is None:
        return Updated(path, "skipped", "it is none of the course's lessons.")
    try:
        merged = merge(mine, json.loads(lab.original(stem)))
    except (CourseError, KeyError, TypeError, AttributeError) as error:
        what = error.sentence if isinstance(error, CourseError) else f"its cells are damaged ({type(error).__name__})"
        return Updated(path, "failed", what)
    if not merged.changed:
        return Updated(path, "unchanged", merged.sentence())
    backup = lab.keep_backup(content, path)
    try:
        write_text(path, json.dumps(merged.notebook, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise lab.not_writable(path.parent, error.strerror or str(error)) from error
    return Updated(path, "updated", f"{merged.sentence()}; before: {backup.name}.")


def _read(content: bytes) -> Notebook:
    notebook: Any = json.loads(content.decode("utf-8-sig"))
    if problem := shape_problem(notebook):
        raise ValueError(problem)
    return notebook


def _lesson_of(notebook: Notebook, path: Path) -> str | None:
    """Return the stem of the lesson: what the notebook says of itself, else what its name begins with."""
    stems = [lesson.stem for lesson in LESSONS]
    said = notebook.get("metadata", {}).get("course", {}).get("lesson")
    if said in stems:
        return said
    return next((stem for stem in stems if goes_by(stem, path.stem) or path.stem.startswith(stem)), None)
