"""Everything of the course that writes files while somebody waits, as victims for `victims.py`."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_utils import checkpoints
from course_utils.checkpoints import Keeper
from course_utils.config import TrainConfig
from course_utils.exercises import progress
from course_utils.exercises.verdicts import PASSED, Outcome
from course_utils.paths import atomic_path, write_text
from course_utils.tools import lab, release, update
from tests.faults.victims import Victim
from tests.tools.test_merge import learner, newer

Done = Callable[[int], None]
N_RECORDS = 6
N_CHECKPOINTS = 4
LESSONS = ("00_start", "01_tensors", "02_autograd")
ANSWER = "answer = 42"
PADDING = "x" * 300_000  # so that writing a notebook takes a while, as it does with pictures in it


# --- progress


def _use_progress(folder: Path) -> None:
    os.environ["COURSE_PROGRESS"] = str(folder / "progress.json")


def _record_progress(folder: Path, done: Done) -> None:
    _use_progress(folder)
    for number in range(N_RECORDS):
        note = progress.record(Outcome(f"tensors.number-{number}", PASSED))
        assert not note, note
        done(number)


def _check_progress(folder: Path, last: int) -> None:
    _use_progress(folder)
    wanted = {f"tensors.number-{number}": "done" for number in range(last + 1)}
    known = progress.states()
    assert wanted.items() <= known.items(), f"{wanted} were recorded, {known} are there"
    assert not list(folder.glob("*damaged*")), "half a file stood under the name"


def _all_progress(folder: Path) -> None:
    _check_progress(folder, N_RECORDS - 1)


# --- checkpoints


def _save_checkpoints(folder: Path, done: Done) -> None:
    keeper = Keeper(folder / "run", keep=2)
    state = keeper.latest()
    first = 0 if state is None else state["number"] + 1
    for number in range(first, N_CHECKPOINTS):
        keeper.save(number, number=number, weights=torch.full((200_000,), float(number)))
        done(number)


def _check_checkpoints(folder: Path, last: int) -> None:
    keeper = Keeper(folder / "run", keep=2)
    state = keeper.latest()  # would raise if half a file stood under the name
    assert (state is None) <= (last < 0), f"checkpoint {last} was saved, none is there"
    for file in keeper.files():
        state = checkpoints.load(file)
        assert file.stem == f"step-{state['number']:08d}"
        assert torch.equal(state["weights"], torch.full((200_000,), float(state["number"])))
    assert state is None or state["number"] >= last, f"checkpoint {last} was saved, the newest is {state['number']}"


def _all_checkpoints(folder: Path) -> None:
    _check_checkpoints(folder, N_CHECKPOINTS - 1)
    left = sorted(path.name for path in (folder / "run").iterdir())
    assert left == ["step-00000002.pt", "step-00000003.pt"], f"left: {left}"


# --- a workspace


def _notebook(stem: str, notebook: dict[str, Any]) -> str:
    notebook["metadata"]["course"]["lesson"] = stem
    return json.dumps({**notebook, "metadata": {**notebook["metadata"], "padding": PADDING}})


def _prepare_workspace(folder: Path, stems: tuple[str, ...] = LESSONS) -> None:
    for name in ("mine", "notebooks"):
        (folder / name).mkdir(parents=True)
    for stem in LESSONS:
        (folder / "notebooks" / f"{stem}.ipynb").write_text(_notebook(stem, newer(title="# New")))
    for stem in stems:
        (folder / "mine" / f"{stem}.ipynb").write_text(_notebook(stem, learner(exercise=ANSWER)))


def _use_workspace(folder: Path) -> Path:
    os.environ["COURSE_WORKSPACE"] = str(folder / "mine")
    os.environ.pop("COURSE_PROGRESS", None)
    lab.NOTEBOOKS = folder / "notebooks"
    lab.LESSONS = tuple(lesson for lesson in lab.LESSONS if lesson.stem in LESSONS)
    return folder / "mine"


def _answers(notebook: Path) -> str:
    return "\n".join("".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"])


def _check_whole_notebooks(folder: Path, _last: int) -> None:
    for path in (folder / "mine").glob("*.ipynb"):
        text = path.read_text(encoding="utf-8")
        try:
            json.loads(text)
        except ValueError:
            raise AssertionError(f"{path.name} holds half a notebook, {len(text):,} characters") from None


def _check_workspace(folder: Path, last: int) -> None:
    _check_whole_notebooks(folder, last)
    for stem in LESSONS:  # the learner's answer is in the notebook, or in a backup beside it
        copies = list((folder / "mine").glob(f"{stem}*.ipynb"))
        assert any(ANSWER in _answers(path) for path in copies), f"the answer of {stem} is lost"


def _update_workspace(folder: Path, done: Done) -> None:
    _use_workspace(folder)
    failed = [str(item) for item in update.update() if item.action == "failed"]
    assert not failed, failed


def _all_updated(folder: Path) -> None:
    _check_workspace(folder, 0)
    for stem in LESSONS:
        text = _answers(folder / "mine" / f"{stem}.ipynb")
        assert "# New" in text, f"{stem} is not updated"
        assert ANSWER in text, f"{stem} has lost the answer"


def _carry_workspace(folder: Path, done: Done) -> None:
    _use_workspace(folder)
    os.environ["COURSE_WORKSPACE"] = str(folder / "new")
    done(len(update.update(folder / "mine")) and 0)


def _check_carried(folder: Path, _last: int) -> None:
    for path in (folder / "new").glob("*.ipynb"):
        json.loads(path.read_text(encoding="utf-8"))
    _check_workspace(folder, 0)


def _all_carried(folder: Path) -> None:
    for stem in LESSONS:
        text = _answers(folder / "new" / f"{stem}.ipynb")
        assert "# New" in text, f"{stem} is not updated"
        assert ANSWER in text, f"{stem} has lost the answer"
    assert not list((folder / "new").glob("*.carried.ipynb")), "an answer was carried twice"


def _reset_lesson(folder: Path, done: Done) -> None:
    _use_workspace(folder)
    lab.reset(LESSONS[1])


def _all_reset(folder: Path) -> None:
    _check_workspace(folder, 0)
    assert ANSWER not in _answers(folder / "mine" / f"{LESSONS[1]}.ipynb")


def _first_workspace(folder: Path, done: Done) -> None:
    _use_workspace(folder)
    lab.prepare_workspace()


def _all_there(folder: Path) -> None:
    _check_whole_notebooks(folder, 0)
    for stem in LESSONS:
        assert "# New" in _answers(folder / "mine" / f"{stem}.ipynb")


# --- other files: settings, packed handouts, any text


def _write_others(folder: Path, done: Done) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        TrainConfig(epochs=number + 1).to_file(folder / "config.yaml")
        write_text(folder / "report.html", f"<p>{number}</p>" * 20_000 + "<!-- end -->")
        with atomic_path(folder / "table.npy") as temporary, open(temporary, "wb") as file:
            np.save(file, np.full(50_000, number))
        release._write_zip({f"{n}.txt": bytes([number]) * 9_000 for n in range(20)}, folder / "course.zip", "top")
        done(number)


def _check_others(folder: Path, last: int) -> None:
    if (folder / "config.yaml").exists():
        assert TrainConfig.from_file(folder / "config.yaml").epochs >= last + 1
    if (folder / "report.html").exists():
        assert (folder / "report.html").read_text().endswith("<!-- end -->")
    if (folder / "table.npy").exists():
        assert np.load(folder / "table.npy").shape == (50_000,)
    if (folder / "course.zip").exists():
        with zipfile.ZipFile(folder / "course.zip") as file:
            assert file.testzip() is None
            assert len(file.namelist()) == 20
    assert last < 0 or len(list(folder.glob("[!.]*"))) == 4


def _all_others(folder: Path) -> None:
    _check_others(folder, 2)


def _unfolded(folder: Path, done: Done) -> None:
    target = folder / "course-1"
    if not target.exists():
        release._write_folder({f"part/{n}.txt": bytes([n]) * 9_000 for n in range(20)}, target)


def _check_unfolded(folder: Path, _last: int) -> None:
    if (folder / "course-1").exists():
        _all_unfolded(folder)


def _all_unfolded(folder: Path) -> None:
    contents = release._read_all(folder / "course-1")
    assert contents == {f"part/{n}.txt": bytes([n]) * 9_000 for n in range(20)}, f"{len(contents)} files"


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True)


VICTIMS = {
    "progress": Victim(_empty, _record_progress, _check_progress, _all_progress),
    "checkpoints": Victim(_empty, _save_checkpoints, _check_checkpoints, _all_checkpoints),
    "update": Victim(_prepare_workspace, _update_workspace, _check_workspace, _all_updated),
    "update from another folder": Victim(_prepare_workspace, _carry_workspace, _check_carried, _all_carried),
    "reset": Victim(_prepare_workspace, _reset_lesson, _check_workspace, _all_reset),
    "first workspace": Victim(
        lambda folder: _prepare_workspace(folder, ()), _first_workspace, _check_whole_notebooks, _all_there
    ),
    "other files": Victim(_empty, _write_others, _check_others, _all_others),
    "release": Victim(_empty, _unfolded, _check_unfolded, _all_unfolded),
}
