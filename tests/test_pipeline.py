"""Step times add up, and the schedule keeps the rules of a DataLoader."""

from __future__ import annotations

import itertools

import pytest
import torch

from course_utils.errors import UsageError
from course_utils.pipeline import StepTimes, steady_step_ms, time_steps, timeline, total_ms, workers_needed

SETTINGS = list(itertools.product((0, 1, 2, 3), (4, 8), (0.5, 2.0), (3.0, 20.0), (1, 2)))


def test_the_parts_are_told_apart_and_add_up():
    ticks = itertools.count()
    model = torch.nn.Linear(3, 2)
    batches = [(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))] * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    times = time_steps(batches, model, torch.nn.functional.cross_entropy, optimizer, clock=lambda: next(ticks))
    assert (times.data_s, times.forward_s, times.backward_s, times.update_s, times.steps) == (3, 3, 3, 3, 3)
    assert times.share("data") == 0.25
    assert not torch.equal(before, model.weight)


def test_bottleneck_is_the_longest_part():
    assert StepTimes(1.0, 5.0, 2.0, 0.1, 4).bottleneck == "forward"
    assert StepTimes(9.0, 5.0, 2.0, 0.1, 4).bottleneck == "data"


def test_no_batch_is_an_error_with_words():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(UsageError, match="no batch to time"):
        time_steps([], model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=1.0))


@pytest.mark.parametrize(("workers", "batch_size", "item_ms", "compute_ms", "prefetch"), SETTINGS)
def test_schedule_is_possible(workers, batch_size, item_ms, compute_ms, prefetch):
    spans = timeline(workers, batch_size, item_ms, compute_ms, 9, prefetch)
    for _, lane in itertools.groupby(sorted(spans, key=lambda s: (s.lane, s.start_ms)), key=lambda s: s.lane):
        lane = list(lane)
        assert all(a.end_ms <= b.start_ms + 1e-9 for a, b in itertools.pairwise(lane))
    ready = {s.batch: s.end_ms for s in spans if s.kind == "load"}
    computed = [s for s in spans if s.kind == "compute"]
    assert [s.batch for s in computed] == list(range(9)) == sorted(ready)
    assert all(s.start_ms >= ready[s.batch] - 1e-9 for s in computed)


def test_steps_take_the_steady_time_once_the_pipeline_is_full():
    for workers, batch_size, item_ms, compute_ms, _ in SETTINGS:
        long = [total_ms(timeline(workers, batch_size, item_ms, compute_ms, n)) for n in (60, 120)]
        assert (long[1] - long[0]) / 60 == pytest.approx(steady_step_ms(workers, batch_size, item_ms, compute_ms))


def test_cores_limit_what_workers_gain():
    assert total_ms(timeline(4, 8, 1.0, 1.0, 40, cores=2)) > total_ms(timeline(4, 8, 1.0, 1.0, 40)) * 1.5


def test_workers_needed():
    assert workers_needed(32, 1.0, 20.0) == 2
    assert workers_needed(32, 1.0, 40.0) == 1
