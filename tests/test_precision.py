"""Number formats against the bits themselves, autocast against what runs, and a scaler's run against its rules."""

from __future__ import annotations

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
import torch

from course_utils.data import load_digits8
from course_utils.errors import UsageError
from course_utils.precision import (
    FORMATS,
    draw_ranges,
    draw_spacings,
    dtype_under_autocast,
    lost_share,
    number_format,
    scaled_training,
    spacing,
)


@pytest.mark.parametrize(
    ("dtype", "exponent", "fraction"), [(torch.float16, 5, 10), (torch.bfloat16, 8, 7), (torch.float32, 8, 23)]
)
def test_bits_are_those_of_the_formats(dtype, exponent, fraction):
    facts = number_format(dtype)
    assert (facts.exponent_bits, facts.fraction_bits) == (exponent, fraction)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_smallest_number_is_kept_and_less_than_half_of_it_is_not(dtype):
    smallest = torch.tensor(number_format(dtype).smallest, dtype=torch.float64)
    assert smallest.to(dtype).double() == smallest
    assert (0.49 * smallest).to(dtype) == 0


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("value", [1.0, 3.0, 1000.0, 0.1, 1e-3])
def test_adding_the_spacing_reaches_the_next_number_and_a_third_of_it_does_not(dtype, value):
    start = torch.tensor(value, dtype=torch.float64).to(dtype).double()
    step = spacing(start.item(), dtype)
    assert (start + step).to(dtype).double() == start + step
    assert (start + step / 3).to(dtype).double() == start


def test_below_the_smallest_normal_number_the_spacing_stays():
    assert spacing(0.0, torch.float16) == spacing(1e-7, torch.float16) == number_format(torch.float16).smallest


def test_whole_numbers_have_no_number_format():
    with pytest.raises(UsageError, match="no floating format"):
        number_format(torch.int64)


def test_lost_share_counts_what_was_not_zero_before():
    values = torch.tensor([0.0, 1e-9, 1e-8, 1e-3])
    assert lost_share(values, torch.float16) == pytest.approx(2 / 3)
    assert lost_share(values, torch.float16, scale=2.0**16) == 0
    assert lost_share(values, torch.bfloat16) == 0
    assert lost_share(torch.zeros(3), torch.float16) == 0


def test_autocast_is_asked_by_running():
    a = torch.ones(2, 2)
    assert dtype_under_autocast(lambda: a @ a, torch.bfloat16) == "bfloat16"
    assert dtype_under_autocast(lambda: a + a, torch.bfloat16) == "float32"
    assert dtype_under_autocast(lambda: a @ torch.ones(3, 3), torch.bfloat16).startswith("refused: ")
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture(scope="module")
def digits():
    return load_digits8().train.as_batch()


def test_the_scale_halves_after_an_overflow_and_doubles_after_enough_good_steps(digits):
    history = scaled_training(*digits, init_scale=2.0**24, growth_interval=4, steps=30)
    assert history[0].skipped
    good = 0
    for step, after in pairwise(history):
        good = 0 if step.skipped else good + 1
        expected = step.scale / 2 if step.skipped else step.scale * (2 if good == 4 else 1)
        good = 0 if good == 4 else good
        assert after.scale == expected
    assert {step.skipped for step in history} == {True, False}


def test_a_skipped_step_leaves_the_weights_and_other_steps_learn(digits):
    history = scaled_training(*digits, init_scale=2.0**16, steps=60)
    assert not any(step.skipped for step in history)
    assert history[-1].loss < 0.6 * history[0].loss


def test_small_gradients_are_lost_without_a_scale_and_kept_with_one(digits):
    def lost(scale: float) -> float:
        return scaled_training(*digits, init_scale=scale, loss_factor=1e-6, steps=3)[0].lost

    assert lost(1.0) > 0.5
    assert lost(2.0**24) < 0.05


def test_ranges_and_spacings_are_drawn():
    figure, (left, right) = plt.subplots(1, 2)
    assert len(draw_ranges(left).patches) == 2 * len(FORMATS)
    assert len(draw_spacings(right).lines) == len(FORMATS)
    plt.close(figure)
