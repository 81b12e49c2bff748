"""Lesson 08's explorer: what it shows was measured, once for each combination, and it suggests what fits."""

from __future__ import annotations

import time

import pytest
import torch

from course_utils.errors import UsageError
from course_utils.export import Backend
from course_utils.widgets import export as explorer
from course_utils.widgets.export import BATCHES, Bench, backend_view, best_within, explore_backends, thread_counts

IMAGES = torch.zeros(256, 1, 2, 2)


class Model:
    """Takes 1 ms for a call, and remembers with how many threads PyTorch ran."""

    def __init__(self):
        self.made, self.calls, self.threads = [], 0, set()

    def make(self, threads):
        self.made.append(threads)
        return self

    def __call__(self, images):
        self.calls += 1
        self.threads.add(torch.get_num_threads())
        time.sleep(0.001)
        return images.flatten(1)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def bench(model):
    return Bench([Backend("slow", model.make, 2048), Backend("other", Model().make, 1024)], IMAGES, budget_s=0.001)


def test_a_combination_is_measured_once(bench, model):
    first = bench.latency_ms(bench.backends[0], 1, 4)
    calls = model.calls
    assert bench.latency_ms(bench.backends[0], 1, 4) == first
    assert model.calls == calls
    assert 1 <= first < 200
    assert model.made == [1]


def test_threads_are_set_for_the_measurement_and_put_back(bench, model):
    before = torch.get_num_threads()
    bench.latency_ms(bench.backends[0], before + 1, 1)
    assert model.threads == {before + 1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("batch", BATCHES)
def test_every_setting_draws_and_tells_all_backends(bench, batch):
    view = backend_view(bench, batch, 1, 50)
    assert f"batch {batch}, threads 1" in view.text
    assert "slow" in view.text
    assert "1.0 KiB" in view.text
    left, right = view.picture.axes
    assert len(left.lines) == 2 + 2  # two backends, the limit, the chosen batch
    assert len(right.lines) == 2 + 1


def test_the_suggestion_keeps_the_limit_twice():
    times = {1: 1.0, 16: 4.0, 64: 20.0}
    assert best_within(times, 100) == 16
    assert best_within(times, 2) == 1
    assert best_within(times, 1.9) is None


def test_a_limit_that_nobody_keeps_is_said(bench):
    assert "none" in backend_view(bench, 1, 1, 1).text


def test_thread_counts_begin_at_one_and_end_at_the_cores(monkeypatch):
    monkeypatch.setattr(explorer.os, "sched_getaffinity", lambda _pid: set(range(6)), raising=False)
    assert thread_counts() == [1, 2, 4]


@pytest.mark.parametrize(("backends", "images"), [([], IMAGES), ([Backend("a", Model().make, 1)], IMAGES[:5])])
def test_nothing_to_measure_is_refused(backends, images):
    with pytest.raises(UsageError, match="nothing to measure"):
        Bench(backends, images)


def test_starting_values_show_text_without_a_front_end(capsys, model):
    explore_backends([Backend("slow", model.make, 2048)], IMAGES)
    assert "best batch in 10 ms" in capsys.readouterr().out
