"""Plans give the rates that their names promise, and the tiny training follows them."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import pytest
import torch

from course_utils.errors import UsageError
from course_utils.schedules import KINDS, Plan, lr_curve, tiny_training


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reaches_the_peak_and_never_goes_above(kind):
    rates = lr_curve(Plan(kind=kind, peak=0.3, warmup=2))
    assert len(rates) == 160
    assert max(rates) == pytest.approx(0.3)
    assert min(rates) >= 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.5, 4.0])
def test_any_warm_up_that_leaves_time_works_without_a_warning(kind, warmup):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(math.isfinite(rate) for rate in lr_curve(Plan(kind=kind, warmup=warmup, epochs=5)))


def test_the_warm_up_rises_in_a_straight_line_to_the_peak():
    rates = lr_curve(Plan(kind="cosine", peak=1.0, warmup=2, steps_per_epoch=10))
    rises = [b - a for a, b in pairwise(rates[:21])]
    assert rises == pytest.approx([rises[0]] * 20)
    assert rates[20] == pytest.approx(1.0)


def test_stairs_go_down_by_a_factor_of_ten_twice():
    assert {round(rate, 6) for rate in lr_curve(Plan(kind="stairs", peak=1.0, warmup=0))} == {1.0, 0.1, 0.01}


def test_warm_restarts_come_back_to_the_peak_twice():
    rates = lr_curve(Plan(kind="warm restarts", peak=1.0, warmup=0, epochs=9))
    assert sum(rate == pytest.approx(1.0) for rate in rates) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "onecicle"}, "Did you mean 'onecycle'?"),
        ({"peak": 0.0}, "positive numbers"),
        ({"peak": math.nan}, "positive numbers"),
        ({"epochs": 0}, "positive numbers"),
        ({"warmup": 8.0}, "less than 8 epochs"),
        ({"warmup": -1.0}, "less than 8 epochs"),
        ({"warmup": math.nan}, "less than 8 epochs"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(settings, words):
    with pytest.raises(UsageError) as caught:
        Plan(**settings)
    assert words in str(caught.value)


def blobs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten well separated clouds of points in 16 dimensions."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n) % 10
    return centres[labels] + 0.1 * torch.randn(n, 16, generator=generator), labels


@pytest.mark.parametrize("kind", KINDS)
def test_the_tiny_training_learns_and_uses_the_planned_rates(kind):
    plan = Plan(kind=kind, peak=0.1, warmup=1, epochs=4, steps_per_epoch=5)
    trial = tiny_training(plan, blobs(200), blobs(50))
    assert trial.accuracies[-1] > 0.9
    assert len(trial.losses) == 20
    assert len(trial.accuracies) == 4
    if kind != "plateau":
        assert trial.rates == lr_curve(plan)


def test_plateau_lowers_the_rate_when_the_validation_loss_does_not_fall():
    trial = tiny_training(Plan(kind="plateau", peak=1.0, warmup=0, epochs=10), blobs(200), blobs(50))
    assert trial.rates[-1] < trial.rates[0]


def test_the_tiny_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    tiny_training(Plan(epochs=3), blobs(60), blobs(20))
    assert torch.equal(before, torch.get_rng_state())
