"""A lesson in JupyterLab, as a learner meets it: it opens, runs, and its explorer moves."""

from __future__ import annotations

import pytest

from tests.browser.session import chromium, visit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium; install it, or name one in COURSE_CHROMIUM"),
]


def test_a_lesson_opens_runs_and_its_explorer_moves_by_keyboard():
    seen = visit("00_start")
    assert seen.errors == []
    assert seen.executed > 10
    assert seen.before != seen.after
    assert "line: y = 1.20 x + 0.00" in seen.numbers  # 12 key strokes of 0.1 from 0
