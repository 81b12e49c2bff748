"""The learner's progress: one small JSON file, safe under two kernels, movable, never a reason to fail.

``COURSE_PROGRESS`` names another file, or ``off`` for none (batch runs). A damaged file is put aside under
another name, never overwritten; where the file can't be read or written, progress is kept in memory.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from course_utils.exercises.verdicts import PASSED, UNTRIED, Outcome
from course_utils.lessons import LESSONS
from course_utils.paths import workspace, write_text

TODO, TRIED, DONE = "todo", "tried", "done"
LOCK_TIMEOUT_S = 5.0

_in_memory: dict[str, str] = {}  # what could not be written, so that this kernel still knows it


def progress_path() -> Path | None:
    """Return the file that holds the progress, or None where it is switched off."""
    place = os.environ.get("COURSE_PROGRESS", "")
    if place.strip().lower() == "off":
        return None
    return Path(os.path.expanduser(place)) if place else workspace() / "progress.json"


def record(outcome: Outcome) -> str:
    """Note an outcome. What is done stays done, whatever is tried later.

    Returns:
        A sentence if the note could not be written to the file, else an empty string.
    """
    path = progress_path()
    if outcome.state == UNTRIED or path is None:
        return ""
    news = _merged(_in_memory, {outcome.exercise_id: DONE if outcome.state == PASSED else TRIED})
    try:
        _write(path, news)
        _in_memory.clear()
    except (OSError, TimeoutError, NotImplementedError) as error:
        _in_memory.update(news)
        return f"Progress is kept in this kernel only: {path} can't be written ({type(error).__name__})."
    return ""


def join(other: Path) -> int:
    """Join the progress in another file with this one's, and return how many exercises it had; done stays done.

    Raises:
        OSError: if one of the two files can't be opened or written.
    """
    path = progress_path()
    news = _read(other) if other.exists() else {}
    if news and path is not None:
        _write(path, news)
    return len(news)


def _write(path: Path, news: dict[str, str]) -> None:
    """Put ``news`` into the file, unless it says so already."""
    from filelock import FileLock

    known = _read(path)
    if _merged(known, news) == known:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(path.name + ".lock"), timeout=LOCK_TIMEOUT_S):
        known = _merged(_read(path), news)  # read again: another kernel may have written since
        write_text(path, json.dumps({"version": 1, "exercises": known}, indent=1, sort_keys=True) + "\n")


def states() -> dict[str, str]:
    """Return the state of every exercise that was ever tried, by exercise id."""
    path = progress_path()
    try:
        known = {} if path is None else _read(path)
    except OSError:
        known = {}
    return _merged(known, _in_memory)


def summary() -> list[dict[str, Any]]:
    """Return the progress by lesson in the shape of ``progress --json``."""
    from course_utils.exercises.registry import CLINIC, EXERCISE, exercises_of  # imports PyTorch

    known = states()

    def rows(lesson: Any, kind: str) -> list[dict[str, str]]:
        return [
            {"id": item.id, "title": item.title, "state": known.get(item.id, TODO)}
            for item in exercises_of(lesson)
            if item.kind == kind
        ]

    return [
        {"lesson": lesson.stem, "exercises": rows(lesson, EXERCISE), "clinic": rows(lesson, CLINIC)}
        for lesson in LESSONS
    ]


def _merged(known: dict[str, str], news: dict[str, str]) -> dict[str, str]:
    """Return ``known`` with ``news``; what is done in either is done."""
    return {**known, **{key: state for key, state in news.items() if known.get(key) != DONE}}


def _read(path: Path) -> dict[str, str]:
    """Return the states in a progress file; a damaged file is put aside and read as empty.

    Raises:
        OSError: if there is a file that can't be opened; it may be healthy, so it is left alone.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except UnicodeDecodeError:
        return _put_aside(path)
    try:
        exercises = json.loads(text)["exercises"]
        return {str(key): state for key, state in exercises.items() if state in (TRIED, DONE)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _put_aside(path)


def _put_aside(path: Path) -> dict[str, str]:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")
    os.replace(path, path.with_name(f"{path.stem}.damaged-{stamp}{path.suffix}"))
    return {}
