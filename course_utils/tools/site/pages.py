"""The pages of the site before Sphinx sets them: lessons with folded hints and solutions, the documents, the front."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from course_utils.exercises.registry import find_exercise
from course_utils.lessons import LESSONS, Lesson
from course_utils.paths import NOTEBOOKS, ROOT, SOURCES
from course_utils.sources import solution_code
from course_utils.tools.lab import original

Notebook = dict[str, Any]

_FOLDED = {  # tags of cells that a reader seldom needs, and what stands on their fold
    "parameters": "The lesson's parameters",
    "setup": "Imports and given data",
}
_CLAIM = re.compile(r"^\| (?P<id>[A-Z]\d{3}) \| (?P<said>.*) \| (?P<verdict>[a-z-]+) \| (?P<right>.*) \|$")
_FINDING = re.compile(r"^(?P<title>.*) \((?P<severity>error|warning|note); lesson (?P<lesson>\d\d_\w+)\)$")
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[(?P<words>[^\]]*)\]\((?P<stem>\d\d_\w+)\.ipynb\)")
_ALT_LENGTH = 300  # characters; screen readers read all of it in one breath


def write_pages(folder: Path, lessons: Sequence[Lesson] = LESSONS) -> None:
    """Write what Sphinx reads into ``folder``: one notebook a lesson, and Markdown for the rest.

    Hints come from the exercises. Solutions come from the sources, and are left out where there are none.

    Raises:
        EnvironmentProblem: if a built notebook is missing.
    """
    stems = {lesson.stem for lesson in lessons}
    for lesson in lessons:
        page = lesson_page(json.loads(original(lesson.stem)), stems)
        (folder / f"{lesson.stem}.ipynb").write_text(json.dumps(page), encoding="utf-8")
    (folder / "claims.md").write_text(claims_page(_document("claims.md")), encoding="utf-8")
    (folder / "doctor.md").write_text(doctor_page(_document("doctor.md"), stems), encoding="utf-8")
    (folder / "index.md").write_text(front_page(lessons), encoding="utf-8")
    (folder / "lesson.png").write_bytes((ROOT / "docs" / "images" / "lesson.png").read_bytes())


def lesson_page(notebook: Notebook, stems: set[str]) -> Notebook:
    """Return a lesson as a page: set-up folded, pictures described, hints and solution folded below each exercise.

    Args:
        notebook: the learner edition, nbformat 4.5.
        stems: lessons that the site has; links to others become plain text.
    """
    cells = [made for cell in notebook["cells"] for made in _cells(cell, stems)]
    return {**notebook, "cells": cells}


def claims_page(text: str) -> str:
    """Return the page of claims: each with an anchor of its own, its verdict as a badge."""

    def row(line: str) -> str:
        found = _CLAIM.match(line)
        if found is None:
            return line
        id, verdict = found["id"], found["verdict"]
        badge = f'<span class="badge-word verdict-{verdict}">{verdict}</span>'
        return f'| <a id="{id}" href="#{id}">{id}</a> | {found["said"]} | {badge} | {found["right"]} |'

    return "\n".join(map(row, text.splitlines())) + "\n"


def doctor_page(text: str, stems: set[str]) -> str:
    """Return the doctor's catalogue: the severity as a badge, the lesson as a link."""

    def row(line: str) -> str:
        found = _FINDING.match(line)
        if found is None:
            return line
        severity, lesson = found["severity"], found["lesson"]
        link = f"[lesson {lesson[:2]}]({lesson}.ipynb)" if lesson in stems else f"lesson {lesson[:2]}"
        return f'<span class="badge-word severity-{severity}">{severity}</span> {found["title"]} ({link})'

    return "\n".join(map(row, text.splitlines())) + "\n"


