"""Carry a learner's notebook over to a newer edition: three-way, cell by cell, by id. Nothing is ever lost.

The base, what was handed out, travels in the notebook itself: ``metadata.course.cells`` has a digest of every cell's
text. A cell that only the course changed is renewed; one that only the learner changed is kept; where both did, the
learner's stays in its place and the course's stands below it.
"""

from __future__ import annotations

import copy
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

Notebook = dict[str, Any]
Cell = dict[str, Any]

MSG_CONFLICT = (
    "**The course has changed the cell above since you began.** Yours is kept; this is the course's new text:"
)
_NEW_ID = re.compile(r"[^A-Za-z0-9_-]")


@dataclass
class Merge:
    """A merged notebook, and what happened to which cells (ids)."""

    notebook: Notebook
    renewed: list[str] = field(default_factory=list)  # the course changed it, the learner hadn't
    added: list[str] = field(default_factory=list)  # new in the course
    removed: list[str] = field(default_factory=list)  # no longer in the course, and unchanged by the learner
    kept: list[str] = field(default_factory=list)  # the learner's own or changed cells
    conflicts: list[str] = field(default_factory=list)  # both changed it: both stand there now

    @property
    def changed(self) -> bool:
        return bool(self.renewed or self.added or self.removed or self.conflicts)

    def sentence(self) -> str:
        """Say in one line what was done."""
        parts = [
            f"{len(ids)} {word}"
            for word, ids in (
                ("renewed", self.renewed),
                ("added", self.added),
                ("removed", self.removed),
                ("changed by both, kept side by side", self.conflicts),
            )
            if ids
        ]
        own = f"; {len(self.kept)} of your own cells kept" if self.kept else ""
        return f"{', '.join(parts)}{own}" if parts else f"already up to date{own}"


def digest(text: str) -> str:
    """Return a short digest of a cell's text, the same for every kind of line end and for trailing blanks."""
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return hashlib.sha256("\n".join(lines).strip("\n").encode()).hexdigest()[:12]


def handed_out(cells: list[Cell]) -> dict[str, str]:
    """Return what a notebook keeps of the edition it came from: cell id -> digest, in order."""
    return {cell["id"]: digest(text_of(cell)) for cell in cells}


def text_of(cell: Cell) -> str:
    """Return a cell's source, which files may hold as a list of lines."""
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def merge(mine: Notebook, fresh: Notebook) -> Merge:
    """Return the learner's notebook carried over to the fresh edition; neither argument is changed.

    Args:
        mine: the learner's notebook, in whatever state.
        fresh: the newer learner edition.
    """
    mine, fresh = copy.deepcopy(mine), copy.deepcopy(fresh)
    base: dict[str, str] = dict(mine.get("metadata", {}).get("course", {}).get("cells", {}))
    news = {cell["id"]: cell for cell in fresh["cells"]}
    ours = _with_ids(mine.get("cells", []), base, news)
    result = Merge({**mine, "cells": []})
    cells = _in_order(ours, base, news)
    for cell in cells:
        result.notebook["cells"] += _settled(cell, base, news, result)
    _insert_new(result, base, news, fresh["cells"], deleted=set(base) - {cell["id"] for cell in ours})
    metadata = result.notebook.setdefault("metadata", {})
    metadata["course"] = fresh["metadata"]["course"]
    for key in ("kernelspec", "language_info"):
        metadata.setdefault(key, fresh["metadata"].get(key, {}))
    result.notebook["nbformat"], result.notebook["nbformat_minor"] = fresh["nbformat"], fresh["nbformat_minor"]
    return result


