"""Lesson 08's explorer: latency and throughput of each way to run the model, measured when first asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from course_utils.errors import UsageError
from course_utils.export import Backend, Call, latency_ms, torch_threads
from course_utils.plots import PALETTE
from course_utils.text import human_bytes, table
from course_utils.widgets.panel import Choice, Slider, View, explore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCHES = (1, 4, 16, 64, 256)
MARKERS = "osD^vP"


class Bench:
    """Latencies of several backends on the same images; each combination is measured once.

    Args:
        backends: with different names.
        images: at least as many as the largest batch.
        budget_s: seconds for each measurement.
    """

    def __init__(self, backends: Sequence[Backend], images: Tensor, budget_s: float = 0.03) -> None:
        if not backends or len(images) < max(BATCHES):
            raise UsageError(
                "There is nothing to measure.",
                got=f"{len(backends)} backends, {len(images)} images",
                expected=f"a backend, and {max(BATCHES)} images",
            )
        self.backends, self._images, self._budget_s = tuple(backends), images, budget_s
        self._calls: dict[tuple[str, int], Call] = {}
        self._known: dict[tuple[str, int, int], float] = {}

    def latency_ms(self, backend: Backend, threads: int, batch: int) -> float:
        """Return the median time of one call with ``batch`` images, in milliseconds."""
        key = (backend.name, threads, batch)
        if key not in self._known:
            with torch_threads(threads):
                if key[:2] not in self._calls:
                    self._calls[key[:2]] = backend.make(threads)
                self._known[key] = latency_ms(self._calls[key[:2]], self._images[:batch], budget_s=self._budget_s)
        return self._known[key]


def backend_view(bench: Bench, batch: int, threads: int, limit_ms: float) -> View:
    """Draw latency and images per second against the batch size, for every backend.

    Args:
        batch: the row of numbers shown, one of `BATCHES`.
        threads: cores per call.
        limit_ms: a promise; the table says with which batch each backend keeps it and computes most.
    """
    rows = []
    for backend in bench.backends:
        times = {n: bench.latency_ms(backend, threads, n) for n in BATCHES}
        ms = times[batch]
        best = best_within(times, limit_ms)
        rows.append(
            (backend.name, f"{ms:.2f}", f"{1000 * batch / ms:,.0f}", human_bytes(backend.size_bytes), best or "none")
        )
    header = (f"batch {batch}, threads {threads}", "ms", "images/s", "size", f"best batch in {limit_ms:g} ms")
    return View(_draw(bench, batch, threads, limit_ms), table(rows, header))


def best_within(times_ms: dict[int, float], limit_ms: float) -> int | None:
    """Return the batch with the most images per second whose time fits twice into the limit; None if none does."""
    fitting = [n for n, ms in times_ms.items() if 2 * ms <= limit_ms]
    return max(fitting, key=lambda n: n / times_ms[n], default=None)


def thread_counts() -> list[int]:
    """Return 1, 2, 4, … up to the cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [2**i for i in range(int(math.log2(min(cores, 16))) + 1)]


def explore_backends(backends: Sequence[Backend], images: Tensor) -> None:
    """Show the explorer: batch size, threads, and a limit for the latency.

    Args:
        backends: ways to run one model. images: raw pixels, (N, 1, H, W), at least 256.
    """
    bench = Bench(backends, images)

    def view(batch: int, threads: int, limit_ms: float) -> View:
        return backend_view(bench, batch, threads, limit_ms)

    explore(
        view,
        batch=Choice("batch", list(BATCHES), 16),
        threads=Choice("threads", thread_counts(), 1),
        limit_ms=Slider("limit, ms", 1, 100, 10),
    )


def _draw(bench: Bench, batch: int, threads: int, limit_ms: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, backend in enumerate(bench.backends):
        times = [bench.latency_ms(backend, threads, n) for n in BATCHES]
        look = {"marker": MARKERS[number % len(MARKERS)], "color": PALETTE[number % len(PALETTE)]}
        left.plot(BATCHES, times, label=backend.name, **look)
        right.plot(BATCHES, [1000 * n / ms for n, ms in zip(BATCHES, times, strict=True)], **look)
    left.axhline(limit_ms / 2, color="0.4", linestyle="--", linewidth=1, label="half the limit")
    for axes, title, unit in ((left, "latency", "ms per call"), (right, "throughput", "images per second")):
        axes.axvline(batch, color="0.8", linewidth=6, zorder=0)
        axes.set(xscale="log", title=title, xlabel="images per call", ylabel=unit)
        axes.set_xticks(BATCHES, [str(n) for n in BATCHES])
    left.set_yscale("log")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.minorticks_off()
    figure.legend(loc="outside right center")
    return figure