def front_page(lessons: Sequence[Lesson]) -> str:
    """Return the front page: what this is, the lessons with their questions, and the contents for the sidebar."""
    rows = [f"| [{lesson.number} {lesson.title}]({lesson.stem}.ipynb) | {lesson.question} |" for lesson in lessons]
    return "\n".join(
        [
            "# The PyTorch Workbook",
            "",
            "A course on PyTorch in notebooks. You predict, you run, you measure, and you repair programs that are",
            "broken in the ways real ones are. This is the edition to read: every lesson as it ran on a CPU, with its",
            "pictures and results. Hints and solutions are folded. To work through a lesson, with checks of your own",
            "answers and pictures that move, open it in JupyterLab: `python3 course.py lab`.",
            "",
            '<img src="_static/lesson.png" class="front-picture" width="1280" height="1040" '
            "alt=\"Lesson 01 in JupyterLab: menus choose a tensor's shape and the order of its axes; "
            'below them, its storage drawn element by element">',
            "",
            "## The lessons",
            "",
            "| lesson | it starts from the question |",
            "| --- | --- |",
            *rows,
            "",
            "## To look things up",
            "",
            "- [What people say about PyTorch](claims.md): sentences that everybody repeats, each measured, with the"
            " verdict.",
            "- [The training doctor](doctor.md): every fault that it finds in a training set-up, what it looks at, and"
            " the repair.",
            "",
            "Text and pictures: CC BY 4.0. Code: MIT.",
            "",
            *_contents("Lessons", [lesson.stem for lesson in lessons]),
            *_contents("To look things up", ["claims", "doctor"]),
        ]
    )


def _contents(caption: str, names: Sequence[str]) -> list[str]:
    return ["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""]


def _document(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def _cells(cell: dict[str, Any], stems: set[str]) -> Iterator[dict[str, Any]]:
    if cell["cell_type"] == "markdown":
        yield {**cell, "source": _known_links("".join(cell["source"]), stems)}
        return
    metadata = {**cell["metadata"]}
    tags = list(metadata.get("tags", []))
    settings: dict[str, Any] = {}
    for tag, prompt in _FOLDED.items():
        if tag in tags:
            tags.append("hide-input")
            settings |= {"code_prompt_show": prompt, "code_prompt_hide": prompt}
    described = _described(cell)
    if described:
        settings["image"] = {"alt": described}
    metadata |= {"tags": tags, "mystnb": settings}
    yield {**cell, "metadata": metadata, "outputs": [_shown(output, stems) for output in cell["outputs"]]}
    if exercise := metadata.get("exercise"):
        yield _folds(cell["id"], exercise)


def _folds(id: str, exercise: str) -> dict[str, Any]:
    """Return a cell with the hints and, where the sources are, the reference answer, each folded."""
    hints = find_exercise(exercise).hints
    parts = [
        f"<details><summary>Hint {number} of {len(hints)}</summary><p>{_html(hint)}</p></details>"
        for number, hint in enumerate(hints, start=1)
    ]
    if SOURCES.is_dir():
        code = _highlighted(solution_code(exercise, NOTEBOOKS / "source"))
        parts.append(f"<details><summary>Solution</summary>{code}</details>")
    html = f'<div class="folds">{"".join(parts)}</div>'
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}
    hidden = {"tags": ["remove-input"]}
    return {"cell_type": "code", "id": f"{id}-folds"[:64], "metadata": hidden, "source": "...", "execution_count": None,
            "outputs": [output]}  # fmt: skip


def _highlighted(code: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(code, PythonLexer(), HtmlFormatter(cssclass="highlight"))


def _html(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text)).replace("\n", "<br>")


def _described(cell: dict[str, Any]) -> str:
    """Return what the pictures of a cell show, for readers who don't see them."""
    texts = [
        "".join(output["data"].get("text/plain", ""))
        for output in cell["outputs"]
        if "data" in output and any(kind.startswith("image/") for kind in output["data"])
    ]
    text = " ".join(" ".join(texts).split())
    return text if len(text) <= _ALT_LENGTH else text[: text.rfind(" ", 0, _ALT_LENGTH)] + " …"


def _shown(output: dict[str, Any], stems: set[str]) -> dict[str, Any]:
    text = output.get("data", {}).get("text/markdown")
    if text is None:
        return output
    known = _LINK.sub(r"[\g<words>](\g<stem>.html)", _known_links("".join(text), stems))  # Sphinx leaves those alone
    return {**output, "data": {**output["data"], "text/markdown": known}}


def _known_links(text: str, stems: set[str]) -> str:
    """Return Markdown without links to lessons that the site lacks."""

    def link(found: re.Match[str]) -> str:
        return found[0] if found["stem"] in stems else found["words"]

    return _LINK.sub(link, text)
