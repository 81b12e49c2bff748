"""What came of a notebook: from the facts of how it ended, and from the notebook itself, to a verdict.

Pure functions on plain data. A notebook is the dictionary that its file holds.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.errors import MORE_MEMORY, is_out_of_memory
from course_utils.text import plural, shorten

PASSED, FAILED, TIMEOUT, DIED, SKIPPED = STATUSES = ("passed", "failed", "timeout", "died", "skipped")
ERROR_TAG = "papermill-error-cell-tag"  # papermill removes cells with this tag when it runs the notebook again

Notebook = dict[str, Any]

# How a notebook may end -> its status and the sentence about it. {cell} is the cell where it ended.
_ENDINGS: dict[str, tuple[str, str]] = {
    "complete": (PASSED, ""),
    "error": (FAILED, "{cell} raised {error}."),
    "hidden-error": (FAILED, "{cell} shows {error}, although the kernel reported success: a magic caught the error."),
    "not-run": (FAILED, "{facts}"),
    "output": (FAILED, "{cell} {facts}, and was stopped."),
    "output-lost": (
        FAILED,
        "{cell} wrote more at once, or faster, than can be stored, and some of its output is lost. {facts}",
    ),
    "internal": (FAILED, "The notebook could not be run to its end: {facts}"),
    "start": (DIED, "The kernel did not start: {facts}"),
    "dead": (DIED, "The kernel ended in {cell_here}: {exit}."),
    "memory": (DIED, "The kernel was stopped in {cell_here}: {facts}"),
    "processes": (DIED, "The kernel was stopped in {cell_here}: {facts}"),
    "lost": (DIED, "The process that ran the notebook ended in {cell_here}: {facts}"),
    "cell-timeout": (TIMEOUT, "{cell} ran longer than {facts}."),
    "notebook-timeout": (TIMEOUT, "The notebook ran longer than {facts}; it was in {cell_here}."),
    "job-timeout": (TIMEOUT, "The whole run took longer than {facts}; this notebook was in {cell_here}."),
    "interrupted": (SKIPPED, "The run was interrupted in {cell_here}."),
    "not-started": (SKIPPED, "{facts}"),
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The facts of how a notebook ended, as the worker and the runner saw them."""

    how: str  # one of _ENDINGS
    facts: str = ""  # more about it, a sentence or a part of one
    cell: int | None = None  # index of the cell that ran last
    ename: str = ""
    evalue: str = ""
    traceback: str = ""  # with terminal colours
    log: str = ""  # what the kernel process wrote when it crashed
    exit_code: int | None = None  # of the kernel; negative for a signal
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    left_running: tuple[str, ...] = ()  # commands that cells started and did not wait for


@dataclass(frozen=True)
class CellFacts:
    """The cell where a notebook ended."""

    number: int  # position among all cells of the executed notebook, from 1
    id: str
    source: str
    execution_count: int | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One notebook's line in the report."""

    name: str
    edition: str
    status: str  # one of STATUSES
    seconds: float = 0.0  # from the start of its kernel to the end of all its processes
    cpu_seconds: float = 0.0  # of the kernel and everything below it
    peak_mib: float = 0.0  # most memory of the kernel and everything below it, at one time
    error: str | None = None  # one sentence
    cell: CellFacts | None = None
    traceback: str = ""
    notes: tuple[str, ...] = ()
    cells_run: int = 0  # code cells
    cells_total: int = 0
    notebook: Path | None = None  # as executed, if it started

    @property
    def ok(self) -> bool:
        """Whether every cell ran without an error."""
        return self.status == PASSED


def judge(ending: Ending, notebook: Notebook | None, *, name: str, edition: str, path: Path | None = None) -> Outcome:
    """Return the outcome of a notebook; ``notebook`` is what was saved of it, None if nothing was."""
    cells = code_cells(notebook or {})
    run = [index for index, cell in cells if _has_run(cell)]
    if ending.how == "complete" and len(run) < len(cells):
        missing = [index + 1 for index, _ in cells if index not in run]
        ending = Ending(**{**vars(ending), "how": "not-run", "facts": _never_ran(missing)})
    status, sentence = _ENDINGS[ending.how]
    cell = None if status == PASSED else _cell_facts(notebook, ending.cell)
    return Outcome(
        name=name,
        edition=edition,
        status=status,
        seconds=round(ending.seconds, 2),
        cpu_seconds=round(ending.cpu_seconds, 2),
        peak_mib=round(ending.peak_bytes / 2**20, 1),
        error=_fill(sentence, ending, cell) or None,
        cell=cell,
        traceback=ending.traceback or ending.log,
        notes=(*_notes(ending), *_starved(ending), *_lost_classes(notebook, ending)),
        cells_run=len(run),
        cells_total=len(cells),
        notebook=path if notebook is not None else None,
    )


def code_cells(notebook: Notebook) -> list[tuple[int, dict[str, Any]]]:
    """Return the code cells that have code, with their index among all cells."""
    cells = enumerate(notebook.get("cells", []))
    return [(index, cell) for index, cell in cells if cell["cell_type"] == "code" and source_of(cell).strip()]


