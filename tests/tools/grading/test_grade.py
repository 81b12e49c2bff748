"""Grading: right answers keep their marks whatever surrounds them, and nothing hostile earns any or harms another."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from course_utils.errors import UsageError
from course_utils.paths import ROOT
from course_utils.tools.grading import confine, zygote
from course_utils.tools.grading import grade as grading
from course_utils.tools.grading.confine import Allowance
from course_utils.tools.grading.grade import Grade, GradeOptions, Grader, grade
from course_utils.tools.grading.submissions import find_submissions
from course_utils.tools.merge import text_of
from tests.tools.grading.class_of import FIRST, HERE, LESSON, SECOND, notebook, put, right
from tests.tools.grading.hostile import CHEATS, VIOLENT, WRONG

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="grading forks processes")
QUICK = Allowance(seconds=90, cell_seconds=3, cpu_seconds=30, memory_bytes=2**30)
BOTH = {FIRST: right(FIRST), SECOND: right(SECOND)}


@pytest.fixture(scope="module")
def grader(tmp_path_factory) -> Grader:
    with Grader(tmp_path_factory.mktemp("job")) as grader:
        yield grader


def graded(grader: Grader, folder: Path, submission: dict[str, Any] | str, seed: int = 0) -> Grade:
    put(folder / "in", "eve", submission)
    (folder / "scratch").mkdir(exist_ok=True)
    (found,) = find_submissions(folder / "in", folder / "scratch")
    return grader.grade(found, GradeOptions(folder=folder, out=folder, seed=seed, allowance=QUICK))


def states(found: Grade) -> dict[str, str]:
    return {item["id"]: item["state"] for item in found.exercises if item["state"] not in ("untried", "missing")}


def passed(found: Grade) -> set[str]:
    return {name for name, state in states(found).items() if state == "passed"}


# Right answers keep their marks


def test_right_answers_count_blanks_do_not(grader, tmp_path):
    found = graded(grader, tmp_path, notebook({**BOTH, HERE: right(HERE)}))
    assert passed(found) >= {FIRST, SECOND, HERE}
    assert found.status == "graded"
    assert found.points == 3
    assert found.max_points == len(found.exercises)
    # Everything is imported before the fork, and no thread was started by it: none would survive.
    assert "matplotlib.pyplot" in zygote.imported_by_lessons()
    if sys.platform.startswith("linux"):
        assert psutil.Process(grader.process.pid).num_threads() == 1


SURROUNDINGS = {
    "warns": ("import warnings; warnings.warn('careful')", ""),
    "prints megabytes": ("print('x' * 20_000_000)", ""),
    "writes to stderr": ("import sys; sys.stderr.write('oh no')", ""),
    "draws from the global generator": ("import torch; torch.rand(1000)", ""),
    "has magics": ("%matplotlib inline\n!ls\nx = !ls", "%timeit 1 + 1"),
    "has broken cells": ("1 / 0", "this is not python"),
    "changes the default dtype": ("import torch; torch.set_default_dtype(torch.float64)", ""),
    "has Windows line ends": ("x = 1\r\ny = 2\r\n", ""),
    "has half a character": ("x = '\ud800'", "raise ValueError('\ud800')"),
}  # fmt: skip


BUSY = """
import os, time
inner = os.fork()
if inner == 0:
    os._exit(7)
