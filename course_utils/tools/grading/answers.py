"""From a submitted notebook to a script: which of its cells to run, in which order, and where the answers are.

The course's own cells that a student left as they were are demonstrations; they are skipped, since no answer may
depend on them. What is run is the set-up, the answer cells, and everything that the student wrote or changed. A
notebook whose answers need more than that is run whole, in a second attempt.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from course_utils.exercises.registry import exercises_of
from course_utils.lessons import find_lesson
from course_utils.paths import NOTEBOOKS
from course_utils.tools.grading.submissions import read_notebook
from course_utils.tools.merge import digest, text_of

CALLS = ("check", "hint", "solution", "progress", "claim")  # what cells call to talk to the course
MAX_CODE_CHARS = 200_000  # of one cell; nobody types more
_RUNS_ITS_BODY = re.compile(r"\A(?:\s*%%(?:time|capture|prun)\b[^\n]*\n)+")  # magics of a whole cell
_RUNS_ITS_LINE = re.compile(r"^(\s*)%(?:time|prun)[ \t]+(?=\S)", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A cell to run.

    Args:
        name: the cell's id, for messages.
        code: plain Python: magics are made into calls, calls to the course are taken out.
        answers: pairs of an exercise and the expression that gives the answer once the cell has run.
    """

    name: str
    code: str
    answers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Script:
    """What to run of one notebook. ``notes`` are sentences for the report."""

    lesson: str
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"pieces": [[piece.name, piece.code, [list(pair) for pair in piece.answers]] for piece in self.pieces]}


@dataclass(frozen=True)
class HandedOut:
    """The learner edition of a lesson, as a base to compare with."""

    digests: dict[str, str]  # cell id -> digest of its text
    setup: tuple[Piece, ...]  # parameters and set-up
    exercises: dict[str, str]  # cell id -> exercise
    expressions: dict[str, str]  # exercise -> the answer in its call of check


@cache
def handed_out(lesson: str) -> HandedOut:
    """Return the base of a lesson, from its learner edition in this copy of the course.

    Raises:
        ValueError: if that notebook is missing or damaged.
    """
    notebook = read_notebook(NOTEBOOKS / f"{lesson}.ipynb")
    code = [cell for cell in notebook["cells"] if cell.get("cell_type") == "code"]
    tags = {cell["id"]: cell["metadata"].get("tags", []) for cell in code}
    exercises = {cell["id"]: cell["metadata"]["exercise"] for cell in code if "exercise" in cell["metadata"]}
    calls = [pair for cell in code for pair in _parsed(text_of(cell))[1]]
    return HandedOut(
        {cell["id"]: digest(text_of(cell)) for cell in code},
        tuple(_piece(cell, cell["id"]) for cell in code if {"parameters", "setup"} & set(tags[cell["id"]])),
        exercises,
        dict(calls),
    )


def script_of(notebook: dict[str, Any], lesson: str, *, whole: bool = False) -> Script:
    """Return what to run of a submitted notebook, in whatever state it is.

    Args:
        notebook: its content.
        lesson: stem of the lesson, ``01_tensors``.
        whole: also the course's own cells that the student left as they were.
    """
    base = handed_out(lesson)
    known = {exercise.id for exercise in exercises_of(find_lesson(lesson))}
    pieces = list(base.setup)
    setup_ids = {piece.name for piece in base.setup}
    notes: list[str] = []
    seen: Counter[str] = Counter()
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell.get("cell_type") != "code":
            continue
        text = _text(cell)
        cell_id = str(cell.get("id") or f"cell {number}")
        is_unchanged = base.digests.get(cell_id) == digest(text) or digest(text) in _set(base)
        exercise = _exercise_of(cell, cell_id, base, known)
        if is_unchanged and exercise is None and (cell_id in setup_ids or not whole):
            continue
        if len(text) > MAX_CODE_CHARS:
            notes.append(f"Cell {cell_id!r} holds {len(text):,} characters and was left out.")
            continue
        piece = _piece({**cell, "source": text}, cell_id, exercise, base)
        piece = Piece(piece.name, piece.code, tuple(pair for pair in piece.answers if pair[0] in known))
        seen.update({pair[0] for pair in piece.answers})
        pieces.append(piece)
    notes += [f"{exercise} stands {count} times; the best counts." for exercise, count in seen.items() if count > 1]
    return Script(lesson, tuple(pieces), tuple(notes))


@cache
def _set_of(digests: tuple[str, ...]) -> frozenset[str]:
    return frozenset(digests)


def _set(base: HandedOut) -> frozenset[str]:
    return _set_of(tuple(base.digests.values()))


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", cell.get("input", ""))
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    text = text.encode("utf-8", "replace").decode("utf-8")  # half of a character is no Python
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _exercise_of(cell: dict[str, Any], cell_id: str, base: HandedOut, known: set[str]) -> str | None:
    """Return the exercise that a cell is for, by its metadata or its id."""
    metadata = cell.get("metadata")
    said = metadata.get("exercise") if isinstance(metadata, dict) else None
    return said if isinstance(said, str) and said in known else base.exercises.get(cell_id)


def _piece(cell: dict[str, Any], name: str, exercise: str | None = None, base: HandedOut | None = None) -> Piece:
    code, calls = _parsed(text_of(cell))
    asked = {said for said, _ in calls}
    if exercise is not None and base is not None and exercise not in asked:  # the call of check was deleted
        calls = [*calls, (exercise, _renamed(code, base.expressions.get(exercise, "")))]
    return Piece(name, code, tuple(calls))


def _parsed(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a cell's code without its calls to the course, and the answers that its ``check`` calls name.

    Code that isn't Python comes back as it is; running it says what is wrong with it.
    """
    code = _without_magics(text)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code, []
    answers: list[tuple[str, str]] = []
    kept: list[ast.stmt] = []
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CALLS:
            pair = _answer_in(call)
            if call.func.id == "check" and pair is not None:
                answers.append(pair)
            continue
        kept.append(statement)
    if len(kept) == len(tree.body):
        return code, answers
    return ast.unparse(ast.Module(kept, [])), answers


def _answer_in(call: ast.Call) -> tuple[str, str] | None:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not values or not isinstance(values[0], ast.Constant) or not isinstance(values[0].value, str):
        return None
    return values[0].value, ast.unparse(values[1]) if len(values) > 1 else "..."


def _renamed(code: str, expression: str) -> str:
    """Return the expression for an answer whose call of ``check`` is gone: the one function or class of the cell.

    Only where the name that the course gave does not occur in the cell any more.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return expression or "..."
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))]
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)} | set(defined)
    wanted = set(re.findall(r"[A-Za-z_]\w*", expression))
    if not wanted & names and len(defined) == 1:
        return defined[0]
    return expression or "..."


def _without_magics(text: str) -> str:
    """Return a cell as plain Python: IPython's magics become calls, which do nothing when graded.

    Those that only measure what stands after them are left out, so that it runs, and fails, as any other code.
    """
    text = _RUNS_ITS_LINE.sub(r"\1", _RUNS_ITS_BODY.sub("", text))
    if not re.search(r"^\s*[%!?]|[?]\s*$|=\s*[%!]", text, flags=re.MULTILINE):
        return text
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        return str(TransformerManager().transform_cell(text))
    except (SyntaxError, ValueError, RecursionError):
        return text


def as_text(script: Script) -> str:
    """Return a script as JSON, as it is sent to the process that runs it."""
    return json.dumps(script.to_json())
