"""Read a lesson's source: its cells, its reference answers, and what the learner sees instead.

A source is a plain Python file in jupytext's percent format. Only the standard library is used here, because
``solution(id)`` reads the source while a learner waits; the notebooks themselves are made by ``tools.source``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_utils import paths
from course_utils.errors import SourceError
from course_utils.text import did_you_mean

ANSWER_TAGS = ("exercise", "clinic")
DEFAULT_STUB = "...  # your code here"

_HEADER = re.compile(r"^#\s*%%+(?P<rest>(?:\s.*)?)$")
_OPTION = re.compile(r'(?P<key>[A-Za-z_][\w-]*)=(?P<value>"(?:[^"\\]|\\.)*"|\[[^\]]*\])')
_MARKER = re.compile(r"^(?P<indent>\s*)### (?P<edge>BEGIN|END) (?P<block>SOLUTION|STUB)\s*$")


@dataclass(frozen=True)
class Cell:
    """One cell as it stands in the source; ``line`` is the 1-based line of its header in ``path``."""

    path: Path
    line: int
    kind: str  # "code" or "markdown"
    text: str  # markdown without the leading "# "; code with its solution markers
    id: str | None
    tags: tuple[str, ...] = ()
    exercise: str | None = None

    @property
    def is_answer(self) -> bool:
        """Whether the learner writes in this cell (an exercise or a clinic item)."""
        return any(tag in self.tags for tag in ANSWER_TAGS)

    def error(self, what: str, fix: str, *, offset: int = 0) -> SourceError:
        """Return the error for line ``offset`` of this cell's text (1-based; 0 is the header)."""
        name = f"cell {self.id!r}" if self.id else "this cell"
        return SourceError(f"{self.path.name}:{self.line + offset}: {name} {what}", fix=fix)


@dataclass(frozen=True)
class Blank:
    """The marked part of an answer cell: what the reference answer says and what the learner finds there."""

    solution: tuple[str, ...]
    stub: tuple[str, ...]


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of the source at ``path``.

    Raises:
        SourceError: if the file is no text, has text before its first cell, or a header that can't be read.
    """
    lines = text_of_source(path).rstrip("\n").split("\n")  # as editors count: other line ends may stand in a string
    starts = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    _refuse_text_before_the_first_cell(path, lines[: starts[0]] if starts else lines)
    ends = [*starts[1:], len(lines)]
    return [_cell(Path(path), start, lines[start:end]) for start, end in zip(starts, ends, strict=False)]


def text_of_source(path: Path) -> str:
    """Return a source file's text.

    Raises:
        SourceError: if it is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{Path(path).name} is not text in UTF-8.", got=str(error), fix="save it as UTF-8, or get the file again."
        ) from error


def segments(cell: Cell) -> list[str | Blank]:
    """Split an answer cell's code into given lines (str) and blanks, in order.

    Raises:
        SourceError: if the markers are not balanced, nested, or out of order.
    """
    parts: list[str | Blank] = []
    blocks = _blocks(cell)
    for index, block in enumerate(blocks):
        if isinstance(block, str):
            parts.append(block)
        elif block.kind == "SOLUTION":
            follower = blocks[index + 1] if index + 1 < len(blocks) else None
            has_stub = isinstance(follower, _Block) and follower.kind == "STUB"
            stub = _uncommented(cell, follower) if has_stub else [block.indent + DEFAULT_STUB]
            parts.append(Blank(tuple(block.lines), tuple(stub)))
        elif index == 0 or not isinstance(blocks[index - 1], _Block) or blocks[index - 1].kind == "STUB":
            raise cell.error("has a STUB block that follows no SOLUTION.", "put it after the END.", offset=block.offset)
    return parts


def learner_code(cell: Cell) -> str:
    """Return the cell's code as the learner gets it: each blank shows its stub."""
    return _joined(cell, "stub")


def reference_code(cell: Cell) -> str:
    """Return the cell's code with the reference answer, without markers and stubs."""
    return _joined(cell, "solution")


def exercise_cells(path: Path) -> list[Cell]:
    """Return the exercise and clinic cells of the source at ``path``, in order."""
    return [cell for cell in read_cells(path) if cell.is_answer]


def setup_code(path: Path) -> str:
    """Return the code of the parameters and setup cells: all that an exercise cell may rely on."""
    given = [cell.text for cell in read_cells(path) if {"parameters", "setup"} & set(cell.tags)]
    return "\n".join(given) + "\n"


def source_paths(folder: Path | None = None) -> list[Path]:
    """Return the lesson sources in order of their number."""
    return sorted((folder or paths.SOURCES).glob("[0-9][0-9]_*.py"))


def source_of(exercise: str, folder: Path | None = None) -> Path:
    """Return the source that holds ``exercise``, found by its first word (``tensors`` -> ``01_tensors.py``).

    Raises:
        SourceError: if no lesson has that name.
    """
    known = {path.stem.partition("_")[2]: path for path in source_paths(folder)}
    lesson = exercise.partition(".")[0]
    if lesson not in known:
        fix = did_you_mean(lesson, known) if known else "the lesson sources are missing; get the whole course again."
        raise SourceError(f"There is no lesson for the exercise {exercise!r}.", fix=fix)
    return known[lesson]


