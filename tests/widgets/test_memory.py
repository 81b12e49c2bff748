"""Lesson 06's explorers: the budget is checked against a step that runs, the scale moves where float16 ends."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest

from course_utils.ledger import Ledger
from course_utils.widgets import memory as explorer
from course_utils.widgets.memory import budget_view, draw_ledgers, scale_view


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("optimizer", explorer.OPTIMIZERS)
@pytest.mark.parametrize(("batch", "width", "depth"), [(16, 64, 1), (32, 128, 3), (48, 64, 6)])
def test_arithmetic_and_measurement_agree_for_what_the_panel_offers(batch, width, depth, optimizer, mixed):
    view = budget_view(batch, width, depth, optimizer, mixed)
    rows = view.text.splitlines()[2:8]
    assert [row.split()[-1] for row in rows] == ["yes"] * 6, view.text
    plt.close(view.picture)


def test_the_text_says_where_the_peak_is():
    view = budget_view(16, 64, 1, "SGD", False)
    assert "peak: " in view.text
    assert " pass" in view.text or " step" in view.text
    plt.close(view.picture)


def test_a_bar_is_as_long_as_the_ledger():
    figure, ax = plt.subplots()
    draw_ledgers(ax, {"one": Ledger(*[1024**2] * 5), "two": Ledger(other=3 * 1024**2)})
    ends = [max(patch.get_x() + patch.get_width() for patch in ax.patches[row::2]) for row in (0, 1)]
    assert ends == [5, 3]
    plt.close(figure)


def test_the_scale_is_drawn_with_a_cross_at_each_skipped_step():
    view = scale_view(24, 5, 1.0)
    line, crosses = view.picture.axes[0].lines
    assert line.get_ydata()[0] == 24
    assert 0 in crosses.get_xdata()
    assert f"skipped steps: {len(crosses.get_xdata())} of 60, the first is step 0" in view.text
    assert all(math.isfinite(power) for power in line.get_ydata())
    plt.close(view.picture)


def test_without_a_skipped_step_there_is_no_cross():
    view = scale_view(8, 30, 1e-6)
    assert "skipped steps: 0 of 60\n" in view.text
    assert len(view.picture.axes[0].lines[1].get_xdata()) == 0
    plt.close(view.picture)


def test_a_small_scale_loses_small_gradients():
    view = scale_view(0, 30, 1e-6)
    assert "gradients that became 0: 100 % in the first step" in view.text
    plt.close(view.picture)


@pytest.mark.parametrize("name", ["explore_budget", "explore_scale"])
def test_explorers_start_with_settings_that_show_something(name, monkeypatch):
    shown = {}
    monkeypatch.setattr(explorer, "explore", lambda render, **controls: shown.update(render=render, controls=controls))
    getattr(explorer, name)()
    view = shown["render"](**{key: control.value for key, control in shown["controls"].items()})
    assert view.text
    plt.close(view.picture)