def _with_ids(cells: list[Cell], base: dict[str, str], news: dict[str, Cell]) -> list[Cell]:
    """Give each of the learner's cells its own id; one that lost it is found again by its text or exercise."""
    by_digest = {text: cell_id for cell_id, text in base.items()}
    by_exercise = {
        cell["metadata"]["exercise"]: cell_id
        for cell_id, cell in news.items()
        if "exercise" in cell.get("metadata", {})
    }
    taken: set[str] = set()
    known = []
    for cell in cells:
        cell_id = cell.get("id")
        if not isinstance(cell_id, str) or not cell_id:
            exercise = cell.get("metadata", {}).get("exercise")
            cell_id = by_digest.get(digest(text_of(cell))) or by_exercise.get(exercise) or "own"
        if cell_id in taken or cell_id == "own":  # a copy: an own cell of the learner from now on
            cell_id = _free(f"{cell_id}-copy" if cell_id != "own" else "own", taken | set(news) | set(base))
        taken.add(cell_id)
        known.append({**cell, "id": cell_id})
    return known


def _free(wish: str, taken: set[str]) -> str:
    wish = _NEW_ID.sub("-", wish)[:50]
    names = [wish, *(f"{wish}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def _in_order(ours: list[Cell], base: dict[str, str], news: dict[str, Cell]) -> list[Cell]:
    """Return the learner's cells in the order of the fresh edition, their own cells after those they stood after.

    A learner who has moved the course's cells keeps their order.
    """
    present = [cell["id"] for cell in ours if cell["id"] in base]
    if present != [cell_id for cell_id in base if cell_id in set(present)]:
        return ours
    blocks: dict[str, list[Cell]] = {"": []}  # a cell of the course, and the learner's own cells below it
    anchor = ""
    for cell in ours:
        if cell["id"] in news:
            anchor = cell["id"]
            blocks[anchor] = []
        blocks[anchor].append(cell)
    return [cell for cell_id in ("", *news) for cell in blocks.get(cell_id, [])]


def _settled(cell: Cell, base: dict[str, str], news: dict[str, Cell], result: Merge) -> list[Cell]:
    """Return what takes the place of one of the learner's cells."""
    cell_id = cell["id"]
    mine = digest(text_of(cell))
    is_changed = mine != base.get(cell_id)
    if cell_id not in news:
        if cell_id in base and not is_changed:
            result.removed.append(cell_id)
            return []
        result.kept.append(cell_id)
        return [cell]
    fresh = news[cell_id]
    theirs = digest(text_of(fresh))
    if mine == theirs:  # the learner's outputs are their own: keep them
        return [{**cell, "metadata": {**cell.get("metadata", {}), **fresh["metadata"]}}]
    if not is_changed:
        result.renewed.append(cell_id)
        return [fresh]
    result.kept.append(cell_id)
    cell["metadata"] = {**cell.get("metadata", {}), **fresh["metadata"]}
    if base.get(cell_id) == theirs:
        return [cell]
    result.conflicts.append(cell_id)
    taken = {*news, *base, *(other["id"] for other in result.notebook["cells"])}
    return [cell, _note(fresh, _free(f"{cell_id}-new", taken))]


def _note(fresh: Cell, cell_id: str) -> Cell:
    text = text_of(fresh)
    if fresh["cell_type"] == "code":
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        text = f"{fence}python\n{text}\n{fence}"
    return {
        "cell_type": "markdown",
        "id": cell_id,
        "metadata": {"tags": ["course-update"]},
        "source": f"{MSG_CONFLICT}\n\n{text}",
    }


def _insert_new(
    result: Merge, base: dict[str, str], news: dict[str, Cell], order: list[Cell], deleted: set[str]
) -> None:
    """Put the cells that the learner's copy lacks below the cell that stands before them in the fresh edition."""
    present = {cell["id"] for cell in result.notebook["cells"]}
    before = ""
    for cell in order:
        cell_id = cell["id"]
        is_unwanted = cell_id in deleted and digest(text_of(cell)) == base[cell_id]  # the learner deleted it
        if cell_id not in present and not is_unwanted:
            cells = result.notebook["cells"]
            at = next((place for place, other in enumerate(cells) if other["id"] == before), -1) + 1
            while at < len(cells) and cells[at]["id"] not in news and before:
                at += 1  # below the learner's own cells and notes
            cells.insert(at, cell)
            result.added.append(cell_id)
            present.add(cell_id)
        if cell_id in present:
            before = cell_id
