"""The comparison of notebooks: planted changes are caught, and nothing else is, on a busy machine too."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from course_utils.errors import EnvironmentProblem, UsageError
from course_utils.tools import regression
from course_utils.tools.processes import core_count
from course_utils.tools.regression import all_notebooks, busy_cores, compare, main
from tests.lesson_files import STEM, cell_of, changing, read

RUNS_UNDER_LOAD = 10


def replace_in(part: list[str], old: str, new: str) -> None:
    assert any(old in line for line in part), f"{old!r} is not in {part}"
    part[:] = [line.replace(old, new) for line in part]


def a_changed_number(notebook):
    replace_in(cell_of(notebook, "sum")["outputs"][0]["text"], "sum 14", "sum 15")


def a_changed_shape(notebook):
    replace_in(cell_of(notebook, "shape")["outputs"][0]["text"], "(3, 4)", "(4, 3)")


def an_output_that_is_missing_from_the_fresh_run(notebook):
    replace_in(cell_of(notebook, "expected-error")["source"], "1 / 0", "raise ZeroDivisionError")


def an_output_that_is_missing_from_the_notebook(notebook):
    cell_of(notebook, "both-streams")["outputs"].pop()


def a_changed_curve(notebook):
    """One point of 51 moves by a tenth of the picture's height."""
    replace_in(cell_of(notebook, "figure")["source"], "[v**2 for v in x]", "[v**2 + 2.5 * (v == 3.0) for v in x]")


def a_changed_drawing(notebook):
    replace_in(cell_of(notebook, "diagram")["source"], '<rect width=\\"40\\"'.replace("\\", ""), '<rect width="39"')


def a_changed_card(notebook):
    replace_in(cell_of(notebook, "exercise-double")["outputs"][0]["data"]["text/html"], "not attempted", "passed")


def a_changed_number_of_steps(notebook):
    replace_in(cell_of(notebook, "progress-bar")["source"], "range(3)", "range(4)")


def a_changed_warning(notebook):
    replace_in(cell_of(notebook, "warning")["source"], "on purpose", "by accident")


def a_clock_without_the_tag(notebook):
    cell_of(notebook, "clock")["metadata"]["tags"] = []


PLANTED = {
    "sum": a_changed_number,
    "shape": a_changed_shape,
    "expected-error": an_output_that_is_missing_from_the_fresh_run,
    "both-streams": an_output_that_is_missing_from_the_notebook,
    "figure": a_changed_curve,
    "diagram": a_changed_drawing,
    "exercise-double": a_changed_card,
    "progress-bar": a_changed_number_of_steps,
    "warning": a_changed_warning,
    "clock": a_clock_without_the_tag,
}


def different_cells(notebook: Path, report: str) -> set[str]:
    """Return the ids of the cells that a report says differ; nbval counts code cells."""
    code = [cell["id"] for cell in read(notebook)["cells"] if cell["cell_type"] == "code"]
    return {code[int(number)] for number in re.findall(r"^_+ .*::Cell (\d+) _+$", report, flags=re.MULTILINE)}


@pytest.mark.slow
def test_an_unchanged_notebook_is_the_same_on_a_busy_machine_ten_times(lesson_folder, capsys):
    """Two comparisons at a time, with every core taken besides and one to four threads each."""
    notebook = lesson_folder / f"{STEM}.ipynb"
    before = notebook.read_bytes()
    status = main([str(notebook), "--rounds", str(RUNS_UNDER_LOAD), "--jobs", "2", "--threads", "draw", "--load"])
    assert status == 0, capsys.readouterr().out
    assert notebook.read_bytes() == before


def test_each_planted_change_is_caught_in_its_cell_and_nowhere_else(lesson_folder):
    notebook = lesson_folder / f"{STEM}.ipynb"
    with changing(notebook) as content:
        for plant in PLANTED.values():
            plant(content)
    result = compare(notebook)
    assert not result.ok
    assert different_cells(notebook, result.report) == set(PLANTED)


def test_the_solutions_edition_is_compared_too_and_only_the_tag_excuses_a_cell(lesson_folder):
    """The clock's cell is tagged; the same clock in a cell without the tag is caught (above)."""
    _, solutions = all_notebooks(lesson_folder)
    assert "nbval-ignore-output" in cell_of(read(solutions), "clock")["metadata"]["tags"]
    result = compare(solutions)
    assert result.ok, result.report


def test_the_users_settings_and_kernels_have_no_say(lesson_folder, tmp_path, monkeypatch):
    """Another kernel named python3, warnings as errors, and a start-up file would each change the outputs."""
    spec = tmp_path / "data" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        '{"argv": ["no-such-program"], "display_name": "x", "language": "python"}', encoding="utf-8"
    )
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "hello.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "data"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("MPLBACKEND", "no-such-backend")
    (lesson_folder / "conftest.py").write_text("raise RuntimeError('read')", encoding="utf-8")
    result = compare(lesson_folder / f"{STEM}.ipynb")
    assert result.ok, result.report