os.waitid(os.P_PID, inner, os.WEXITED | os.WNOWAIT)
print("the inner one has ended", flush=True)
time.sleep(0.5)  # no turn on a busy machine
os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
"""


def test_the_exit_code_of_a_student_s_process_is_waited_for():
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as outer:
        assert outer.stdout.readline()
        zygote._let_report(outer.pid)
        outer.kill()
    assert outer.returncode == 7


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_a_right_answer_keeps_its_marks_in_a_notebook_that(grader, tmp_path, name):
    before, after = SURROUNDINGS[name]
    assert passed(graded(grader, tmp_path, notebook(BOTH, before, after))) == {FIRST, SECOND}


def test_a_renamed_function_without_its_check_is_found(grader, tmp_path):
    code = right(FIRST).replace("energy", "my_energy").split("check(")[0]
    assert passed(graded(grader, tmp_path, notebook({FIRST: code}))) == {FIRST}


def test_a_helper_defined_in_a_later_cell_is_found_in_the_second_round(grader, tmp_path):
    code = "helper\n" + right(FIRST)
    assert passed(graded(grader, tmp_path, notebook({FIRST: code}, after="helper = 1"))) == {FIRST}


def test_an_answer_that_uses_the_lessons_own_cells_is_graded_with_them(grader, tmp_path):
    given = [text_of(c) for c in notebook()["cells"] if c["cell_type"] == "code" and not c["metadata"].get("tags")]
    name = next(found[1] for found in (re.match(r"(\w+) = ", text) for text in given) if found)
    submission = notebook({FIRST: f"{name}\n" + right(FIRST)})
    assert passed(graded(grader, tmp_path, submission)) == {FIRST}


def test_of_a_duplicated_cell_the_best_copy_counts(grader, tmp_path):
    submission = notebook({FIRST: right(FIRST)})
    answer = next(c for c in submission["cells"] if c["metadata"].get("exercise") == FIRST)
    blank = next(c for c in notebook()["cells"] if c["metadata"].get("exercise") == FIRST)
    submission["cells"].insert(submission["cells"].index(answer) + 1, blank)
    found = graded(grader, tmp_path, submission)
    assert passed(found) == {FIRST}
    assert any("2 times" in note for note in found.notes)


def test_a_name_that_is_used_again_later_does_not_change_an_earlier_answer(grader, tmp_path):
    code = right(FIRST)
    assert passed(graded(grader, tmp_path, notebook({FIRST: code}, after="energy = None"))) == {FIRST}


DRAWS = """
def energy(images):
    torch.rand(1), np.random.rand(1)  # a harmless extra draw
    return images.float().square().mean((1, 2))
check('tensors.energy', energy)
"""
TIMED = {
    "the whole cell": "%%time\n" + right(FIRST),
    "quietly": "%%capture out\n%%time\n" + right(FIRST),
    "a line": right(FIRST).replace("check(", "%time x = energy(torch.ones(1, 2, 2))\nx.shape\ncheck("),
}


@pytest.mark.parametrize("name", TIMED)
def test_a_right_answer_keeps_its_marks_when_it_is_timed(grader, tmp_path, name):
    assert passed(graded(grader, tmp_path, notebook({FIRST: TIMED[name]}))) == {FIRST}


def test_an_error_below_a_magic_is_an_error(grader, tmp_path):
    found = graded(grader, tmp_path, notebook({FIRST: "%%time\nraise ValueError('wrong')\n" + right(FIRST)}))
    (item,) = [item for item in found.exercises if item["id"] == FIRST]
    assert (item["state"], item["message"]) == ("wrong", "ValueError: wrong")


def test_an_answer_may_draw_and_none_leaves_anything_for_the_next(grader, tmp_path):
    twice = [graded(grader, tmp_path, notebook({FIRST: DRAWS, HERE: right(HERE)}), seed=3) for _ in range(2)]
    assert [passed(found) for found in twice] == [{FIRST, HERE}] * 2


def test_a_missing_cell_is_no_point_and_stays_in_the_total(grader, tmp_path):
    submission = notebook(BOTH)
    submission["cells"] = [c for c in submission["cells"] if c["metadata"].get("exercise") in (None, FIRST)]
    submission["metadata"]["kernelspec"] = {"name": "py39_new", "display_name": "my env", "language": "R"}
    found = graded(grader, tmp_path, submission)
    assert passed(found) == {FIRST}
    assert found.points == 1
    assert found.max_points == 16
    assert {item["state"] for item in found.exercises} == {"passed", "missing"}


def test_the_same_seed_gives_the_same_grade_and_cells_need_no_ids(grader, tmp_path):
    submission = notebook(BOTH)
    first = graded(grader, tmp_path, submission, seed=5)
    for cell in submission["cells"]:
        del cell["id"]
    again = graded(grader, tmp_path, submission, seed=5)
    assert [item["message"] for item in first.exercises] == [item["message"] for item in again.exercises]


# Wrong answers get none


@pytest.mark.parametrize("name", WRONG)
def test_no_marks_for(grader, tmp_path, name):
    found = graded(grader, tmp_path, notebook({FIRST: WRONG[name], SECOND: right(SECOND)}))
    assert passed(found) == {SECOND}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing_that(grader, tmp_path, name):
    junk = {
        FIRST: "def energy(images):\n    return 0\ncheck('tensors.energy', energy)",
        HERE: "def snapshot(*a, **k):\n    return 0\ncheck('tensors.snapshot', snapshot)",
    }
    found = graded(grader, tmp_path, notebook(junk, before=CHEATS[name]))
    assert passed(found) == set()


def test_solutions_can_neither_be_read_nor_asked_for(grader, tmp_path):
    before = f"""
