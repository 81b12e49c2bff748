"""The environment report names what is wrong and what to do, and never fails itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from course_utils.tools import envreport
from course_utils.tools.requirements import pins

KEYS = {"python", "torch", "torchvision", "cuda", "device", "threads", "deterministic", "data", "problems"}


@pytest.fixture(autouse=True)
def quick_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits are read in their own tests."""
    monkeypatch.setattr(envreport, "data_facts", lambda: [{"name": "digits28", "examples": 5000, "problem": ""}])


def test_the_report_has_the_keys_that_other_programs_read():
    report = envreport.collect()
    assert report.keys() >= KEYS
    assert report["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report["torch"].startswith(pins()["torch"])
    assert isinstance(report["threads"], int)
    assert isinstance(report["deterministic"], bool)


def test_a_machine_that_is_right_has_no_problems(monkeypatch):
    monkeypatch.setattr(envreport, "unmet", lambda pinned: {})
    monkeypatch.setattr(envreport, "thread_problems", lambda threads, cores: [])
    assert envreport.collect()["problems"] == []


def test_packages_that_differ_from_the_pins_are_named_with_the_repair(monkeypatch):
    monkeypatch.setattr(envreport, "unmet", lambda pinned: {"numpy": "1.0", "torchinfo": None})
    problems = envreport.collect()["problems"]
    assert (
        f"numpy is 1.0, and the course is written for {pins()['numpy']}; run `python3 course.py setup`" in problems[0]
    )
    assert f"torchinfo {pins()['torchinfo']} is not installed; run `python3 course.py setup`" in problems[1]


def test_a_pytorch_that_can_not_be_imported_is_reported_not_raised(monkeypatch):
    def fail() -> dict[str, object]:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(envreport, "torch_facts", fail)
    report = envreport.collect()
    assert report["torch"] is None
    assert any("PyTorch can't be imported (OSError: libcudart" in problem for problem in report["problems"])
    assert "missing" in envreport.as_text(report)


def test_data_that_can_not_be_read_is_reported_not_raised(monkeypatch):
    def fail() -> list[dict[str, object]]:
        raise ValueError("odd")

    monkeypatch.setattr(envreport, "data_facts", fail)
    assert any("The data can't be read (ValueError: odd)" in problem for problem in envreport.collect()["problems"])


def test_a_data_sets_own_problem_is_passed_on(monkeypatch):
    entry = {"name": "digits8", "examples": 1797, "problem": "The file is damaged. Install it again."}
    monkeypatch.setattr(envreport, "data_facts", lambda: [entry])
    report = envreport.collect()
    assert "The file is damaged. Install it again." in report["problems"]
    assert "data: digits8  not usable, see below" in envreport.as_text(report)


@pytest.mark.parametrize(("threads", "cores", "count"), [(2, 2, 0), (1, 2, 0), (8, 2, 1)])
def test_more_threads_than_cores_are_a_problem(threads, cores, count):
    problems = envreport.thread_problems(threads, cores)
    assert len(problems) == count
    assert all("8 threads on 2 cores" in problem and "OMP_NUM_THREADS=2" in problem for problem in problems)


def test_a_folder_that_takes_no_files_is_named_with_the_variable_that_moves_it(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_WORKSPACE", str(tmp_path / "file" / "workspace"))
    (problem,) = envreport.folder_problems()
    assert str(tmp_path / "file/workspace") in problem
    assert "COURSE_WORKSPACE" in problem


def test_a_folder_that_is_not_there_yet_can_be_made(tmp_path: Path):
    assert envreport.can_write(tmp_path / "a" / "b")


def test_the_text_ends_with_the_problems_or_with_none():
    report = envreport.collect() | {"problems": []}
    assert envreport.as_text(report).endswith("\n\nNo problems found.")
    report["problems"] = ["First; do this.", "Second; do that."]
    assert envreport.as_text(report).endswith("Problems:\n  - First; do this.\n  - Second; do that.")
