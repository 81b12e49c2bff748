"""Building: executed, the same every time, in step with the source, and never half done."""

from __future__ import annotations

import json

import pytest

from course_utils.errors import UsageError
from course_utils.paths import ROOT
from course_utils.sources import read_cells
from course_utils.tools import build as build_module
from course_utils.tools.build import build, inputs_hash
from course_utils.tools.outputs import WIDGET_VIEW
from tests.lesson_files import SAMPLE, STEM, cell_of, changing, copy_lesson, read, small_lesson


def notebooks(folder):
    return [folder / f"{STEM}.ipynb", folder / "solutions" / f"{STEM}.ipynb"]


def outputs_text(notebook, id):
    found = []
    for output in cell_of(notebook, id)["outputs"]:
        found.append("".join(output.get("text", "")) + "".join(output.get("data", {}).get("text/plain", "")))
    return "\n".join(found)


def test_both_editions_are_executed_and_say_so(lesson_folder):
    learner, solutions = map(read, notebooks(lesson_folder))
    for notebook in (learner, solutions):
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert "not attempted" in outputs_text(learner, "exercise-double")
    assert "passed" in outputs_text(solutions, "exercise-double")
    assert "not attempted" in outputs_text(learner, "clinic-square")
    assert "passed" in outputs_text(solutions, "clinic-square")


def test_a_stored_notebook_names_no_machine_and_needs_no_kernel(lesson_folder):
    for path in notebooks(lesson_folder):
        text = json.dumps([cell.get("outputs") for cell in read(path)["cells"]])
        for varying in (str(ROOT), "/tmp/", "ipykernel_", WIDGET_VIEW, "0x7f", "model_id"):
            assert varying not in text
        metadata = read(path)["metadata"]
        assert metadata["kernelspec"]["name"] == "python3"
        assert "version" not in metadata["language_info"]
        assert "widgets" not in metadata
        assert path.stat().st_size < 100_000


def test_every_kind_of_output_is_stored(lesson_folder):
    learner = read(notebooks(lesson_folder)[0])
    figure = cell_of(learner, "figure")["outputs"][0]
    assert set(figure["data"]) == {"image/png", "text/plain"}
    assert "alt" in figure["metadata"]["image/png"]
    assert set(cell_of(learner, "diagram")["outputs"][0]["data"]) == {"image/svg+xml", "text/plain"}
    assert [output["name"] for output in cell_of(learner, "both-streams")["outputs"]] == ["stdout", "stderr"]
    assert "<cell>:1: UserWarning: this is on purpose" in outputs_text(learner, "warning")
    assert outputs_text(learner, "progress-bar") == "steps: [progress bar, 3 steps]"
    assert outputs_text(learner, "expected-error") == "ZeroDivisionError: division by zero\n"


def test_a_second_build_executes_nothing(lesson_folder, monkeypatch):
    monkeypatch.setattr(build_module, "_run", lambda *_: pytest.fail("a notebook was executed"))
    result = build(folder=lesson_folder)
    assert [built.action for built in result.notebooks] == ["unchanged", "unchanged"]
    assert result.ok


def test_a_forced_build_writes_the_same_bytes_where_nothing_varies(lesson_folder):
    learner = notebooks(lesson_folder)[0]
    before = read(learner)
    build(folder=lesson_folder, force=True, jobs=2)
    after = read(learner)
    for notebook in (before, after):
        cell_of(notebook, "clock")["outputs"] = []  # the tagged cell
    assert before == after


def test_a_changed_module_makes_the_notebooks_anew(lesson_folder, monkeypatch):
    source = lesson_folder / "source" / SAMPLE.name
    assert inputs_hash(source) == inputs_hash(SAMPLE)
    changed = source.read_text(encoding="utf-8").replace("range(4)", "range(5)")
    source.write_text(changed, encoding="utf-8")
    assert inputs_hash(source) != inputs_hash(SAMPLE)
    executed = []
    monkeypatch.setattr(build_module, "_executed", lambda *arguments: executed.append(arguments[2]) or "{}")
    build(folder=lesson_folder)
    assert executed == ["learner", "solutions"]


def test_notebooks_just_built_are_in_step(lesson_folder):
    result = build(folder=lesson_folder, check=True)
    assert result.ok, result.summary()
    assert "2 notebooks in step with the sources." in result.summary()


def test_check_changes_nothing(lesson_folder):
    before = {path: path.read_bytes() for path in lesson_folder.rglob("*") if path.is_file()}
    notebooks(lesson_folder)[0].unlink()
    del before[notebooks(lesson_folder)[0]]
    assert not build(folder=lesson_folder, check=True).ok
    assert {path: path.read_bytes() for path in lesson_folder.rglob("*") if path.is_file()} == before


def drop_cell(notebook):
    notebook["cells"].remove(cell_of(notebook, "shape"))


def add_cell(notebook):
    notebook["cells"].append({**cell_of(notebook, "title"), "id": "mine"})


def swap_cells(notebook):
    notebook["cells"].insert(3, notebook["cells"].pop(4))


ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
DRIFTS = {
    "code": (lambda n: cell_of(n, "shape")["source"].append("\nx = 1"), "cell 'shape' differs in its source"),
    "text": (lambda n: cell_of(n, "title")["source"].append("More."), "cell 'title' differs in its source"),
    "tag": (lambda n: cell_of(n, "shape")["metadata"].update(tags=["clinic"]), "cell 'shape' differs in its metadata"),
    "missing cell": (drop_cell, "cell 'shape' is missing"),
    "new cell": (add_cell, "cell 'mine' is not in the source"),
    "order": (swap_cells, "the cells stand in another order"),
    "kernel": (lambda n: n["metadata"]["kernelspec"].update(name="other"), "the notebook's own metadata differs"),
    "given line of an exercise": (
        lambda n: cell_of(n, "exercise-double")["source"].insert(1, "    number = 3\n"),
        "cell 'exercise-double' differs from the source outside of its marked blanks",
    ),
    "not executed": (lambda n: cell_of(n, "sum").update(execution_count=None), "cell 'sum' was never executed"),
    "executed twice": (lambda n: cell_of(n, "sum").update(execution_count=40), "not executed once each from top"),
    "error": (
        lambda n: cell_of(n, "sum").update(outputs=[ERROR]),
        "cell 'sum' stores the error E",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "told"), DRIFTS.values(), ids=DRIFTS.keys())
