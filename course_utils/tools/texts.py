"""Every text of the course that a translation would need, by a stable id, with a hash of each paragraph.

``build`` writes the catalogue of ids and hashes beside the sources. A translated edition keeps, for each id, the hashes
that it was translated from; a paragraph whose hash has changed since is stale, and its id says where to look. The texts
themselves stand in the sources: ``python -m course_utils.tools.texts`` prints all of them, for a translator's tool.

Only the standard library reads the code here, as a tree; nothing is imported, so that building one lesson stays quick.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from course_utils.lessons import LESSONS
from course_utils.paths import NOTEBOOKS, ROOT, write_text
from course_utils.sources import read_cells
from course_utils.tools.picture_texts import picture_texts, template

CATALOGUE = NOTEBOOKS / "source" / "texts.json"
# Modules whose strings learners read: hints and messages of exercises, sentences and corrections, findings, labels.
READ_BY_LEARNERS = ("exercises/*.py", "claims/*.py", "doctor/rules/*.py", "widgets/*.py", "diagrams.py", "graphs.py")
_HASH = 10  # hexadecimal digits: a clash of two versions of one paragraph is out of the question


def texts(folder: Path = NOTEBOOKS) -> dict[str, str]:
    """Return every text by its id, in the order of the course.

    Ids: ``lesson.01_tensors.title`` and ``.question``; ``cell.01_tensors.hook`` for a Markdown cell;
    ``exercise.tensors.energy.title``, ``.hints.1`` and what else an exercise says; ``claim.T004.sentence`` and
    ``.right``; ``finding.loop.no-zero-grad.title``; ``picture.01_tensors.map.1`` for the first text that a cell draws,
    and ``picture.widgets.data.1`` for one that a module does, unless it is a message of that module already;
    ``message.exercises.tensors_values.check_with_ones.3`` for the third string of that function. In a message, what is
    filled in stands in braces.
    """
    found: dict[str, str] = {}
    for lesson in LESSONS:
        found[f"lesson.{lesson.stem}.title"] = lesson.title
        found[f"lesson.{lesson.stem}.question"] = lesson.question
        path = folder / "source" / f"{lesson.stem}.py"
        for cell in read_cells(path) if path.exists() else []:
            if cell.kind == "markdown":
                found[f"cell.{lesson.stem}.{cell.id}"] = cell.text
            elif cell.kind == "code":
                found |= _numbered(f"picture.{lesson.stem}.{cell.id}", picture_texts(cell.text))
    package = ROOT / "course_utils"
    for pattern in READ_BY_LEARNERS:
        for path in sorted(package.glob(pattern)):
            found |= module_texts(_name_of(path), path.read_text(encoding="utf-8"))
    said = set(found.values())
    for path in sorted({*package.rglob("*.py")} - {*package.glob("tools/**/*.py")}):  # tools draw nothing in a notebook
        drawn = picture_texts(path.read_text(encoding="utf-8"))
        found |= _numbered(f"picture.{_name_of(path)}", [text for text in drawn if text not in said])
    return found


def _name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "course_utils").with_suffix("").parts)


def _numbered(owner: str, several: list[str]) -> dict[str, str]:
    return {f"{owner}.{number}": text for number, text in enumerate(several, start=1)}


def module_texts(module: str, source: str) -> dict[str, str]:
    """Return the strings of a module that people read, by id: those with a space in them that are no docstrings."""
    reader = _Reader(module)
    reader.visit(ast.parse(source))
    return reader.found


def hashes(text: str) -> list[str]:
    """Return a hash for each paragraph of a text; line breaks and spaces within it don't count, save in code."""
    return [hashlib.sha256(part.encode()).hexdigest()[:_HASH] for part in _paragraphs(text)]


def catalogue(folder: Path = NOTEBOOKS) -> dict[str, list[str]]:
    """Return the paragraph hashes of every text by its id."""
    return {id: hashes(text) for id, text in texts(folder).items()}


def catalogue_text(folder: Path = NOTEBOOKS) -> str:
    """Return the catalogue as its file has it: JSON with one id a line, so that a change is a line in a diff."""
    lines = [f"{json.dumps(id)}: {json.dumps(parts)}" for id, parts in catalogue(folder).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_catalogue(folder: Path = NOTEBOOKS) -> bool:
    """Write the catalogue of the sources in ``folder``; return whether it changed."""
    path, text = folder / "source" / CATALOGUE.name, catalogue_text(folder)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def stale(translated: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> dict[str, str]:
    """Return what a translation must look at, by id: a paragraph that changed, a text that is new or gone.

    Args:
        translated: for each id, the hashes of the paragraphs that were translated.
        now: the catalogue of today.
    """
    found = {}
    for id, parts in now.items():
        if id not in translated:
            found[id] = "new"
        elif translated[id] != parts:
            changed = [str(n) for n, part in enumerate(parts, start=1) if part not in translated[id]]
            found[id] = f"paragraph {', '.join(changed)} changed" if changed else "paragraphs moved or went"
    return found | dict.fromkeys((id for id in translated if id not in now), "gone")


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs: parted by empty lines, code between fences in one piece and as it is."""
    for number, part in enumerate(re.split(r"(?ms)^(```.*?^```)$", text)):
        if number % 2:
            yield part
        else:
            yield from filter(None, (" ".join(piece.split()) for piece in re.split(r"\n\s*\n", part)))


class _Reader(ast.NodeVisitor):
    """Collects a module's strings under ids that tell what they belong to."""

    def __init__(self, module: str) -> None:
        self.found: dict[str, str] = {}
        self._module = module
        self._names: list[str] = []
        self._owner: str | None = None  # the exercise, claim or finding that is being described

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a string that stands by itself documents
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Pass over errors of the course itself."""

    def visit_Call(self, node: ast.Call) -> None:
        owner = _owner(node)
        if owner is None:
            self.generic_visit(node)
            return
        for keyword in node.keywords:
            self._part(f"{owner}.{keyword.arg}", keyword.value)
        if owner.startswith("claim."):
            self._part(f"{owner}.sentence", node.args[1])

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._keep(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._keep(template(node))

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        for child in node.body:
            self.visit(child)
        self._names.pop()

    def _part(self, id: str, node: ast.expr) -> None:
        """Keep what a keyword says: one text, or several of them by number."""
        before, self._owner = self._owner, id
        self.visit(node)
        self._owner = before

    def _keep(self, text: str) -> None:
        if " " not in text.strip() or not re.search(r"[A-Za-z]{2}", text) or text.startswith("<"):  # a drawing's markup
            return
        owner = self._owner or ".".join(["message", self._module, *self._names])
        numbered = self._owner is None or owner.endswith((".hints", ".errors", ".rule"))
        number = 1
        while (id := f"{owner}.{number}" if numbered or number > 1 else owner) in self.found:
            number += 1
        self.found[id] = text


def _owner(call: ast.Call) -> str | None:
    """Return the id of what a call describes: an exercise, a claim or a finding; else None."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "Exercise":
        return next((f"exercise.{k.value.value}" for k in call.keywords if k.arg == "id" and _is_text(k.value)), None)
    if name in ("claim", "rule") and call.args and _is_text(call.args[0]):
        kind = "claim" if name == "claim" else "finding"
        if kind == "finding" or len(call.args) > 1:
            return f"{kind}.{call.args[0].value}"  # type: ignore[attr-defined]
    return None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


if __name__ == "__main__":
    json.dump(texts(), sys.stdout, indent=1, ensure_ascii=False)
