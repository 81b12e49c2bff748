"""Lesson sources under the rules of the format, and the two notebooks that are made of each.

The rules are in ``source_rules``. Notebooks are plain dictionaries in nbformat 4.5 here, so that ``build --check``
needs neither jupytext nor nbformat, which take seconds to import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_utils.errors import SourceError, UsageError
from course_utils.lessons import goes_by, plain_name
from course_utils.paths import NOTEBOOKS, write_text
from course_utils.sources import (
    Blank,
    Cell,
    exercise_cells,
    learner_code,
    read_cells,
    reference_code,
    segments,
    setup_code,
    solution_code,
    source_paths,
    text_of_source,
)
from course_utils.text import did_you_mean, plural
from course_utils.tools.merge import handed_out
from course_utils.tools.source_rules import problems

__all__ = [
    "EDITIONS",
    "agree_with_jupytext",
    "check_source",
    "exercise_cells",
    "find_source",
    "insert_ids",
    "learner_code",
    "make_editions",
    "notebook_path",
    "reference_code",
    "setup_code",
    "solution_code",
    "unlike_blanks",
]

EDITIONS = ("learner", "solutions")
Notebook = dict[str, Any]

# comment_magics off: jupytext would take a stub line such as "# ls = []" for a shell command and uncomment it.
JUPYTEXT_FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {  # without the version: it would differ between the machines that build
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
_SLUG_WORDS = 5


def find_source(name: str, folder: Path = NOTEBOOKS) -> Path:
    """Return the source of the lesson meant by ``01_tensors``, ``01``, ``1`` or ``tensors``.

    Raises:
        UsageError: if there is none.
    """
    known = source_paths(folder / "source")
    for path in known:
        if goes_by(path.stem, name):
            return path
    stems = [path.stem for path in known]
    fix = did_you_mean(plain_name(name), stems) if stems else "there are no sources in this folder."
    raise UsageError(f"No lesson source is called {name!r}.", fix=fix)


def notebook_path(source: Path, edition: str) -> Path:
    """Return where the notebook of one edition stands: beside ``source/``, or in ``solutions/``."""
    folder = source.parent.parent
    return (folder if edition == "learner" else folder / "solutions") / f"{source.stem}.ipynb"


def check_source(path: Path) -> list[Cell]:
    """Return the cells of a source that keeps all rules.

    Raises:
        SourceError: naming file, line and the fix of every place that does not.
    """
    cells = read_cells(path)
    found = problems(path, cells)
    if len(found) == 1:
        raise found[0]
    if found:
        lines = "\n".join(error.sentence for error in found)
        raise SourceError(f"{path.name} breaks the format in {plural(len(found), 'place')}:\n{lines}")
    return cells


def make_editions(path: Path) -> dict[str, Notebook]:
    """Return both editions of a lesson, not yet executed, by name of the edition.

    Raises:
        SourceError: if the source breaks a rule.
    """
    cells = check_source(path)
    return {edition: _notebook(path, cells, edition) for edition in EDITIONS}


def unlike_blanks(cell: Cell, learner: str, solutions: str) -> list[str]:
    """Return how two editions of an answer cell break the rule that they differ in the marked blanks only.

    This looks at the finished texts and takes nothing from the code that made them: the given lines must stand in
    both, in order and unchanged, with a blank's content wherever the source has one, and nowhere else.
    """
    pattern = ""
    for part in segments(cell):
        pattern += r"(?:.*\n)*" if isinstance(part, Blank) else re.escape(part) + r"\n"
    texts = {"learner": learner, "solutions": solutions}
    return [name for name, text in texts.items() if not re.fullmatch(pattern, text + "\n")]


def insert_ids(path: Path) -> list[str]:
    """Give every cell without an id one, made of its first words, in the source itself; return the new ids."""
    cells = read_cells(path)
    taken = {cell.id for cell in cells if cell.id}
    lines = text_of_source(path).split("\n")
    new = []
    for number, cell in enumerate(cells, start=1):
        if cell.id:
            continue
        slug = next(slug for slug in _slugs(cell, number) if slug not in taken)
        taken.add(slug)
        new.append(slug)
        head, kind, rest = re.match(r"(# %%)( \[markdown\])?(.*)", lines[cell.line - 1]).groups()  # type: ignore[union-attr]
        lines[cell.line - 1] = f'{head}{kind or ""} id="{slug}"{rest.rstrip()}'
    if new:
        write_text(path, "\n".join(lines))
    return new


def agree_with_jupytext(path: Path) -> None:
    """Check that jupytext, which authors edit with, reads the same cells from the source as we do.

    Raises:
        SourceError: naming the first cell that differs.
    """
    import jupytext

    ours = read_cells(path)
    try:
        theirs = jupytext.reads(text_of_source(path), fmt=JUPYTEXT_FORMAT).cells
    except Exception as error:  # of a damaged header it raises whatever its readers of YAML and JSON do
        raise SourceError(
            f"{path.name} can't be read by jupytext.", got=str(error), fix="look at its first lines and cell headers."
        ) from error
    for cell, other in zip(ours, theirs, strict=False):
        same = (cell.kind, cell.id or "", cell.text) == (
            other.cell_type,
            other.metadata.get("id", ""),
            other.source.rstrip(),
        )
        if not same:
            raise cell.error("is read differently by jupytext.", "keep '# %%' and triple quotes out of its text.")
    if len(ours) != len(theirs):
        raise SourceError(
            f"{path.name}: jupytext finds {plural(len(theirs), 'cell')} where we find {len(ours)}.",
            fix="keep lines that start with '# %%' for cell headers.",
        )


def _notebook(path: Path, cells: list[Cell], edition: str) -> Notebook:
    made = [_notebook_cell(cell, edition) for cell in cells]
    course = {"lesson": path.stem, "edition": edition, "cells": handed_out(made)}  # the base of a later update
    return {
        "cells": made,
        "metadata": {**NOTEBOOK_METADATA, "course": course},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _notebook_cell(cell: Cell, edition: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if cell.exercise:
        metadata["exercise"] = cell.exercise
    if cell.tags:
        metadata["tags"] = list(cell.tags)
    made = {"cell_type": cell.kind, "id": cell.id, "metadata": metadata, "source": cell.text}
    if cell.kind == "code":
        if cell.is_answer:
            made["source"] = learner_code(cell) if edition == "learner" else reference_code(cell)
        made |= {"execution_count": None, "outputs": []}
    return made


def _slugs(cell: Cell, number: int) -> Iterator[str]:
    """Yield ids for a cell, the most telling first."""
    words = re.findall(r"[a-z0-9]+", cell.text.lower())[:_SLUG_WORDS]
    slug = "-".join(words)[:40].strip("-") or "cell"
    yield slug
    yield f"{slug}-{number}"
    yield from (f"{slug}-{number}-{attempt}" for attempt in range(2, 1000))