def test_a_notebook_that_never_ends_is_killed_with_all_it_started(lesson_folder):
    notebook = lesson_folder / f"{STEM}.ipynb"
    code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(87654)'])\n"
    with changing(notebook) as content:
        cell_of(content, "setup")["source"] = [code + "while True: pass"]
    started = time.monotonic()
    result = compare(notebook, timeout_s=8)
    assert not result.ok
    assert f"{STEM}.ipynb did not end within 8 s" in result.report
    assert time.monotonic() - started < 40
    left = [p for p in psutil.process_iter(["cmdline"]) if "87654" in " ".join(p.info["cmdline"] or [])]
    assert left == []


def test_a_kernel_that_ends_is_a_difference(lesson_folder):
    notebook = lesson_folder / f"{STEM}.ipynb"
    with changing(notebook) as content:
        cell_of(content, "setup")["source"] = ["import os\nos._exit(0)"]
    result = compare(notebook, timeout_s=60)
    assert not result.ok
    assert "The kernel ended while it ran this cell." in result.report
    assert result.seconds < 50  # nbval alone waits until the time is over


def test_what_is_no_notebook_is_a_problem_of_its_own(tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"nbval could not run 90_sample\.ipynb"):
        compare(tmp_path / f"{STEM}.ipynb")


def test_load_ends_with_its_block():
    def burners():
        found = []
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # another test's process that has ended and was not waited for
                found += [child] if regression._BURN in child.cmdline() else []
        return found

    with busy_cores():
        assert len(burners()) == core_count()
    assert burners() == []


def test_the_command_repeats_counts_and_tells_by_its_exit_status(monkeypatch, tmp_path, capsys):
    notebook = tmp_path / "a.ipynb"
    notebook.write_text("{}", encoding="utf-8")
    verdicts = iter([True, True, False])
    monkeypatch.setattr(
        regression,
        "compare",
        lambda path, timeout_s, threads: regression.Comparison(path, next(verdicts), 1.0, "cell 3 differs"),
    )
    assert main([str(notebook), "--rounds", "2"]) == 0
    assert "2 comparisons, 0 different." in capsys.readouterr().out
    assert main([str(notebook), "--threads", "4"]) == 1
    said = capsys.readouterr().out
    assert f"DIFFERS  {tmp_path.name}/a.ipynb in 1 s" in said
    assert "4 threads" in said
    assert "cell 3 differs" in said
    with pytest.raises(UsageError, match="There is no notebook"):
        main([str(tmp_path / "b.ipynb")])


def test_a_hunt_draws_orders_and_threads_and_goes_on_where_it_was_stopped(monkeypatch, tmp_path, capsys):
    notebooks = [tmp_path / f"{name}.ipynb" for name in "abcde"]
    for notebook in notebooks:
        notebook.write_text("{}", encoding="utf-8")
    seen: list[tuple[str, int]] = []

    def counted(path, timeout_s, threads):
        seen.append((path.stem, threads))
        return regression.Comparison(path, path.stem != "c" or threads != 4, 1.0, "it differs")

    monkeypatch.setattr(regression, "compare", counted)
    counts = tmp_path / "counts.json"
    words = [*map(str, notebooks), "--shuffle", "--threads", "draw", "--counts", str(counts)]
    main([*words, "--rounds", "3"])
    assert sorted(name for name, _ in seen) == sorted("abcde" * 3)
    assert len({tuple(name for name, _ in seen[start : start + 5]) for start in (0, 5, 10)}) > 1
    assert len({threads for _, threads in seen}) > 1
    whole = list(seen)
    counts.write_text(json.dumps(json.loads(counts.read_text(encoding="utf-8"))[:7]), encoding="utf-8")
    seen.clear()
    main([*words, "--rounds", "3"])
    assert seen == whole[7:]
    seen.clear()
    assert main([*words, "--rounds", "3"]) == (1 if ("c", 4) in whole else 0)
    assert seen == []
    assert "15 comparisons" in capsys.readouterr().out
    counts.write_text("[1]", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no counts"):
        main(words)


def test_a_command_that_is_told_to_end_takes_its_kernels_along(lesson_folder):
    notebook = lesson_folder / f"{STEM}.ipynb"
    with changing(notebook) as content:
        cell_of(content, "setup")["source"] = ["import time\ntime.sleep(600)"]
    command = [sys.executable, "-m", "course_utils.tools.regression", str(notebook)]
    process = subprocess.Popen([*command, "--rounds", "3", "--jobs", "2"], stdout=subprocess.PIPE)
    below = []
    while len(below) < 4:  # pytest and the kernel, twice
        time.sleep(0.2)
        below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert psutil.wait_procs(below, timeout=10)[1] == []


def test_a_wrong_use_of_the_command_is_one_sentence(tmp_path):
    command = [sys.executable, "-m", "course_utils.tools.regression", str(tmp_path / "none.ipynb")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("There is no notebook")
    assert len(ended.stderr.splitlines()) == 1