text = ''
for place in ('notebooks/source/01_tensors.py', 'notebooks/solutions/01_tensors.ipynb', 'tests/__init__.py'):
    try:
        text += open({str(ROOT)!r} + '/' + place).read()
    except OSError:
        pass
from course_utils.exercises.reference import reference_code
text += reference_code('tensors.energy') or ''
found = len(text)
"""
    cheat = "def energy(images):\n    raise ValueError(f'found {found}')\n"
    found = graded(grader, tmp_path, notebook({FIRST: cheat + "check('tensors.energy', energy)"}, before=before))
    if confine.NAMESPACES not in found.confined:
        pytest.skip("this system allows no name spaces, so files can be read")
    (item,) = [item for item in found.exercises if item["id"] == FIRST]
    assert "found 0" in item["message"]


# Whatever a notebook does, it does to itself


@pytest.mark.slow
@pytest.mark.parametrize("name", VIOLENT)
def test_a_notebook_is_bounded_and_harms_no_other_when_it(grader, tmp_path, name):
    before = {process.pid for process in psutil.process_iter()}
    found = graded(grader, tmp_path, notebook({FIRST: VIOLENT[name], SECOND: right(SECOND)}))
    assert FIRST not in passed(found)
    assert found.seconds < 60
    if name not in ("floods the pipe", "closes everything"):  # there, nobody hears of the other answers any more
        assert SECOND in passed(found), (found.status, found.notes)
    after = graded(grader, tmp_path, notebook(BOTH))
    assert passed(after) == {FIRST, SECOND}, "the next student is graded as ever"
    left = [p for p in psutil.process_iter() if p.pid not in before and str(grader.folder) in _line(p)]
    assert len(left) <= 1


def _line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_no_network_no_files_no_other_processes(grader, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = f"""
import os, socket
done = []
for name, action in dict(
    network=lambda: socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2),
    delete=lambda: os.remove({str(victim)!r}),
    write=lambda: open({str(tmp_path / "new.txt")!r}, 'w'),
    kill=lambda: os.kill({os.getpid()}, 0),
).items():
    try:
        action()
        done.append(name)
    except OSError:
        pass
"""
        cheat = (
            "def energy(images):\n    raise ValueError(','.join(done) or 'nothing')\ncheck('tensors.energy', energy)"
        )
        found = graded(grader, tmp_path, notebook({FIRST: cheat}, before=before))
    if confine.NAMESPACES not in found.confined:
        pytest.skip("this system allows no name spaces: only limits hold, and the report says so")
    (item,) = [item for item in found.exercises if item["id"] == FIRST]
    assert "nothing" in item["message"]
    assert victim.read_text() == "precious"


def test_processes_of_other_notebooks_are_not_counted():
    assert confine.count_apart(os.getpid()) is None  # it has no name space of its own
    assert confine.count_apart(2**22 + 1) is None  # nobody has this number


# The run as a whole


def test_a_class_is_graded_reported_and_resumed(tmp_path, monkeypatch):
    put(tmp_path / "in", "ada", notebook(BOTH))
    put(tmp_path / "in", "bob", notebook())
    put(tmp_path / "in", "=cmd", notebook({FIRST: WRONG["no output at all"]}))
    put(tmp_path / "in", "dan", "{")
    options = GradeOptions(folder=tmp_path / "in", out=tmp_path / "out", jobs=2, allowance=QUICK)
    seen: list[str] = []
    result = grade(options, lambda item: seen.append(item.student))
    assert sorted(seen) == ["=cmd", "ada", "bob", "dan"]
    facts = json.loads((tmp_path / "out/grades.json").read_text())
    assert {"student", "lesson", "file", "status", "points", "max_points", "exercises", "seconds"} <= set(facts[0])
    assert {item["student"]: item["points"] for item in facts} == {"=cmd": 0, "ada": 2, "bob": 0, "dan": 0}
    assert {item["student"]: item["status"] for item in facts}["dan"] == "unreadable"
    with open(tmp_path / "out/grades.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["Student"]: row[LESSON] for row in rows}["ada"] == "2"
    assert "'=cmd" in [row["Student"] for row in rows]
    assert "✓" in (tmp_path / "out/feedback/ada.html").read_text()
    assert "ada" in (tmp_path / "out/class.html").read_text()
    seen.clear()
    again = grade(options, lambda item: seen.append(item.student))
    assert seen == []
    assert again.reused == 4
    assert [item.points for item in again.grades] == [item.points for item in result.grades]


def test_nobody_reads_what_others_handed_in(tmp_path):
    """Eve looks for what the others handed in, where it lies and where it was unpacked."""
    put(tmp_path / "in", "ada", notebook({FIRST: right(FIRST) + "\n# SECRET"}))
    with zipfile.ZipFile(tmp_path / "in/bob_01_tensors.zip", "w") as file:
        file.write(tmp_path / f"in/ada_{LESSON}.ipynb", "work.ipynb")
    spy = f"""
