"""What sending gradients costs: a model of buckets, network and overlap, and its fit to measured times.

A ring all-reduce over n ranks takes 2 (n - 1) steps, and in each of them every rank sends the n-th part of the data. So
a bucket of b bytes takes 2 (n - 1) · (latency + b / n / bandwidth). Backward makes gradients from the last layer to
the first; a bucket leaves when its last gradient is there, and buckets travel one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from course_utils.errors import UsageError

MB = 1e6  # bytes


@dataclass(frozen=True)
class Link:
    """A network between ranks: seconds until a message's first byte arrives, and bytes per second after that."""

    latency_s: float
    bytes_per_s: float

    def all_reduce_s(self, size_bytes: float, n_ranks: int) -> float:
        """Return the seconds of a ring all-reduce of ``size_bytes`` over ``n_ranks``; 0 for one rank."""
        return 2 * (n_ranks - 1) * (self.latency_s + size_bytes / n_ranks / self.bytes_per_s)


def fit_link(sizes_bytes: Sequence[float], seconds: Sequence[float], n_ranks: int) -> Link:
    """Return the link that explains measured all-reduce times best, in relative error.

    Args:
        sizes_bytes: of the tensors, at least two different ones.
        seconds: the time of each all-reduce.
        n_ranks: how many ranks took part, at least 2.

    Raises:
        UsageError: if there is nothing to fit.
    """
    if n_ranks < 2 or len(set(sizes_bytes)) < 2 or len(sizes_bytes) != len(seconds):
        raise UsageError(
            "A link can't be fitted to these times.",
            got=f"{len(sizes_bytes)} sizes, {len(seconds)} times, {n_ranks} ranks",
            expected="at least two sizes, a time for each, and two ranks",
        )
    times, sizes = np.asarray(seconds, dtype=float), np.asarray(sizes_bytes, dtype=float)
    steps = 2 * (n_ranks - 1)
    # Divided by the time: an error of 10 % counts the same for a small tensor as for a large one.
    columns = np.stack([np.full_like(times, steps), steps * sizes / n_ranks], axis=1) / times[:, None]
    (latency, per_byte), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    if latency < 0:
        latency, per_byte = 0.0, (columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
    if per_byte <= 0:
        latency, per_byte = (columns[:, 0].sum() / (columns[:, 0] ** 2).sum()), 1e-15
    return Link(float(latency), float(1 / per_byte))


def plan_buckets(sizes_bytes: Sequence[int], cap_bytes: float) -> list[list[int]]:
    """Return the buckets as lists of places in ``sizes_bytes``, in the order in which they are filled.

    Backward reaches the last parameter first, so the first bucket begins with it. A bucket is closed when it holds
    ``cap_bytes`` or more.
    """
    buckets: list[list[int]] = []
    current: list[int] = []
    total = 0
    for place in reversed(range(len(sizes_bytes))):
        current.append(place)
        total += sizes_bytes[place]
        if total >= cap_bytes:
            buckets.append(current)
            current, total = [], 0
    return [*buckets, current] if current else buckets


@dataclass(frozen=True)
class Span:
    """What one lane does for a while. ``lane`` is ``backward`` or ``network``; ``bucket`` is a number from 0."""

    lane: str
    bucket: int
    start_s: float
    end_s: float


def backward_spans(
    sizes_bytes: Sequence[int], backward_s: Sequence[float], cap_bytes: float, link: Link, n_ranks: int
) -> list[Span]:
    """Return who works when in one backward pass, bucket by bucket.

    Args:
        sizes_bytes: bytes of each layer's gradients, in the order of the forward pass.
        backward_s: seconds that backward takes for each layer.
        cap_bytes: at which a bucket is closed.
        link: the network.
        n_ranks: how many ranks.
    """
    spans: list[Span] = []
    now = free = 0.0  # backward is here; the network is free from there on
    for number, bucket in enumerate(plan_buckets(sizes_bytes, cap_bytes)):
        start = now
        now += sum(backward_s[place] for place in bucket)
        spans.append(Span("backward", number, start, now))
        begin = max(now, free)
        free = begin + link.all_reduce_s(sum(sizes_bytes[place] for place in bucket), n_ranks)
        spans.append(Span("network", number, begin, free))
    return spans


def backward_seconds(
    sizes_bytes: Sequence[int], backward_s: Sequence[float], cap_bytes: float, link: Link, n_ranks: int
) -> float:
    """Return how long backward takes until every gradient has arrived; see `backward_spans`."""
    return max((span.end_s for span in backward_spans(sizes_bytes, backward_s, cap_bytes, link, n_ranks)), default=0.0)
