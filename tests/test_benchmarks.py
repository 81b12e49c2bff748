"""The benchmarks' results have the shape that other tools read. No time is asserted here."""

from __future__ import annotations

import json

import pytest

from benchmarks import __main__ as bench
from benchmarks import measure, results
from benchmarks.results import Result, as_json, as_text
from course_utils.lessons import LESSONS
from course_utils.paths import ROOT


def result(**changes: object) -> Result:
    return Result(**{"name": "thing", "unit": "s", "runs": [3.0, 1.0, 2.0], "goal": 2.5, **changes})


def test_a_result_is_the_median_of_its_runs():
    assert result().ours == 2.0


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"goal": 1.5}, False),
        ({"goal": 2.0}, True),
        ({"goal": 1.5, "higher_is_better": True}, True),
        ({"goal": 2.5, "higher_is_better": True}, False),
        ({"goal": None}, None),
        ({"runs": []}, False),
        ({"runs": [], "goal": None}, None),
    ],
)
def test_a_goal_is_met_or_not_and_nothing_measured_is_not_met(changes, met):
    assert result(**changes).met is met


def test_results_file_has_the_promised_shape():
    content = json.loads(as_json([result(others={"peer": 4.0})], results.machine()))
    assert set(content) == {"machine", "versions", "results"}
    assert content["versions"].keys() >= {"python", "torch"}
    assert (
        content["results"][0].items()
        >= {
            "name": "thing",
            "unit": "s",
            "ours": 2.0,
            "others": {"peer": 4.0},
            "goal": 2.5,
            "met": True,
        }.items()
    )


def test_stored_results_have_the_same_shape():
    content = json.loads(results.FILE.read_text(encoding="utf-8"))
    assert all(entry.keys() == result().to_dict().keys() for entry in content["results"])
    names = [entry["name"] for entry in content["results"]]
    assert len(names) == len(set(names))
    assert all(f"{lesson.stem}: time" in names for lesson in LESSONS)


def test_table_shows_goal_verdict_and_what_was_not_measured():
    text = as_text([result(), result(name="gone", runs=[], note="it failed"), result(name="slow", goal=1.0)])
    assert "2 s" in text
    assert "1 to 3" in text
    assert "≤ 2.5" in text
    assert "not measured" in text
    assert "it failed" in text
    assert text.count("MISSED") == 2


def test_page_for_people_has_a_row_for_each_result_and_the_machine():
    page = results.as_markdown([result(), result(name="slow", goal=1.0)], {"cores": 2})
    assert "| thing | 2 s | 1 to 3 | ≤ 2.5 | met |  |" in page
    assert "| slow | 2 s | 1 to 3 | ≤ 1 | MISSED |  |" in page
    assert "cores: 2" in page


def test_stored_page_tells_the_stored_results():
    page = results.FILE.with_suffix(".md").read_text(encoding="utf-8")
    content = json.loads(results.FILE.read_text(encoding="utf-8"))
    assert all(f"| {entry['name']} |" in page for entry in content["results"])


def test_time_and_accuracy_are_read_from_the_training_cell(tmp_path):
    text = "650 steps in 26 s\ntest accuracy 98.4 %, loss 0.050 nats\n"
    cells = [
        {"id": "other", "outputs": []},
        {"id": "train", "outputs": [{"output_type": "stream", "text": [text]}]},
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    assert measure.trained_in(path) == (26.0, 98.4)
    cells[1]["outputs"] = []
    path.write_text(json.dumps({"cells": cells}))
    assert measure.trained_in(path) is None


def test_lesson_05_still_has_the_cell_that_is_read():
    source = (ROOT / "notebooks" / "source" / "05_training.py").read_text(encoding="utf-8")
    assert '# %% id="train"' in source
    assert "steps in {seconds:.0f} s" in source
    assert "test accuracy {" in source


def test_a_lesson_that_fails_is_a_missed_goal_and_no_crash(monkeypatch):
    monkeypatch.setattr(measure, "run_lesson", lambda lesson: {"status": "failed", "error": "cell 3"})
    made = list(measure.lessons(1))
    assert {entry.met for entry in made} == {False}
    assert {entry.note for entry in made} == {"failed: cell 3"}


def passed_run(lesson: object) -> dict[str, object]:
    return {"status": "passed", "error": None, "seconds": 30.0, "peak_mib": 900.0, "trained": (20.0, 98.5)}


def test_every_lesson_is_measured(monkeypatch):
    monkeypatch.setattr(measure, "run_lesson", passed_run)
    made = {entry.name: entry for entry in measure.lessons(2)}
    assert all(made[f"{lesson.stem}: time"].ours == 30.0 for lesson in LESSONS)
    assert all(made[f"{lesson.stem}: peak memory"].met for lesson in LESSONS)
    assert made["05_training: test accuracy"].met


@pytest.fixture
def one_group(monkeypatch):
    monkeypatch.setattr(bench, "GROUPS", {"imports": (lambda repeats: iter([result(runs=[1.0] * repeats)]), 4)})


def test_command_prints_and_writes_where_it_is_told(one_group, tmp_path, capsys):
    assert bench.main(["--out", str(tmp_path / "r.json")]) == 0
    assert "thing" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "r.json").read_text())["results"][0]["runs"]) == 4


def test_quick_measures_once_and_writes_nothing(one_group, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "FILE", tmp_path / "results.json")
    assert bench.main(["--quick"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_missed_goal_is_exit_status_1(monkeypatch, capsys):
    monkeypatch.setattr(bench, "GROUPS", {"imports": (lambda repeats: iter([result(goal=0.5)]), 1)})
    assert bench.main(["--quick"]) == 1


def test_an_unknown_group_is_exit_status_2_and_a_sentence(capsys):
    assert bench.main(["everything"]) == 2
    assert "everything" in capsys.readouterr().err


def test_processes_that_are_measured_see_this_course_and_no_learners_files():
    own = measure.surroundings(COURSE_DATA="here")
    assert own["PYTHONPATH"] == str(ROOT)
    assert (own["COURSE_PROGRESS"], own["OMP_NUM_THREADS"], own["COURSE_DATA"]) == ("off", "2", "here")


def test_cores_are_given_back():
    import os

    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system can't give a process fewer cores")
    before = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="inside"), measure.on_cores(1):  # noqa: PT012
        assert len(os.sched_getaffinity(0)) == 1
        raise ValueError("inside")
    assert os.sched_getaffinity(0) == before
