"""Submissions made for tests: the learner edition of a lesson with chosen cells filled in or added."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from course_utils.paths import NOTEBOOKS
from course_utils.sources import answer_cell, reference_code

LESSON = "01_tensors"
FIRST, SECOND = "tensors.energy", "tensors.windows"  # a number from images; views of a series
# Not carried: judged in the student's process.
HERE = "tensors.snapshot"


def right(exercise_id: str) -> str:
    """Return the exercise's cell with the reference answer."""
    return reference_code(answer_cell(exercise_id))


def notebook(answers: dict[str, str] | None = None, before: str = "", after: str = "") -> dict[str, Any]:
    """Return a submission of lesson 01: the learner edition with other code in the cells of these exercises.

    Args:
        answers: exercise -> code of its cell.
        before: code of a cell of the student's own at the top; ``after``: at the end.
    """
    made = json.loads((NOTEBOOKS / f"{LESSON}.ipynb").read_text(encoding="utf-8"))
    made = copy.deepcopy(made)
    for cell in made["cells"]:
        code = (answers or {}).get(cell["metadata"].get("exercise", ""))
        if code is not None:
            cell["source"] = code
    own = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    if before:
        made["cells"].insert(0, {**own, "id": "own-before", "source": before})
    if after:
        made["cells"].append({**own, "id": "own-after", "source": after})
    return made


def put(folder: Path, student: str, submission: dict[str, Any] | str) -> Path:
    """Write a submission under a student's name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{student}_{LESSON}.ipynb"
    path.write_text(submission if isinstance(submission, str) else json.dumps(submission), encoding="utf-8")
    return path
