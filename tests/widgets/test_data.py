"""Lesson 04's explorer: every setting draws, and the numbers are those of the schedule."""

from __future__ import annotations

import itertools

import pytest

from course_utils.pipeline import timeline, total_ms
from course_utils.widgets import data as explorer
from course_utils.widgets.data import N_BATCHES, timeline_view


@pytest.mark.parametrize(("workers", "batch_size"), list(itertools.product((0, 1, 2, 6), (8, 64))))
def test_every_setting_tells_the_time_of_its_schedule(workers, batch_size):
    view = timeline_view(workers, batch_size, 1.0, 20)
    assert f"{N_BATCHES} steps take" in view.text
    assert f"{total_ms(timeline(workers, batch_size, 1.0, 20, N_BATCHES)):.0f} ms" in view.text
    assert len(view.picture.axes[0].get_yticks()) == workers + 1


def test_starting_values_show_text_without_a_front_end(capsys):
    explorer.explore_timeline()
    assert "main process waits" in capsys.readouterr().out
