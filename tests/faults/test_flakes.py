"""All notebooks in a drawn order, with drawn numbers of threads, side by side on busy cores: the same outputs."""

from __future__ import annotations

import os

import pytest

from course_utils.tools.regression import all_notebooks, main
from tests.faults.campaign import report, size

pytestmark = [pytest.mark.alone, pytest.mark.faults]  # it keeps every core busy


def test_notebooks_have_the_same_outputs_in_any_order_with_any_threads_on_busy_cores(capsys):
    rounds = size(sample=0, whole=1)  # the usual tests do this with one small notebook, ten times
    if not rounds:
        pytest.skip("a part of course.py test --faults")
    status = main(["--rounds", str(rounds), "--shuffle", "--jobs", "2", "--threads", "draw", "--load"])
    assert status == 0, capsys.readouterr().out
    report("flakes", f"{len(all_notebooks())} notebooks, {rounds} round, 0 differences (load {os.getloadavg()[0]:.1f})")
