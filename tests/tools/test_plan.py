"""What a run refuses before it starts, and how it shares out cores and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.tools import plan
from course_utils.tools.plan import RunOptions, parameter_value
from tests.tools.running import refused, write_notebook


@pytest.mark.parametrize(
    ("wanted", "notebooks", "device", "expected"),
    [
        (None, 3, "cpu", (3, 2)),
        (None, 20, "cpu", (6, 1)),
        (2, 20, "cpu", (2, 3)),
        (4, 20, "cpu", (4, 1)),
        (50, 20, "cpu", (6, 1)),
        (5, 1, "cpu", (1, 6)),
        (None, 20, "cuda:0", (1, 6)),
        (3, 20, "cuda:0", (3, 2)),
    ],
)
def test_jobs_times_threads_is_never_more_than_the_cores(monkeypatch, wanted, notebooks, device, expected):
    monkeypatch.setattr(plan.processes, "core_count", lambda: 6)
    monkeypatch.setattr(plan.processes, "available_memory_bytes", lambda: 64 * 2**30)
    assert plan.share_cores(RunOptions(jobs=wanted), notebooks, device) == expected


def test_little_memory_means_fewer_jobs(monkeypatch):
    monkeypatch.setattr(plan.processes, "core_count", lambda: 6)
    monkeypatch.setattr(plan.processes, "available_memory_bytes", lambda: 5 * 2**30)
    assert plan.share_cores(RunOptions(), 20, "cpu") == (2, 3)


def test_limits_have_defaults_that_full_runs_stretch(monkeypatch):
    monkeypatch.setattr(plan.processes, "available_memory_bytes", lambda: 20 * 2**30)
    usual, full = RunOptions().limits(jobs=2), RunOptions(full=True).limits(jobs=2)
    assert (usual.cell_s, usual.notebook_s, usual.memory_bytes) == (300, 900, 8 * 2**30)
    assert (full.cell_s, full.notebook_s) == (3000, 9000)
    assert RunOptions(timeout_s=30).limits(1) == replace(RunOptions().limits(1), notebook_s=30, cell_s=30)
    assert RunOptions(memory_mib=100).limits(1).memory_bytes == 100 * 2**20


def test_a_parameter_that_no_cell_defines_is_refused(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), parameters={"SEEED": 1}, out=tmp_path / "out"))
    assert "The notebook a.ipynb has no parameter called 'SEEED'." in text
    assert "one of DEVICE, FAST, SEED" in text
    assert "Did you mean 'SEED'?" in text
    assert not (tmp_path / "out").exists()


def test_a_notebook_without_a_parameters_cell_is_refused(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "SEED = 0", parameters=None)
    assert "has no cell tagged 'parameters'" in refused(RunOptions(lessons=(str(path),), out=tmp_path / "out"))


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text("{")
    assert "The file a.ipynb is no notebook" in refused(RunOptions(lessons=(str(path),), out=tmp_path / "out"))


def test_a_lesson_that_does_not_exist_is_refused_with_the_closest_name():
    assert "Did you mean '01_tensors'?" in refused(RunOptions(lessons=("01_tensor",)))


def test_a_lesson_that_was_not_built_says_how_to_build_it(tmp_path):
    (tmp_path / "solutions").mkdir()
    text = refused(RunOptions(lessons=("01",), edition="solutions", notebooks=tmp_path))
    assert "The notebook 01_tensors.ipynb of the solutions edition does not exist." in text
    assert "course build" in text


def test_an_edition_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match="There is no edition called 'solution'"):
        RunOptions(edition="solution")


@pytest.mark.parametrize("name", ["jobs", "timeout_s", "cell_timeout_s", "job_timeout_s", "memory_mib"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_that_is_not_above_0_is_refused(name, value):
    with pytest.raises(UsageError, match=f"The setting {name} must be above 0"):
        RunOptions(**{name: value})


def test_results_never_go_where_files_are(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), device="cpu", out=tmp_path))
    assert "is not empty" in text


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), device="cpu", out=path / "out"))
    assert "The folder for the results can't be made." in text


def test_two_runs_in_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    folders = [plan.new_folder(None) for _ in range(3)]
    assert len(set(folders)) == 3
    assert {folder.parent for folder in folders} == {tmp_path / "runs"}


@pytest.mark.skipif(plan._may_have_accelerator(), reason="this machine may have a GPU")
def test_a_device_that_is_not_there_is_refused_before_anything_starts(tmp_path):
    path = write_notebook(tmp_path / "a.ipynb", "1")
    text = refused(RunOptions(lessons=(str(path),), device="cuda", out=tmp_path / "out"))
    assert "This machine has no device 'cuda'." in text
    assert not (tmp_path / "out").exists()


def test_a_torch_that_cannot_be_asked_for_devices_is_one_sentence(monkeypatch):
    monkeypatch.setattr(plan, "_DEVICE_CHECK", "raise OSError('libcuda is in pieces')")
    with pytest.raises(EnvironmentProblem, match=r"PyTorch can't be asked(.|\n)*libcuda is in pieces"):
        plan.find_device("cuda")


def test_a_notebook_named_twice_runs_once_and_two_of_one_name_both_run(tmp_path):
    first = write_notebook(tmp_path / "one" / "a.ipynb", "1")
    second = write_notebook(tmp_path / "two" / "a.ipynb", "1")
    names = plan.find_notebooks(RunOptions(lessons=(str(first), str(first), str(second))))
    assert names == {"a": first, "a@2": second}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("true", True),
        ("False", False),
        ("none", None),
        ("[1, 2]", [1, 2]),
        ("cuda:1", "cuda:1"),
        ("'3'", "3"),
        ("", ""),
        ("(" * 300, "(" * 300),
    ],
)
def test_the_text_of_a_parameter_becomes_the_value_it_means(text, value):
    assert parameter_value(text) == value


def test_assigned_names_are_those_at_the_top_level():
    source = "A = 1\nB: int = 2\nif A:\n    C = 3\nprint(A)\nx.y = 4"
    assert plan.assigned_names(source) == {"A", "B"}
    assert plan.assigned_names("%magic is no Python") == set()
