"""Workers: they end however the block ends, and what they draw is reported as it is."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from course_utils.datasets import Costly, Counting, Numbers
from course_utils.errors import UsageError
from course_utils.seeding import seed_worker
from course_utils.workers import (
    Drawn,
    acting_as_worker,
    ending_workers,
    first_batch_error,
    first_draws,
    live_children,
    start_methods,
    throughput,
)

QUICK = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
needs_fork = pytest.mark.skipif(
    QUICK is None or sys.platform == "darwin", reason="workers that start quickly need fork"
)


@needs_fork
@pytest.mark.parametrize("persistent", [False, True])
def test_no_worker_is_left_after_an_error_in_the_block(persistent):
    before = live_children()
    loader = DataLoader(Counting(40), num_workers=2, persistent_workers=persistent, multiprocessing_context=QUICK)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), ending_workers(loader) as epochs:  # noqa: PT012
            for _ in epochs:
                assert live_children() == before + 2
                raise error
        assert live_children() == before
    with ending_workers(loader) as epochs:  # the loader can be used again
        assert len(epochs) == 40
        assert [len(list(epochs)) for _ in range(2)] == [40, 40]
    assert live_children() == before


@needs_fork
@pytest.mark.parametrize(("persistent", "workers"), [(False, 1), (True, 2)])
def test_no_worker_is_left_after_an_error_inside_of_the_loader_though_its_traceback_is_kept(persistent, workers):
    before = live_children()
    options = {"persistent_workers": persistent, "multiprocessing_context": QUICK}
    with pytest.raises(ValueError) as kept:  # noqa: PT011, PT012, SIM117
        with ending_workers(DataLoader(Failing(40), num_workers=workers, **options)) as epochs:
            for _ in epochs:
                pass
    assert live_children() == before
    assert kept.tb is not None
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as kept:  # noqa: PT012
        slow = Costly(4, 1500, waiting=True)
        with ending_workers(DataLoader(slow, num_workers=workers, **options)) as epochs:
            timer.start()
            next(iter(epochs))
    assert live_children() == before


@needs_fork
def test_no_worker_is_left_though_an_iterator_is_kept_and_then_the_loader_is_closed():
    before = live_children()
    with ending_workers(DataLoader(Counting(9), num_workers=1, multiprocessing_context=QUICK)) as epochs:
        kept = iter(epochs)
        assert [int(next(kept)), int(next(kept))] == [0, 1]
        assert live_children() == before + 1
    assert live_children() == before
    assert list(kept) == []
    with pytest.raises(UsageError, match="have been ended"):
        iter(epochs)
    with pytest.raises(UsageError, match="inside of the with block"):
        len(epochs)


def test_ending_workers_without_workers():
    with ending_workers(DataLoader(Counting(3))) as epochs:
        assert [int(x) for x in epochs] == [0, 1, 2]


@needs_fork
def test_first_draws_are_repeatable_and_tell_what_repeats():
    drawn = first_draws("fork", persistent=False)
    assert drawn == first_draws("fork", persistent=False)
    assert drawn.workers_repeat("own generator")
    assert drawn.epochs_repeat("own generator")
    assert not drawn.workers_repeat("torch")
    seeded = first_draws("fork", persistent=False, worker_init_fn=seed_worker)
    assert not seeded.workers_repeat("own generator")
    assert not seeded.epochs_repeat("own generator")


def test_repeats_are_read_from_the_values():
    drawn = Drawn("spawn", False, {"a": [[1.0, 1.0], [2.0, 3.0]], "b": [[1.0, 2.0], [1.0, 3.0]]})
    assert (drawn.workers_repeat("a"), drawn.epochs_repeat("a")) == (True, False)
    assert (drawn.workers_repeat("b"), drawn.epochs_repeat("b")) == (False, True)


@needs_fork
def test_first_batch_error_is_one_stable_line():
    assert first_batch_error(Counting(2), "fork") == ""
    text = first_batch_error(Failing(2), "fork")
    assert text.startswith("ValueError: Caught ValueError in DataLoader worker process 0")
    assert first_batch_error(Dying(2), "fork") == "RuntimeError: DataLoader worker (pid …) exited unexpectedly"
    assert live_children() == 0


def test_acting_as_worker_puts_everything_back():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    firsts = []
    for seed in (2**62 + 1, 2**62 + 2):
        with acting_as_worker(0, 2, seed=seed):
            firsts.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert all(a != b for a, b in zip(*firsts, strict=True))
    with pytest.raises(ValueError, match="stop"), acting_as_worker(1, 3, "dataset", seed=5):  # noqa: PT012
        info = get_worker_info()
        assert (info.id, info.num_workers, info.dataset, info.seed) == (1, 3, "dataset", 5)
        assert torch.initial_seed() == 5
        torch.rand(3), random.random(), np.random.rand()
        raise ValueError("stop")
    assert get_worker_info() is None
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()


@needs_fork
def test_throughput_reports_each_number_of_workers():
    found = throughput(Costly(64), (0, 1), method=QUICK)
    assert [speed.workers for speed in found] == [0, 1]
    assert all(speed.items_per_s > 0 and speed.start_s > 0 for speed in found)
    assert live_children() == 0


@needs_fork
def test_a_stream_is_read_once_by_two_workers_that_share():
    for sharded, want in ((True, list(range(6))), (False, sorted([*range(6), *range(6)]))):
        loader = DataLoader(Numbers(6, sharded), batch_size=None, num_workers=2, multiprocessing_context=QUICK)
        assert sorted(int(x) for x in loader) == want


def test_start_methods_are_those_of_the_platform():
    assert {"spawn"} <= set(start_methods()) <= set(multiprocessing.get_all_start_methods())
    assert start_methods("spawn", "no such") == ("spawn",)


class Failing(Counting):
    def __getitem__(self, index):
        raise ValueError("no")


class Dying(Counting):
    def __getitem__(self, index):
        os._exit(3)
