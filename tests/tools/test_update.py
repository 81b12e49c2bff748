"""`course.py update`: the learner's files, the backups, and what can't be read."""

from __future__ import annotations

import json

import pytest

from course_utils import cli
from course_utils.errors import EnvironmentProblem
from course_utils.exercises import progress
from course_utils.tools import lab, update
from course_utils.tools.update import Updated
from tests.tools.test_merge import edition, learner, newer


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one lesson in its newer edition, and an empty workspace."""
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "mine"))
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for lesson in lab.LESSONS:
        fresh = newer(title="# New") if lesson.stem == "01_tensors" else edition()
        fresh["metadata"]["course"]["lesson"] = lesson.stem
        (folder / f"{lesson.stem}.ipynb").write_text(json.dumps(fresh))
    monkeypatch.setattr(lab, "NOTEBOOKS", folder)
    (tmp_path / "mine").mkdir()
    return tmp_path


def put(folder, name: str, notebook: dict | str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))


def text(path) -> str:
    return "".join(cell["source"] for cell in json.loads(path.read_text())["cells"])


def actions(done: list[Updated]) -> dict[str, str]:
    return {item.path.name: item.action for item in done if item.path.name.startswith(("01", "my", "broken"))}


def test_a_notebook_is_updated_and_its_earlier_copy_is_kept(course):
    mine = learner(exercise="answer = 42")
    put(course / "mine", "01_tensors.ipynb", mine)
    assert actions(update.update()) == {"01_tensors.ipynb": "updated"}
    assert "# New" in text(course / "mine/01_tensors.ipynb")
    assert "answer = 42" in text(course / "mine/01_tensors.ipynb")
    (backup,) = (course / "mine").glob("01_tensors.backup-*.ipynb")
    assert json.loads(backup.read_text()) == mine


def test_twice_in_a_row_changes_nothing_and_makes_no_second_backup(course):
    put(course / "mine", "01_tensors.ipynb", learner(exercise="answer = 42"))
    update.update()
    before = {path.name: path.read_bytes() for path in (course / "mine").iterdir()}
    assert actions(update.update()) == {"01_tensors.ipynb": "unchanged"}
    assert {path.name: path.read_bytes() for path in (course / "mine").iterdir()} == before


def test_a_renamed_notebook_is_known_by_what_it_says_of_itself(course):
    put(course / "mine", "my copy.ipynb", learner(one="x = 10"))
    assert actions(update.update())["my copy.ipynb"] == "updated"


def test_what_is_no_lesson_or_no_notebook_stays_as_it_is(course):
    put(course / "mine", "my-own.ipynb", {"cells": [], "metadata": {}})
    put(course / "mine", "broken.ipynb", "{")
    done = actions(update.update())
    assert (done["my-own.ipynb"], done["broken.ipynb"]) == ("skipped", "failed")
    assert (course / "mine/broken.ipynb").read_text() == "{"


@pytest.mark.parametrize("cells", ["[1]", "[null]", '[{"id": 3, "metadata": null}]'])
def test_damaged_cells_are_a_sentence_and_the_file_stays(course, cells):
    put(course / "mine", "01_tensors.ipynb", f'{{"cells": {cells}, "metadata": {{}}}}')
    before = (course / "mine/01_tensors.ipynb").read_bytes()
    assert actions(update.update()) == {"01_tensors.ipynb": "failed"}
    assert (course / "mine/01_tensors.ipynb").read_bytes() == before


def test_an_earlier_workspace_is_carried_over_with_its_progress(course):
    put(course / "old", "01_tensors.ipynb", learner(exercise="answer = 42"))
    put(course / "old", "progress.json", json.dumps({"version": 1, "exercises": {"tensors.a": "done"}}))
    update.update(course / "old")
    assert "answer = 42" in text(course / "mine/01_tensors.ipynb")
    assert "# New" in text(course / "mine/01_tensors.ipynb")
    assert progress.states() == {"tensors.a": "done"}
    assert sorted(path.name for path in (course / "old").iterdir()) == ["01_tensors.ipynb", "progress.json"]


def test_two_workspaces_with_the_same_lesson_are_both_kept(course):
    put(course / "old", "01_tensors.ipynb", learner(exercise="answer = 42"))
    put(course / "mine", "01_tensors.ipynb", learner(exercise="answer = 43"))
    update.update(course / "old")
    assert "answer = 43" in text(course / "mine/01_tensors.ipynb")
    assert "answer = 42" in text(course / "mine/01_tensors.carried.ipynb")


def test_the_same_workspace_a_second_time_brings_nothing_twice(course):
    put(course / "old", "01_tensors.ipynb", learner(exercise="answer = 42"))
    put(course / "mine", "02_autograd.ipynb", learner(exercise="answer = 1"))
    put(course / "old", "02_autograd.ipynb", learner(exercise="answer = 2"))
    update.update(course / "old")
    before = {path.name: path.read_bytes() for path in (course / "mine").iterdir()}
    done = update.update(course / "old")
    assert {item.action for item in done} <= {"unchanged"}, [str(item) for item in done]
    assert {path.name: path.read_bytes() for path in (course / "mine").iterdir()} == before


def test_what_cannot_be_read_or_written_is_said_and_the_rest_is_carried(course, monkeypatch):
    put(course / "old", "01_tensors.ipynb", learner(exercise="answer = 42"))
    (course / "old" / "02_autograd.ipynb").mkdir()
    (course / "old" / "progress.json").mkdir()
    said = update.summary(update.update(course / "old"))
    assert "02_autograd.ipynb: it can't be read (Is a directory)" in said
    assert "progress.json: it can't be joined with yours (Is a directory)" in said
    assert "answer = 42" in text(course / "mine/01_tensors.ipynb")

    def full(path: object, content: str) -> None:
        raise OSError(28, "No space left on device")

    put(course / "mine", "01_tensors.ipynb", learner(exercise="answer = 43"))
    monkeypatch.setattr(update, "write_text", full)
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        update.update()
    assert "answer = 43" in text(course / "mine/01_tensors.ipynb")


def test_the_command_says_what_it_did_and_refuses_a_missing_folder(course, capsys):
    put(course / "mine", "01_tensors.ipynb", learner(one="x = 10"))
    assert cli.run(["update"]) == 0
    assert (
        "updated   01_tensors.ipynb: 1 renewed; 1 of your own cells kept; before: 01_tensors.backup-"
        in capsys.readouterr().out
    )
    assert cli.run(["update", "--from", str(course / "nowhere")]) == 2
    assert "There is no folder" in capsys.readouterr().err
