"""Bad notebooks beyond those that the usual tests of the runner have: each named rightly, its neighbours unharmed."""

from __future__ import annotations

import pytest

from course_utils.tools import supervision
from course_utils.tools.runner import RunOptions, run_course
from tests.faults.campaign import report, size
from tests.tools.running import left_over, marked_processes, write_notebook

pytestmark = pytest.mark.faults
# Name -> cells, status, words of the report.
BAD = {
    "recurses": (["def f(): return f()\nf()"], "failed", "RecursionError"),
    "threads_never_end": (
        ["import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(9999,)).start()"],
        "passed",
        "",
    ),
    "folder_deleted": (
        ["import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nos.rmdir(d)", "print('on')", "os.getcwd()"],
        "failed",
        "FileNotFoundError",
    ),
    "stdout_closed": (["import sys\nsys.stdout.close()", "1 + 1"], "passed", ""),
    "locale_changed": (["import locale\nlocale.setlocale(locale.LC_ALL, 'C')", "print(f'{1.5:n} ä')"], "passed", ""),
    "print_replaced": (["print = lambda *a, **k: 1 / 0", "print('x')"], "failed", "ZeroDivisionError"),
    "everything_is_well": (["1 + 1"], "passed", ""),
}


def test_each_bad_notebook_is_named_rightly_and_harms_no_other(tmp_path, monkeypatch):
    if not size(0, 1):
        pytest.skip("a part of course.py test --faults; the usual tests of the runner have twenty others")
    paths = [write_notebook(tmp_path / f"{name}.ipynb", *cells) for name, (cells, *_) in BAD.items()]
    limits = supervision.Limits(cell_s=40, notebook_s=90)
    monkeypatch.setattr(RunOptions, "limits", lambda self, jobs: limits)
    with marked_processes() as mark:
        found = run_course(RunOptions(lessons=tuple(map(str, paths)), out=tmp_path / "out", device="cpu"))
        assert left_over(mark, wait_s=30) == []
    seen = {outcome.name: (outcome.status, outcome.error or "") for outcome in found.outcomes}
    for name, (_, status, words) in BAD.items():
        assert seen[name][0] == status, f"{name}: {seen[name]}"
        assert words in seen[name][1], f"{name}: {seen[name]}"
    report("bad notebooks", f"{len(BAD) - 1} beside a good one, all named rightly")
