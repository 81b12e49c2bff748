"""The schedule designer draws what it says, for every setting that its controls allow."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from course_utils.schedules import KINDS, Plan, Trial, lr_curve
from course_utils.widgets.training import PEAKS, describe, draw_training, explore_schedule, schedule_view


@pytest.fixture(autouse=True)
def _no_figure_is_left():
    yield
    plt.close("all")


@pytest.mark.parametrize("kind", KINDS)
def test_the_picture_has_the_rate_of_every_step(kind):
    view = schedule_view(kind, 0.1, 1.0, 5)
    rates = view.picture.axes[0].lines[0].get_ydata()
    assert len(rates) == 100
    if kind != "plateau":
        assert tuple(rates) == lr_curve(Plan(kind=kind, peak=0.1, warmup=1.0, epochs=5))


@pytest.mark.parametrize("peak", PEAKS)
@pytest.mark.parametrize("warmup", [0.0, 4.0])
def test_no_setting_of_the_controls_breaks_it(peak, warmup):
    view = schedule_view("onecycle", peak, warmup, 5)
    assert "5 epochs of 20 steps = 100 steps" in view.text


def test_the_text_gives_rates_losses_and_accuracy_of_each_epoch():
    trial = Trial(rates=(0.1, 0.2, 0.1, 0.0), losses=(2.0, 1.0, 0.5, 0.5), accuracies=(0.5, 0.75))
    text = describe(Plan(kind="onecycle", epochs=2, warmup=1, steps_per_epoch=2), trial)
    assert "first 0.1, highest 0.2 at step 1, last 0" in text
    assert text.splitlines()[-2].split() == ["1", "1.500", "50.0", "%"]
    assert text.splitlines()[-1].split() == ["2", "0.500", "75.0", "%"]


def test_plateau_says_that_it_has_no_warm_up():
    assert "no warm-up" in schedule_view("plateau", 0.1, 2.0, 5).text


def test_a_loss_that_is_not_finite_is_drawn_at_the_top():
    _, ax = plt.subplots()
    draw_training(ax, Trial(rates=(1.0, 1.0), losses=(2.0, float("nan")), accuracies=(0.1,)))
    assert list(ax.lines[0].get_ydata()) == [2.0, 10.0]


def test_outside_a_notebook_it_prints_the_numbers(capsys):
    explore_schedule()
    shown = capsys.readouterr().out
    assert "onecycle, 8 epochs of 20 steps = 160 steps" in shown
    assert 'x is "step", y is "learning rate"' in shown
