"""The rules of a lesson's source, one function each; a rule yields an error for every place that breaks it."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from course_utils.errors import SourceError, UsageError
from course_utils.exercises.registry import find_exercise
from course_utils.sources import Blank, Cell, learner_code, reference_code, segments
from course_utils.text import did_you_mean

PARAMETERS = {"SEED": 0, "DEVICE": "auto", "FAST": True}
TAGS = ("parameters", "setup", "prediction", "exercise", "clinic", "explorer", "nbval-ignore-output")
MAX_CODE_LINES = 20  # the advice to authors is "about 15"; comments and blank lines are free
# nbval also obeys comments such as "# NBVAL_IGNORE_OUTPUT"; only the tag may excuse a cell, so that all are listed.
_NBVAL_COMMENT = re.compile(r"^\s*#+\s*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXERCISE = re.compile(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")


def problems(path: Path, cells: list[Cell]) -> list[SourceError]:
    """Return the places in which the source breaks a rule: the first for each cell, in the file's order.

    The rules about the whole read the cells' code, so they are asked only once each cell is sound.
    """
    broken = [error for cell in cells if (error := _first_problem(cell))]
    return broken or [error for rule in LESSON_RULES for error in rule(path, cells)]


def _first_problem(cell: Cell) -> SourceError | None:
    return next((error for rule in CELL_RULES for error in rule(cell)), None)


def _has_a_proper_id(cell: Cell) -> Iterator[SourceError]:
    if cell.id is None:
        yield cell.error("has no id.", '`course build` gives it one, or write id="…" in its header.')
    elif not _ID.fullmatch(cell.id):
        yield cell.error("has an id that nbformat refuses.", "use up to 64 letters, digits, - and _.")


def _has_known_tags(cell: Cell) -> Iterator[SourceError]:
    for tag in cell.tags:
        if tag not in TAGS:
            yield cell.error(f"has the unknown tag {tag!r}.", did_you_mean(tag, TAGS))
    if cell.tags and cell.kind == "markdown":
        yield cell.error("is text, yet has tags.", "tags are for code cells; take them out.")


def _leaves_blanks_only_in_answer_cells(cell: Cell) -> Iterator[SourceError]:
    try:
        blanks = [part for part in segments(cell) if isinstance(part, Blank)]
    except SourceError as error:
        yield error
        return
    if blanks and not cell.is_answer:
        yield cell.error("has solution markers, yet is no exercise.", 'give it tags=["exercise"] and exercise="…".')
    if cell.is_answer and not blanks:
        yield cell.error(
            "is an exercise without a solution.", "put it between ### BEGIN SOLUTION and ### END SOLUTION."
        )
    if "clinic" in cell.tags and cell.text.count("### BEGIN STUB") == 0:
        yield cell.error("is a clinic item without a broken program.", "put it in a ### BEGIN STUB block.")


def _is_plain_python(cell: Cell) -> Iterator[SourceError]:
    for edition, code in _codes(cell).items():
        try:
            tree = ast.parse(code)
        except SyntaxError as error:
            where = f" in the {edition} edition" if cell.is_answer else ""
            offset = 0 if cell.is_answer else (error.lineno or 0)
            yield cell.error(
                f"is not plain Python{where}: {error.msg}.", "repair it; magics and ! are not allowed.", offset=offset
            )
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                yield cell.error(f"imports * from {node.module}.", "import the names it uses.", offset=node.lineno)
    if _NBVAL_COMMENT.search(cell.text):
        yield cell.error("tells nbval what to do in a comment.", 'use tags=["nbval-ignore-output"] if it must vary.')


def _is_short(cell: Cell) -> Iterator[SourceError]:
    if cell.kind == "markdown" or cell.is_answer or "setup" in cell.tags:
        return
    count = sum(1 for line in cell.text.split("\n") if line.strip() and not line.lstrip().startswith("#"))
    if count > MAX_CODE_LINES:
        yield cell.error(f"has {count} lines of code.", f"show one idea in at most {MAX_CODE_LINES}, or split it.")


def _answers_end_with_their_check(cell: Cell) -> Iterator[SourceError]:
    if not cell.is_answer:
        if cell.exercise:
            yield cell.error("names an exercise, yet has no such tag.", 'add tags=["exercise"] or tags=["clinic"].')
        return
    if not cell.exercise or not _EXERCISE.fullmatch(cell.exercise):
        yield cell.error("does not name its exercise.", 'add exercise="lesson.what-it-asks" to its header.')
        return
    lesson = cell.path.stem.partition("_")[2]
    if cell.exercise.partition(".")[0] != lesson:
        yield cell.error(f"names an exercise of another lesson, {cell.exercise!r}.", f"start it with '{lesson}.'.")
    if any(_checked_id(code) != cell.exercise for code in _codes(cell).values()):
        yield cell.error("does not end with its check.", f'make check("{cell.exercise}", …) its last statement.')


def _ids_are_unique(path: Path, cells: list[Cell]) -> Iterator[SourceError]:
    for kind in ("id", "exercise"):
        counts = Counter(getattr(cell, kind) for cell in cells if getattr(cell, kind))
        seen = set()
        for cell in cells:
            value = getattr(cell, kind)
            if value and counts[value] > 1 and value in seen:
                yield cell.error(f"has the {kind} {value!r} of another cell.", "give it one of its own.")
            seen.add(value)


def _has_parameters_then_setup(path: Path, cells: list[Cell]) -> Iterator[SourceError]:
    tagged = {tag: [cell for cell in cells if tag in cell.tags] for tag in ("parameters", "setup")}
    for tag, found in tagged.items():
        if len(found) != 1:
            fix = f'write exactly one code cell with tags=["{tag}"].'
            yield SourceError(f"{path.name}:1: there are {len(found)} {tag} cells.", fix=fix)
    if any(len(found) != 1 for found in tagged.values()):
        return
    first_code = [cell for cell in cells if cell.kind == "code"][:2]
    parameters, setup = tagged["parameters"][0], tagged["setup"][0]
    if first_code != [parameters, setup]:
        yield setup.error("or the parameters cell is not among the first.", "order: parameters, setup, other code.")
    if _literals(parameters) != PARAMETERS:
        expected = ", ".join(f"{name} = {value!r}" for name, value in PARAMETERS.items())
        yield parameters.error("does not set the three parameters alone.", f"write {expected}.")


def _follows_the_anatomy(path: Path, cells: list[Cell]) -> Iterator[SourceError]:
    """Only the outline: a title first, a recap as the last heading. The rest is left to the author."""
    if not cells:
        yield SourceError(f"{path.name}:1: there is no cell.", fix="start with a text cell: # 01 Tensors …")
        return
    if cells[0].kind != "markdown" or not cells[0].text.startswith("# "):
        yield SourceError(f"{path.name}:1: the lesson has no title.", fix="start with a text cell: # 01 Tensors …")
    headings = [
        (cell, line)
        for cell in cells
        if cell.kind == "markdown"
        for line in cell.text.split("\n")
        if line.startswith("## ")
    ]
    if not headings or "recap" not in headings[-1][1].lower():
        cell = headings[-1][0] if headings else cells[-1]
        yield cell.error("holds the last heading, which is no recap.", "end the lesson with '## Recap'.")


def _answers_rely_on_setup_only(path: Path, cells: list[Cell]) -> Iterator[SourceError]:
    given = set(dir(builtins)) | {"display", "get_ipython"}
    for cell in cells:
        if {"parameters", "setup"} & set(cell.tags):
            given |= _Names(cell.text).bound
    made = {cell.exercise: _Names(reference_code(cell)).bound for cell in cells if cell.is_answer and _codes(cell)}
    for cell in filter(lambda cell: cell.is_answer, cells):
        needed = set().union(*(made.get(exercise, set()) for exercise in _needs(cell)))
        missing = sorted(set().union(*(_Names(code).free for code in _codes(cell).values())) - given - needed)
        if missing:
            fix = "import it in the setup cell, or make it in this cell: graders run exercises alone."
            yield cell.error(f"uses {missing[0]!r}, which the setup cell does not make.", fix)


def _nothing_relies_on_an_answer(path: Path, cells: list[Cell]) -> Iterator[SourceError]:
    answered: dict[str, Cell] = {}
    for cell in filter(lambda cell: cell.kind == "code", cells):
        if cell.is_answer:
            for code in _codes(cell).values():
                answered |= dict.fromkeys(_Names(code).bound, cell)
            continue
        names = _Names(cell.text)
        used = sorted(names.free & answered.keys())
        if used:
            origin = answered[used[0]].id
            fix = "make it anew in this cell, under another name: the learner may not have answered."
            yield cell.error(f"uses {used[0]!r}, which the exercise cell {origin!r} makes.", fix)
        for name in names.bound:
            answered.pop(name, None)


CELL_RULES = (
    _has_a_proper_id,
    _has_known_tags,
    _leaves_blanks_only_in_answer_cells,
    _is_plain_python,
    _is_short,
    _answers_end_with_their_check,
)
LESSON_RULES = (
    _ids_are_unique,
    _has_parameters_then_setup,
    _follows_the_anatomy,
    _answers_rely_on_setup_only,
    _nothing_relies_on_an_answer,
)


class _Names:
    """The names that code binds at its top level, and those it reads without binding them."""

    def __init__(self, code: str) -> None:
        top = symtable.symtable(code, "cell", "exec")
        self.bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
        read = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
        for table in _nested(top):
            read |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
        self.free = {name for name in read - self.bound if not name.startswith("__")}


def _nested(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _nested(child)


def _needs(cell: Cell) -> tuple[str, ...]:
    """Return the exercises whose answers this cell's exercise may call."""
    try:
        return find_exercise(cell.exercise or "").needs
    except UsageError:
        return ()  # reported where the lesson's exercises are compared with its source


def _codes(cell: Cell) -> dict[str, str]:
    """Return the cell's code by edition; one entry where both are the same, none for text."""
    if cell.kind == "markdown":
        return {}
    try:
        return {"learner": learner_code(cell), "solutions": reference_code(cell)} if cell.is_answer else {"": cell.text}
    except SourceError:
        return {}  # unbalanced markers: reported by the rule about blanks


def _checked_id(code: str) -> str | None:
    """Return the exercise id of the ``check("…", …)`` that ends ``code``."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return None
    call = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check" and call.args:
        return call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    return None


def _literals(cell: Cell) -> dict[str, object]:
    """Return the names that a cell sets to literals; anything else it does gives a name that matches nothing."""
    values: dict[str, object] = {}
    for statement in ast.parse(cell.text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                values[name] = value
            case _:
                values[ast.unparse(statement)] = None
    return values