def answer_cell(exercise: str, folder: Path | None = None) -> Cell:
    """Return the cell of one exercise.

    Raises:
        SourceError: if the lesson or the exercise is unknown.
    """
    path = source_of(exercise, folder)
    cells = {cell.exercise: cell for cell in exercise_cells(path) if cell.exercise}
    if exercise not in cells:
        raise SourceError(f"{path.name} has no exercise {exercise!r}.", fix=did_you_mean(exercise, cells))
    return cells[exercise]


def solution_code(exercise: str, folder: Path | None = None) -> str:
    """Return the reference answer of ``exercise``, ready to read or run after the lesson's setup cell.

    The final ``check(...)`` is left out, and so is what follows it.

    Raises:
        SourceError: if the lesson or the exercise is unknown.
    """
    cell = answer_cell(exercise, folder)
    code = reference_code(cell)
    last = ast.parse(code).body[-1]
    if _called_name(last) == "check":
        code = "\n".join(code.split("\n")[: last.lineno - 1])
    return code.rstrip() + "\n"


def _called_name(statement: ast.stmt) -> str | None:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None


def _joined(cell: Cell, edition: str) -> str:
    lines: list[str] = []
    for part in segments(cell):
        lines.extend([part] if isinstance(part, str) else getattr(part, edition))
    return "\n".join(lines)


@dataclass(frozen=True)
class _Block:
    """The lines between a BEGIN and its END; ``offset`` is the line of the BEGIN within the cell, from 1."""

    kind: str  # "SOLUTION" or "STUB"
    indent: str
    offset: int
    lines: list[str] = field(default_factory=list)


def _blocks(cell: Cell) -> list[str | _Block]:
    """Return given lines and marked blocks in order."""
    found: list[str | _Block] = []
    block: _Block | None = None
    for offset, line in enumerate(cell.text.split("\n"), start=1):
        marker = _MARKER.match(line)
        if marker is None:
            (found if block is None else block.lines).append(line)
        elif marker["edge"] == "BEGIN":
            if block is not None:
                raise cell.error(f"opens a block inside a {block.kind} block.", "close the first one.", offset=offset)
            block = _Block(marker["block"], marker["indent"], offset)
        else:
            if block is None or block.kind != marker["block"]:
                raise cell.error(
                    f"ends a {marker['block']} block that is not open.", "match BEGIN and END.", offset=offset
                )
            found.append(block)
            block = None
    if block is not None:
        raise cell.error(
            f"never ends its {block.kind} block.", f"add the line '### END {block.kind}'.", offset=block.offset
        )
    return found


def _uncommented(cell: Cell, block: _Block) -> Iterator[str]:
    """Take the ``# `` off each stub line; what stands after it keeps its own indentation."""
    for offset, line in enumerate(block.lines, start=block.offset + 1):
        if not line.strip() or line.rstrip() == f"{block.indent}#":
            yield ""
        elif line.startswith(f"{block.indent}# "):
            yield block.indent + line[len(block.indent) + 2 :]
        else:
            raise cell.error(
                "has a stub line that is not a comment.", "start it with '# ' at the block's indent.", offset=offset
            )


def _cell(path: Path, start: int, lines: list[str]) -> Cell:
    header, body = lines[0], lines[1:]
    match = _HEADER.match(header)
    assert match is not None
    rest = match["rest"].strip()
    kind = "markdown" if rest.startswith("[markdown]") else "code"
    options = _options(rest)
    unread = _OPTION.sub("", rest.removeprefix("[markdown]")).strip()
    if options is None or unread or not header.startswith("# %%") or options.keys() - {"id", "tags", "exercise"}:
        raise SourceError(
            f"{path.name}:{start + 1}: this cell header can't be read.",
            got=header,
            expected='# %% [markdown] id="why"  or  # %% id="ex" tags=["exercise"] exercise="tensors.softmax"',
            fix="write it in one of these forms.",
        )
    while body and not body[-1].strip():
        body.pop()
    if kind == "markdown":
        body = [_markdown_line(path, start + 1 + offset, line) for offset, line in enumerate(body, start=1)]
    return Cell(
        path=path,
        line=start + 1,
        kind=kind,
        text="\n".join(body),
        id=options.get("id"),
        tags=tuple(options.get("tags", ())),
        exercise=options.get("exercise"),
    )


def _options(rest: str) -> dict[str, Any] | None:
    """Return the options of a header; None if one of them is no text, or the tags are no list of texts."""
    try:
        options = {m["key"]: ast.literal_eval(m["value"]) for m in _OPTION.finditer(rest)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    tags = options.get("tags", [])
    texts = [*tags, *(value for key, value in options.items() if key != "tags")] if isinstance(tags, list) else [None]
    return options if all(isinstance(text, str) for text in texts) else None


def _markdown_line(path: Path, number: int, line: str) -> str:
    if line.rstrip() in ("", "#"):
        return ""
    if not line.startswith("# "):
        raise SourceError(
            f"{path.name}:{number}: a line of a markdown cell is not a comment.",
            got=line,
            fix="start it with '# ', or start a code cell with '# %%' before it.",
        )
    return line[2:]


def _refuse_text_before_the_first_cell(path: Path, lines: Sequence[str]) -> None:
    """Allow nothing but a YAML header of comments before the first cell."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            raise SourceError(
                f"{Path(path).name}:{number}: there is code before the first cell.",
                got=line,
                fix="start the file with '# %% [markdown] id=\"title\"'.",
            )
