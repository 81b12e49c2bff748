"""Dynamic batching: requests that arrive together are computed together, and each gets its own rows back."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from course_utils.errors import CourseError

Predict = Callable[[np.ndarray], np.ndarray]  # (N, 1, H, W) -> (N, C)
CLOSE_TIMEOUT_S = 5.0


class Busy(CourseError):
    """The queue is full: more is asked for than this machine computes."""


class Closed(CourseError):
    """The batcher has ended, or is ending."""


@dataclass(frozen=True)
class Counts:
    """What a batcher has done so far.

    Attributes:
        requests: that were answered, well or with an error.
        images: in those.
        batches: calls of the model.
        largest: images in the largest batch.
    """

    requests: int = 0
    images: int = 0
    batches: int = 0
    largest: int = 0


@dataclass
class _Waiting:
    images: np.ndarray
    answer: Future
    since: float


class Batcher:
    """One thread that calls the model, with as many waiting requests at a time as fit.

    A batch starts when ``max_batch`` images wait, or when the oldest request has waited ``max_wait_s``. While the model
    computes, new requests gather, so under load the wait costs nothing.

    Args:
        predict: called in the batcher's own thread, with arrays (N, 1, H, W); returns one row for each image.
        max_batch: images per call. A request with more is computed alone.
        max_wait_s: seconds that a request waits for company; 0 takes only those who are there already.
        max_waiting: images in the queue; beyond that, requests are refused.
    """

    def __init__(
        self, predict: Predict, *, max_batch: int = 64, max_wait_s: float = 0.002, max_waiting: int = 512
    ) -> None:
        self.predict, self.max_batch, self.max_wait_s, self.max_waiting = predict, max_batch, max_wait_s, max_waiting
        self.counts = Counts()
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="course-batcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._is_closing

    def submit(self, images: np.ndarray) -> Future:
        """Put a request into the queue; the future gives its rows, shape (N, C), or the model's error.

        Args:
            images: shape (N, 1, H, W), N at least 1.

        Raises:
            Busy: if the queue is full. Closed: if the batcher has ended.
        """
        waiting = _Waiting(images, Future(), time.monotonic())
        with self._changed:
            if not self.is_open:
                raise Closed("The service is ending.", fix="Start it again, or ask another one.")
            if self._queue and self._n_waiting() + len(images) > self.max_waiting:
                raise Busy("Too many requests are waiting.", fix="Try again later.")
            self._queue.append(waiting)
            self._changed.notify_all()
        return waiting.answer

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Take nothing new, compute what waits, end the thread. What is not done by then gets a `Closed` error."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        try:
            self._thread.join(timeout_s)
        finally:  # an interrupt must not leave anybody waiting either
            with self._changed:
                left = list(self._queue)
                self._queue.clear()
            for waiting in left:
                _fail(waiting.answer, Closed("The service ended before this request was computed."))

    def _n_waiting(self) -> int:
        return sum(len(waiting.images) for waiting in self._queue)

    def _work(self) -> None:
        while requests := self._gather():
            requests = [one for one in requests if one.answer.set_running_or_notify_cancel()]
            if requests:
                self._answer(requests)

    def _gather(self) -> list[_Waiting]:
        """Return the next batch's requests in the order in which they came; nothing at the end."""
        with self._changed:
            while not self._queue:
                if self._is_closing:
                    return []
                self._changed.wait()
            # From its arrival, not from now: a request that waited for the last batch has waited enough.
            end = self._queue[0].since + self.max_wait_s
            while self._n_waiting() < self.max_batch and not self._is_closing:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch: list[_Waiting] = []
            count = 0
            while self._queue and (not batch or count + len(self._queue[0].images) <= self.max_batch):
                batch.append(self._queue.popleft())
                count += len(batch[-1].images)
            return batch

    def _answer(self, requests: list[_Waiting]) -> None:
        sizes = [len(one.images) for one in requests]
        try:
            rows = self._predicted(np.concatenate([one.images for one in requests]))
        except BaseException as error:  # whatever the model raises belongs to those who asked, and ends nobody else
            if len(requests) == 1:
                _fail(requests[0].answer, error)
            else:
                for one in requests:  # one request may be the reason; the others must not suffer for it
                    self._answer([one])
                return
        else:
            for one, part in zip(requests, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
                one.answer.set_result(part)
        counts = self.counts
        self.counts = replace(counts, requests=counts.requests + len(requests), images=counts.images + sum(sizes))

    def _predicted(self, images: np.ndarray) -> np.ndarray:
        counts = self.counts
        self.counts = replace(counts, batches=counts.batches + 1, largest=max(counts.largest, len(images)))
        rows = np.asarray(self.predict(images))
        if rows.ndim != 2 or len(rows) != len(images):
            raise CourseError(
                "The model did not answer with one row for each image.",
                got=f"shape {rows.shape} for {len(images)} images",
                expected=f"({len(images)}, C)",
                fix="export the model with a dynamic batch axis",
            )
        return rows


def _fail(answer: Future, error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
