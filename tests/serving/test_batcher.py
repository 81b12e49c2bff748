"""Requests share a batch, each gets its own rows, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

from course_utils.errors import CourseError
from course_utils.serving.batcher import Batcher, Busy, Closed
from course_utils.serving.server import service_threads

PATIENCE_S = 20.0


def images(*values):
    return np.array(values, dtype=np.float32).reshape(-1, 1, 1, 1)


def doubled(pixels):
    return 2 * pixels.reshape(len(pixels), -1)


class Gate:
    """A model that waits until it is let through, and remembers the sizes of its batches."""

    def __init__(self):
        self.open, self.entered, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, pixels):
        self.sizes.append(len(pixels))
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return doubled(pixels)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def busy_batcher(gate, **options):
    """Return a batcher whose thread is inside the model, and the request that is there."""
    batcher = Batcher(gate, max_wait_s=0, **options)
    first = batcher.submit(images(0))
    assert gate.entered.wait(PATIENCE_S)
    return batcher, first


def test_each_request_gets_its_own_rows_back(gate):
    batcher, _ = busy_batcher(gate)
    with batcher:
        answers = [batcher.submit(images(*part)) for part in ([1, 2], [3], [4, 5, 6])]
        gate.open.set()
        assert [a.result(PATIENCE_S).ravel().tolist() for a in answers] == [[2, 4], [6], [8, 10, 12]]
        assert gate.sizes == [1, 6]


def test_a_batch_takes_whole_requests_up_to_its_size_in_the_order_of_arrival(gate):
    batcher, _ = busy_batcher(gate, max_batch=4)
    with batcher:
        answers = [batcher.submit(images(*range(n))) for n in (2, 3, 1, 9, 1)]
        gate.open.set()
        wait(answers, PATIENCE_S)
        assert gate.sizes == [1, 2, 4, 9, 1]  # 9 is more than a batch: alone


def test_a_batch_waits_for_company_but_not_for_long():
    with Batcher(doubled, max_batch=2, max_wait_s=PATIENCE_S) as batcher:
        answers = [batcher.submit(images(1)), batcher.submit(images(2))]  # full: at once
        wait(answers, PATIENCE_S / 2)
        assert all(a.done() for a in answers)
        assert batcher.counts.largest == 2
    with Batcher(doubled, max_batch=64, max_wait_s=0.01) as batcher:
        assert batcher.submit(images(1)).result(PATIENCE_S).item() == 2  # alone, when the time is up


def test_counts_say_what_was_done(gate):
    batcher, first = busy_batcher(gate)
    with batcher:
        others = [batcher.submit(images(1, 2)), batcher.submit(images(3))]
        gate.open.set()
        wait([first, *others], PATIENCE_S)
    counts = batcher.counts
    assert (counts.requests, counts.images, counts.batches, counts.largest) == (3, 4, 2, 3)


def test_a_full_queue_refuses(gate):
    batcher, _ = busy_batcher(gate, max_waiting=3)
    with batcher:
        batcher.submit(images(1, 2, 3))
        with pytest.raises(Busy, match="Too many"):
            batcher.submit(images(4))
        gate.open.set()


def test_a_request_larger_than_the_queue_is_taken_when_nobody_waits():
    with Batcher(doubled, max_waiting=1) as batcher:
        assert len(batcher.submit(images(1, 2, 3)).result(PATIENCE_S)) == 3


def test_a_request_that_breaks_the_model_breaks_nobody_elses(gate):
    def fragile(pixels):
        if (pixels == 13).any():
            raise ValueError("thirteen")
        return gate(pixels)

    batcher, _ = busy_batcher(gate)
    batcher.predict = fragile
    with batcher:
        good, bad, also_good = (batcher.submit(images(v)) for v in (1, 13, 2))
        gate.open.set()
        assert good.result(PATIENCE_S).item() == 2
        assert also_good.result(PATIENCE_S).item() == 4
        with pytest.raises(ValueError, match="thirteen"):
            bad.result(PATIENCE_S)


@pytest.mark.parametrize("error", [SystemExit(1), MemoryError("none left")])
def test_whatever_the_model_raises_the_thread_lives_on(error):
    def failing(pixels):
        if pixels[0] == 0:
            raise error
        return doubled(pixels)

    with Batcher(failing) as batcher:
        with pytest.raises(type(error)):
            batcher.submit(images(0)).result(PATIENCE_S)
        assert batcher.submit(images(1)).result(PATIENCE_S).item() == 2


@pytest.mark.parametrize("shape", [(1, 2), (2,), (3, 2)])
def test_a_model_with_a_fixed_batch_is_told(shape):
    with Batcher(lambda pixels: np.zeros(shape)) as batcher, pytest.raises(CourseError, match="one row for each image"):
        batcher.submit(images(1, 2)).result(PATIENCE_S)


def test_a_cancelled_request_is_not_computed(gate):
    batcher, _ = busy_batcher(gate)
    with batcher:
        cancelled, kept = batcher.submit(images(1)), batcher.submit(images(2))
        assert cancelled.cancel()
        gate.open.set()
        assert kept.result(PATIENCE_S).item() == 4
        assert gate.sizes == [1, 1]


def test_closing_computes_what_waits_and_takes_nothing_new(gate):
    batcher, first = busy_batcher(gate)
    second = batcher.submit(images(2))
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while batcher.is_open:
        time.sleep(0.001)
    with pytest.raises(Closed):
        batcher.submit(images(3))
    gate.open.set()
    closing.join(PATIENCE_S)
    assert (first.result(0).item(), second.result(0).item()) == (0, 4)
    assert service_threads() == []


def test_closing_in_vain_tells_those_who_wait(gate):
    batcher, _ = busy_batcher(gate)
    second = batcher.submit(images(2))
    batcher.close(timeout_s=0.05)
    with pytest.raises(Closed, match="ended before"):
        second.result(0)


def test_an_error_inside_the_block_ends_the_thread_too():
    with pytest.raises(KeyboardInterrupt), Batcher(doubled):
        raise KeyboardInterrupt
    assert service_threads() == []
