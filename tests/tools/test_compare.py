"""What changed between two runs: every kind of change is told, what varies is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from course_utils import cli
from course_utils.errors import UsageError
from course_utils.tools.compare import compare_runs
from course_utils.tools.matrix import MatrixReport
from course_utils.tools.outcomes import Outcome
from course_utils.tools.report import RunReport, write_report

CARD = "✗ T004: “view requires a contiguous tensor.”\n    verdict:    {}\n    your guess: none yet"


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text.splitlines(keepends=True)}


def shown(**data: str) -> dict[str, Any]:
    named = {name.replace("_", "/"): text for name, text in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": named}


def cell(cell_id: str, *outputs: dict[str, Any], source: str = "x", tags: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "cell_type": "code", "id": cell_id, "metadata": {"tags": list(tags)}, "source": source,
        "outputs": list(outputs), "execution_count": 1,
    }  # fmt: skip


def run(folder: Path, *cells: dict[str, Any], name: str = "01_tensors", **facts: Any) -> RunReport:
    """Write what a run of one notebook leaves behind."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    about = {key: facts.pop(key) for key in ("status", "error", "seconds") if key in facts}
    outcome = Outcome(**{"name": name, "edition": "learner", "status": "passed", "notebook": path, **about})
    report = RunReport(
        **{"outcomes": (outcome,), "versions": {"torch": "2.14.1"}, "device": "cpu", "seed": 0, "out": folder, **facts}
    )
    write_report(report)
    return report