import glob, os, pathlib, tempfile
found = []
places = [{str(tmp_path)!r}, *glob.glob(os.path.dirname(os.path.dirname(os.path.dirname(os.getcwd()))) + '/unpacked*')]
for place in [*places, os.path.join(os.getcwd(), '../..')]:
    for path in pathlib.Path(place).rglob('*'):
        try:
            found += [str(path)] if path.is_file() and 'SECRET' in path.read_text() else []
        except (OSError, ValueError):
            pass
"""
    cheat = "def energy(images):\n    raise ValueError(f'found {len(found)}')\ncheck('tensors.energy', energy)"
    put(tmp_path / "in", "eve", notebook({FIRST: cheat}, before=spy))
    result = grade(GradeOptions(folder=tmp_path / "in", out=tmp_path / "out", jobs=1, allowance=QUICK))
    if not any(confine.NAMESPACES in item.confined for item in result.grades):
        pytest.skip("this system allows no name spaces, so files can be read")
    assert {item.student: item.points for item in result.grades} == {"ada": 1, "bob": 1, "eve": 0}
    (eve,) = [item for item in result.grades if item.student == "eve"]
    assert "found 0" in eve.exercises[0]["message"]


def test_an_interrupted_run_is_resumed(tmp_path, monkeypatch):
    for name in ("ada", "bob", "cyd"):
        put(tmp_path / "in", name, notebook(BOTH))
    options = GradeOptions(folder=tmp_path / "in", out=tmp_path / "out", jobs=1, allowance=QUICK)

    def stop(item: Grade) -> None:
        import _thread

        _thread.interrupt_main()

    first = grade(options, stop)
    assert first.interrupted
    assert 1 <= len(first.grades) < 3
    assert not (tmp_path / "out/grades.csv").exists()
    second = grade(options)
    assert second.reused >= 1
    assert [item.points for item in second.grades] == [2, 2, 2]


def test_results_inside_the_folder_of_submissions_are_refused(tmp_path):
    put(tmp_path / "in", "ada", notebook(BOTH))
    with pytest.raises(UsageError, match="inside the folder"):
        grade(GradeOptions(folder=tmp_path / "in", out=tmp_path / "in/grades"))


# Faults of graders that people reported, with the tests that hold them down; those of runners are in test_runner.py
CASES = {
    "R003": ["test_a_name_that_is_used_again_later_does_not_change_an_earlier_answer"],
    "R005": ["test_an_answer_may_draw_and_none_leaves_anything_for_the_next",
             "test_the_same_seed_gives_the_same_grade_and_cells_need_no_ids"],
    "R006": ["test_no_marks_for"],
    "R008": ["test_an_answer_may_draw_and_none_leaves_anything_for_the_next"],
    "R010": ["test_of_a_duplicated_cell_the_best_copy_counts"],
    "R011": ["test_a_missing_cell_is_no_point_and_stays_in_the_total"],
    "R016": ["test_a_missing_cell_is_no_point_and_stays_in_the_total"],
    "R018": ["test_a_notebook_is_bounded_and_harms_no_other_when_it"],
    "R025": ["test_an_error_below_a_magic_is_an_error", "test_a_right_answer_keeps_its_marks_when_it_is_timed"],
}  # fmt: skip


def test_each_reported_fault_has_its_tests():
    assert all(name in globals() for names in CASES.values() for name in names)


def test_a_system_that_cannot_fork_is_told_so(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(grading.EnvironmentProblem, match="Windows"):
        grade(GradeOptions(folder=tmp_path, out=tmp_path))