def test_drift_is_told_with_notebook_and_cell(lesson_folder, change, told):
    learner, _ = notebooks(lesson_folder)
    with changing(learner) as notebook:
        change(notebook)
    result = build(folder=lesson_folder, check=True)
    first, second = result.notebooks
    assert told in "\n".join(first.problems)
    assert (first.action, second.action) == ("drifted", "in step")
    assert f"notebooks/{STEM}.ipynb" in result.summary()


def test_stored_numbers_are_no_drift(lesson_folder):
    """Outputs are the regression's business: they need a run to be judged."""
    with changing(notebooks(lesson_folder)[0]) as notebook:
        cell_of(notebook, "sum")["outputs"] = []
    assert build(folder=lesson_folder, check=True).ok


def test_damaged_and_orphaned_notebooks_are_told(lesson_folder):
    learner, solutions = notebooks(lesson_folder)
    learner.write_text(learner.read_text(encoding="utf-8")[:100], encoding="utf-8")
    solutions.rename(solutions.with_name("91_gone.ipynb"))
    summary = build(folder=lesson_folder, check=True).summary()
    assert summary.count("there is no such notebook, or it can't be read") == 2
    assert "no source makes this notebook" in summary


FAILING = {
    "raises": (
        "x = 1\nraise KeyError('k')",
        "90_sample.py:14: cell 'bad' failed in the learner edition: KeyError: 'k'",
    ),
    "ends the kernel": ("import os\nos._exit(1)", "cell 'bad' ended the kernel in the learner edition"),
    "exits": ("import sys\nsys.exit(0)", "90_sample.py"),
    "prints this machine's path": (f"print({str(ROOT)!r})", "cell 'bad' prints the path"),
    "shows a bare figure": (
        "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])",
        "cell 'bad' draws a figure without a description",
    ),
}


@pytest.mark.parametrize(("code", "told"), FAILING.values(), ids=FAILING.keys())
def test_a_cell_that_fails_is_named_and_the_old_notebook_stays(tmp_path, code, told, monkeypatch):
    monkeypatch.setattr(build_module, "EDITIONS", ("learner",))
    source = copy_lesson(tmp_path, small_lesson(f'# %% id="bad"\n{code}'))
    made = {"learner": build_module.make_editions(source)["learner"]}
    monkeypatch.setattr(build_module, "make_editions", lambda _: made)  # one edition is enough here
    old = tmp_path / SAMPLE.with_suffix(".ipynb").name
    old.write_text("{}", encoding="utf-8")
    result = build(folder=tmp_path)
    (built,) = result.notebooks
    assert built.action == "failed"
    assert told in built.problems[0]
    assert not result.ok
    assert old.read_text(encoding="utf-8") == "{}"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_cell_that_never_ends_is_stopped_with_all_it_started(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(build_module, "CELL_TIMEOUT_S", 2)
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(98765)'])\n"
    source = copy_lesson(tmp_path, small_lesson(f'# %% id="bad"\n{code}while True: pass'))
    made = {"learner": build_module.make_editions(source)["learner"]}
    monkeypatch.setattr(build_module, "make_editions", lambda _: made)
    (built,) = build(folder=tmp_path).notebooks
    assert "cell 'bad' did not end within 2 s" in built.problems[0]
    left = [p for p in psutil.process_iter(["cmdline"]) if "98765" in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_a_notebook_too_large_for_github_names_its_largest_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "MAX_NOTEBOOK_BYTES", 5_000)
    copy_lesson(tmp_path, small_lesson('# %% id="big"\nprint("a" * 6000)'))
    result = build(folder=tmp_path)
    assert "cell 'big' is the largest of a notebook of" in result.summary()


def test_missing_ids_are_written_into_the_source(tmp_path, monkeypatch):
    source = copy_lesson(tmp_path, small_lesson("# %%\nx = 1"))
    monkeypatch.setattr(build_module, "_executed", lambda *_: "{}")
    build(folder=tmp_path)
    assert '# %% id="x-1"\nx = 1' in source.read_text(encoding="utf-8")


def test_a_broken_source_is_one_problem_and_the_others_are_built(lesson_folder):
    broken = lesson_folder / "source" / "91_broken.py"
    broken.write_text("# %% what is this\n", encoding="utf-8")
    result = build(folder=lesson_folder)
    assert [built.action for built in result.notebooks] == ["failed", "unchanged", "unchanged"]
    assert "91_broken.py:1: this cell header can't be read" in result.summary()
    assert "1 of 3 notebooks not in step" in result.summary()
    assert not build(folder=lesson_folder, check=True).ok


def test_only_the_lessons_named_are_built(lesson_folder):
    assert len(build(["90"], check=True, folder=lesson_folder).notebooks) == 2
    with pytest.raises(UsageError):
        build(["tensors"], folder=lesson_folder)


def test_a_cells_source_line_is_the_one_an_editor_shows():
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    for cell in read_cells(SAMPLE):
        assert f'id="{cell.id}"' in lines[cell.line - 1]
