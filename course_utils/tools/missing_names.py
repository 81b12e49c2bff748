"""An IPython extension for the kernels of ``course.py lab``: a cell that ran too early says which one comes first.

After the error for a name that is not known, a card says in which cell of the notebook that name is made. A name that
no cell makes gets no card: that is a slip of the pen, and the error says all there is.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from course_utils.cards import Card
from course_utils.text import shorten

NOTEBOOK = "JPY_SESSION_NAME"  # Jupyter's server puts the notebook's path there for its kernels
TITLE_WIDTH, LINE_WIDTH = 60, 70
_OWN_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # what they bind stays inside


def load_ipython_extension(shell: Any) -> None:
    """Let the kernel explain names that are not known."""
    shell.set_custom_exc((NameError,), explain)


def explain(
    shell: Any, kind: type[BaseException], error: NameError, trace: TracebackType, tb_offset: int | None = None
) -> None:
    """Show the error as usual, then the card, if there is something to say."""
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    card = card_for(error.name, Path(os.environ.get(NOTEBOOK, "")))
    if card is not None:
        card.show()


def card_for(name: str | None, notebook: Path) -> Card | None:
    """Return what helps when ``name`` is not known, or None where no cell of the notebook makes it.

    Args:
        name: the name that was looked for; some errors don't have it.
        notebook: the file as it was last saved.
    """
    made_in = cell_that_makes(name, notebook) if name else None
    if made_in is None:
        return None
    heading, line = made_in
    where = f"the cell that begins with `{shorten(line, LINE_WIDTH)}`"
    rows = (
        ("made in", where + (f', under "{shorten(heading, TITLE_WIDTH)}"' if heading else "")),
        ("do", "Run that cell, then this one. For all cells above: menu Run, Run All Above Selected Cell."),
        ("why", "A kernel that has just started knows nothing. If that cell did run, it failed before it got there."),
    )
    return Card("info", f"`{name}` is made in another cell, which has not run", rows)


def cell_that_makes(name: str, notebook: Path) -> tuple[str, str] | None:
    """Return the heading above the first cell that makes a name, and that cell's first line of code; None if none."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        heading = ""
        for cell in cells:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                titles = [line.lstrip("# ") for line in source.splitlines() if line.startswith("#")]
                heading = titles[-1] if titles else heading
            elif cell["cell_type"] == "code" and name in names_made(source):
                code = [line for line in source.splitlines() if line.strip() and not line.startswith("#")]
                return heading, code[0]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no help is better than a second error
    return None


def names_made(source: str) -> set[str]:
    """Return the names that a cell makes in the notebook's namespace; none if it can't be read as Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return set(_bound(tree))


def _bound(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _OWN_NAMES):
            yield child.name
        elif isinstance(child, ast.alias):
            yield (child.asname or child.name).split(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif not isinstance(child, _INNER):
            yield from _bound(child)