def source_of(cell: dict[str, Any]) -> str:
    """Return a cell's source; a file may hold it as a list of lines."""
    return "".join(cell["source"])


def marked_notebook(notebook: Notebook, outcome: Outcome, cell: int | None) -> Notebook:
    """Return the notebook with the error at its top and, before the cell where it ended, a place to jump to."""
    cells = list(notebook["cells"])
    link = ""
    if cell is not None and cell < len(cells):
        cells.insert(cell, _markdown("run-error-cell", '<a id="run-error-cell"></a>**The run ended here:**'))
        link = " [Go to the cell.](#run-error-cell)"
    cells.insert(0, _markdown("run-error", f"**This run {_STATUS_WORDS[outcome.status]}.** {outcome.error}{link}"))
    return {**notebook, "cells": cells}


_STATUS_WORDS = {FAILED: "failed", TIMEOUT: "took too long", DIED: "lost its kernel", SKIPPED: "was interrupted"}


def _markdown(cell_id: str, text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": cell_id, "metadata": {"tags": [ERROR_TAG]}, "source": [text]}


def _has_run(cell: dict[str, Any]) -> bool:
    """Tell whether a cell ran to its end: papermill has noted it and the kernel has counted it."""
    noted = cell["metadata"].get("papermill", {}).get("status")
    return noted == "completed" and cell.get("execution_count") is not None


def _never_ran(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
    return f"{plural(len(numbers), 'cell')} never ran ({shown}), although no error was reported."


def _cell_facts(notebook: Notebook | None, index: int | None) -> CellFacts | None:
    if notebook is None or index is None or index >= len(notebook["cells"]):
        return None
    cell = notebook["cells"][index]
    return CellFacts(index + 1, cell.get("id", ""), source_of(cell), cell.get("execution_count"))


def _fill(sentence: str, ending: Ending, cell: CellFacts | None) -> str:
    """Return a sentence of _ENDINGS with this ending's facts in it."""
    where = f"cell {cell.number}" + (f" (id {cell.id!r})" if cell.id else "") if cell else "an early stage"
    return sentence.format(
        cell=where[0].upper() + where[1:],
        cell_here=where,
        error=f"{ending.ename}: {shorten(ending.evalue, 300)}".rstrip(": "),
        exit=exit_text(ending.exit_code),
        facts=ending.facts,
    )


_SIGNAL_HINTS = {
    "SIGKILL": "; often the machine was out of memory",
    "SIGSEGV": "; compiled code crashed",
    "SIGBUS": "; often /dev/shm was full",
}


def exit_text(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None:
        return "how is not known"
    if code >= 0:
        return f"it ended by itself with exit status {code}, as after os._exit({code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"number {-code}"
    hint = _SIGNAL_HINTS.get(name, "")
    return f"signal {name}{hint}"


# What a process that was started afresh writes when it is given something that a cell defined.
_NOT_IN_MAIN = re.compile(r"Can't get attribute '(\w+)' on <module '__main__'")


def _lost_classes(notebook: Notebook | None, ending: Ending) -> tuple[str, ...]:
    """Return the note about classes and functions that worker processes looked for in vain."""
    outputs = [output for _, cell in code_cells(notebook or {}) for output in cell.get("outputs", [])]
    texts = ["".join(output.get("text", "")) for output in outputs] + [ending.traceback, ending.log]
    names = dict.fromkeys(name for text in texts for name in _NOT_IN_MAIN.findall(text))
    if not names:
        return ()
    return (
        f"A process that was started afresh (spawn) can't find {', '.join(names)}, which a cell defines: such a "
        "process imports modules and knows no cells. Move it to a .py file and import it, or use num_workers=0.",
    )


# What DataLoader's workers, and multiprocessing's locks and queues, say.
_NO_SHARED_MEMORY = re.compile(r"shared memory|SemLock")


def _starved(ending: Ending) -> tuple[str, ...]:
    """Return the note about what the machine lacked when a cell failed."""
    if ending.how not in ("error", "hidden-error"):
        return ()
    if _NO_SHARED_MEMORY.search(f"{ending.evalue}\n{ending.traceback}"):
        return (
            "Processes share tensors, locks and queues through /dev/shm, which is full, read-only or missing here. "
            "Use num_workers=0, or give a container more of it, as in docker run --shm-size=1g.",
        )
    return (f"There was not enough memory. {MORE_MEMORY}",) if is_out_of_memory(ending.ename, ending.evalue) else ()


def _notes(ending: Ending) -> tuple[str, ...]:
    count = len(ending.left_running)
    if not count:
        return ()
    what = (
        "1 process still ran at the end and was" if count == 1 else f"{count} processes still ran at the end and were"
    )
    return (
        f"{what} stopped: {'; '.join(ending.left_running[:3])}. What they would have written is lost; "
        "a cell that starts a process should wait for it.",
    )
