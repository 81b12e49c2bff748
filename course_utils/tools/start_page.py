"""The page that JupyterLab opens first: where to go on, the way through the course, and what is solved.

It is a Markdown file in the workspace, written anew at each start of ``course.py lab``. It needs no kernel: it is
there as soon as JupyterLab is. PyTorch is not imported for it; a lesson's exercises are read from its notebook.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from course_utils.exercises.progress import DONE, states
from course_utils.lessons import LESSONS, Lesson
from course_utils.paths import NOTEBOOKS, workspace, write_text
from course_utils.text import plural

NAME = "START.md"
_FOOT = """\
Run a cell with Shift+Enter, from the top. Your copy of the notebooks is yours: nothing overwrites it.
`python3 course.py reset 01` takes a lesson afresh and keeps your copy as a backup. This page is written anew at each
start of `python3 course.py lab`; inside a lesson, `progress()` shows how far you are now.
"""


def exercise_ids(notebook: Path) -> list[str]:
    """Return the ids of a notebook's exercises and clinic items, in their order; none if it can't be read."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        return [cell["metadata"]["exercise"] for cell in cells if "exercise" in cell["metadata"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def where_to_go_on(known: Mapping[str, str], ids: Mapping[str, list[str]]) -> tuple[Lesson, str]:
    """Return the lesson to go on with, and why, in half a sentence.

    It is the last lesson in which something was tried, or the one after it if everything there is solved. Whoever has
    solved everything is sent to the first lesson that has something left, or to the last.

    Args:
        known: state of each exercise that was tried.
        ids: the exercises of each lesson, by stem.
    """
    touched = [at for at, lesson in enumerate(LESSONS) if any(id in known for id in ids[lesson.stem])]
    if not touched:
        return LESSONS[0], "nothing is solved yet"
    for at in (*range(touched[-1], len(LESSONS)), *range(touched[-1])):
        left = [id for id in ids[LESSONS[at].stem] if known.get(id) != DONE]
        if left:
            what = "is left" if len(left) == 1 else "are left"
            return LESSONS[at], f"{plural(len(left), 'exercise')} {what} there, the next is `{left[0]}`"
    return LESSONS[-1], "everything is solved"


def start_page() -> str:
    """Return the page as Markdown."""
    known = states()
    ids = {lesson.stem: exercise_ids(NOTEBOOKS / f"{lesson.stem}.ipynb") for lesson in LESSONS}
    lesson, why = where_to_go_on(known, ids)
    begun = any(known.get(id) for each in ids.values() for id in each)
    lines = [
        "# PyTorch Workbook",
        "",
        f"**{'Continue where you left off' if begun else 'Begin here'}: "
        f"[{lesson.number} {lesson.title}]({lesson.stem}.ipynb)** ({why}).",
        "",
        "| lesson | what it answers | solved |",
        "| --- | --- | ---: |",
    ]
    for each in LESSONS:
        done = sum(known.get(id) == DONE for id in ids[each.stem])
        lines.append(
            f"| [{each.number} {each.title}]({each.stem}.ipynb) | {each.question} | {done} of {len(ids[each.stem])} |"
        )
    return "\n".join([*lines, "", _FOOT])


def write_start_page() -> Path:
    """Write the page into the workspace and return its path.

    Raises:
        OSError: if it can't be written.
    """
    path = workspace() / NAME
    write_text(path, start_page())
    return path