def kinds(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    run(folder / "a", old)
    run(folder / "b", new)
    return [item.kind for item in compare_runs(folder / "a", folder / "b").differences]


CHANGES = {
    "other text": (cell("c", stream("loss 0.31\n")), cell("c", stream("loss 0.32\n")), ["output"]),
    "a warning": (cell("c", stream("1\n")), cell("c", stream("1\n"), stream("Warning\n", "stderr")), ["output"]),
    "another value": (cell("c", shown(text_plain="1")), cell("c", shown(text_plain="2")), ["output"]),
    "another table": (
        cell("c", shown(text_plain="t", text_html="<b>1</b>")),
        cell("c", shown(text_plain="t", text_html="<b>2</b>")),
        ["output"],
    ),
    "a verdict": (
        cell("c", shown(text_plain=CARD.format("false"))),
        cell("c", shown(text_plain=CARD.format("true"))),
        ["claim"],
    ),
    "a verdict in a cell that varies": (
        cell("c", shown(text_plain=CARD.format("false")), tags=("nbval-ignore-output",)),
        cell("c", shown(text_plain=CARD.format("true")), tags=("nbval-ignore-output",)),
        ["claim"],
    ),
    "code": (cell("c"), cell("c", source="y"), ["source"]),
    "another cell": (cell("c"), cell("d"), ["cell", "cell"]),
    "output gone": (cell("c", stream("1")), cell("c"), ["output"]),
}
SAME = {
    "addresses": (cell("c", stream("<f at 0x7f3b2c1d5e40>")), cell("c", stream("<f at 0x7f3b2c1d5000>"))),
    "marked as varying": (
        cell("c", stream("1 s"), tags=("nbval-ignore-output",)),
        cell("c", stream("2 s"), tags=("nbval-ignore-output",)),
    ),
    "marked by a comment": (
        cell("c", stream("1 s"), source="# NBVAL_IGNORE_OUTPUT\nx"),
        cell("c", stream("2 s"), source="# NBVAL_IGNORE_OUTPUT\nx"),
    ),
    "pictures with one description": (
        cell("c", shown(text_plain="a curve", image_png="AAAA")),
        cell("c", shown(text_plain="a curve", image_png="BBBB")),
    ),
    "streams in another order or in pieces": (
        cell("c", stream("a\n"), stream("w\n", "stderr"), stream("b\n")),
        cell("c", stream("a\nb\n"), stream("w\n", "stderr")),
    ),
    "terminal colours": (cell("c", stream("\x1b[31mred\x1b[0m")), cell("c", stream("red"))),
    "injected parameters": (cell("c", tags=("injected-parameters",)), cell("d", tags=("injected-parameters",))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_told_once_by_its_kind(tmp_path, name):
    old, new, expected = CHANGES[name]
    assert kinds(tmp_path, old, new) == expected


@pytest.mark.parametrize("name", SAME)
def test_what_varies_is_no_change(tmp_path, name):
    assert kinds(tmp_path, *SAME[name]) == []


def test_a_status_and_its_sentence_are_told(tmp_path):
    run(tmp_path / "a", cell("c"))
    run(tmp_path / "b", cell("c"), status="failed", error="Cell 3 raised ValueError: no.")
    (item,) = compare_runs(tmp_path / "a", tmp_path / "b").differences
    assert (item.kind, item.what) == ("status", "It was passed and is failed now.")
    assert item.diff == ("+ Cell 3 raised ValueError: no.",)


def test_times_and_versions_are_shown_and_are_no_change(tmp_path):
    run(tmp_path / "a", cell("c"), seconds=4.0)
    run(tmp_path / "b", cell("c"), seconds=9.0, versions={"torch": "2.15.0"}, parameters={"SEED": 0})
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert not result.changed
    assert result.facts == (("torch", "2.14.1", "2.15.0"), ("SEED", "none", "0"))
    assert [(time.before, time.after, time.remark) for time in result.times] == [(4.0, 9.0, "slower")]
    assert "Nothing changed (1 notebook, 1 cell compared, 0 vary)." in result.summary()


def test_matrices_are_compared_run_by_run(tmp_path):
    for side, names in (("a", ("seed-0", "seed-1")), ("b", ("seed-1", "seed-2"))):
        runs = tuple((name, run(tmp_path / side / name, cell("c", stream(side)))) for name in names)
        whole = MatrixReport(runs=runs, out=tmp_path / side)
        (tmp_path / side / "report.json").write_text(json.dumps(whole.to_json()))
    found = compare_runs(tmp_path / "a", tmp_path / "b").differences
    assert [(item.run, item.kind) for item in found] == [("seed-0", "run"), ("seed-1", "output"), ("seed-2", "run")]


def test_a_notebook_that_ran_only_once_is_a_change(tmp_path):
    run(tmp_path / "a", cell("c"))
    run(tmp_path / "b", cell("c"), name="02_autograd")
    found = compare_runs(tmp_path / "a", tmp_path / "b").differences
    assert [(item.notebook, item.what) for item in found] == [
        ("01_tensors", "It ran only before."),
        ("02_autograd", "It ran only after."),
    ]


def test_a_report_that_names_files_elsewhere_does_not_lead_there(tmp_path):
    for side in ("a", "b"):
        run(tmp_path / side, cell("c", stream(side)))
    report = json.loads((tmp_path / "b/report.json").read_text())
    report["notebooks"][0]["notebook"] = "../a/01_tensors.ipynb"
    (tmp_path / "b/report.json").write_text(json.dumps(report))
    assert compare_runs(tmp_path / "a", tmp_path / "b").cells == 0


@pytest.mark.parametrize(
    ("content", "why"), [(None, "it has no report.json"), ("{", "can't be read"), ("[]", "can't be")]
)
def test_a_folder_without_a_finished_run_is_a_sentence(tmp_path, content, why):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(UsageError, match=why):
        compare_runs(tmp_path, tmp_path)


def test_the_command_prints_writes_a_page_and_tells_by_its_code(tmp_path, capsys):
    run(tmp_path / "a", cell("c", stream("loss <0.31>\n")))
    run(tmp_path / "b", cell("c", stream("loss <0.32>\n")))
    line = ["run", "--compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert cli.run(line) == 1
    out = capsys.readouterr().out
    assert "01_tensors c: The cell's output changed.\n    -loss <0.31>\n    +loss <0.32>\n" in out
    assert "1 change: outputs 1 (1 notebook, 1 cell compared, 0 vary)." in out
    page = (tmp_path / "b/compare.html").read_text()
    assert '<span class="new">+loss &lt;0.32&gt;</span>' in page
    assert cli.run([*line, "--json", "--out", str(tmp_path / "there")]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["changed"], said["differences"][0]["cell"]) == (True, "c")
    assert (tmp_path / "there/compare.html").exists()
    assert cli.run(["run", "--compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--compare a b --seed 3", "--compare runs nothing; leave out --seed."),
        ("--json", "--json goes with --compare; a run writes report.json."),
        (
            "--compare a b",
            "a holds no run that has ended: there is no such folder. Name a folder that `course run` wrote",
        ),
    ],
)
def test_wrong_usage_is_a_sentence(line, sentence, capsys):
    assert cli.run(["run", *line.split()]) == 2
    assert sentence in capsys.readouterr().err
