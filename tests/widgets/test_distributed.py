"""Lesson 07's explorer: every setting draws, and the numbers are those of the model."""

from __future__ import annotations

import itertools

import pytest

from course_utils.scaling import MB, Link, backward_seconds, plan_buckets
from course_utils.widgets import distributed as explorer
from course_utils.widgets.distributed import CAPS_MB, LAYERS_MB, LINKS, bucket_view


@pytest.mark.parametrize(("cap", "name"), list(itertools.product((0.2, 25, 100), LINKS)))
def test_every_setting_tells_the_time_of_the_model(cap, name):
    view = bucket_view(cap, LINKS[name], 8, 150)
    sizes = [round(size * MB) for size in LAYERS_MB]
    total = backward_seconds(sizes, [0.15 / len(sizes)] * len(sizes), cap * MB, LINKS[name], 8)
    assert f"{1000 * total:.1f} ms" in view.text
    assert f"{len(plan_buckets(sizes, cap * MB))}" in view.text
    assert len(view.picture.axes) == 2
    assert len(view.picture.axes[1].lines[0].get_xdata()) == len(CAPS_MB)


def test_one_rank_has_nothing_to_hide():
    text = bucket_view(25, LINKS["1 Gbit/s Ethernet"], 1, 100).text
    assert "nothing to hide" in text
    assert "100.0 ms" in text


def test_layers_are_as_large_as_the_text_says():
    assert sum(LAYERS_MB) == pytest.approx(100)


@pytest.mark.parametrize("measured", [None, Link(1e-4, 1e9)])
def test_starting_values_show_text_without_a_front_end(capsys, measured):
    explorer.explore_buckets(measured)
    assert "until all gradients are there" in capsys.readouterr().out
