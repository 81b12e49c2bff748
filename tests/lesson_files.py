"""The small lesson that the tests of the authoring tools build, and ways to change it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course_utils.paths import ROOT

LESSON = ROOT / "tests" / "files" / "lesson"
STEM = "90_sample"
SAMPLE = LESSON / "source" / f"{STEM}.py"


def copy_lesson(folder: Path, text: str | None = None) -> Path:
    """Put the lesson, or ``text`` in its place, into ``folder/source``; return the source's path."""
    source = folder / "source" / SAMPLE.name
    source.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        shutil.copy(SAMPLE, source)
    else:
        source.write_text(text, encoding="utf-8")
    return source


def small_lesson(*cells: str, setup: str = "import math") -> str:
    """Return the text of a lesson that keeps the rules, with these cells (header and code) in its middle."""
    head = [
        '# %% [markdown] id="title"\n# # 90 A title',
        '# %% id="parameters" tags=["parameters"]\nSEED = 0\nDEVICE = "auto"\nFAST = True',
        f'# %% id="setup" tags=["setup"]\n{setup}',
    ]
    tail = '# %% [markdown] id="recap"\n# ## Recap'
    return "\n\n".join([*head, *cells, tail]) + "\n"


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def cell_of(notebook: dict[str, Any], id: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["id"] == id)


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Any]]:
    """Give a notebook to change; write it back at the end of the block."""
    notebook = read(path)
    yield notebook
    path.write_text(json.dumps(notebook), encoding="utf-8")
