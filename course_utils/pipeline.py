"""Where the time of a training step goes: measured on a real loop, and as a schedule that is worked out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from course_utils.errors import UsageError


@dataclass(frozen=True)
class StepTimes:
    """Seconds spent over all steps: waiting for data, forward pass with loss, backward pass, optimizer."""

    data_s: float
    forward_s: float
    backward_s: float
    update_s: float
    steps: int

    @property
    def bottleneck(self) -> str:
        """The part that took longest: ``data``, ``forward``, ``backward`` or ``update``."""
        parts = {field.name.removesuffix("_s"): getattr(self, field.name) for field in fields(self)[:4]}
        return max(parts, key=parts.__getitem__)

    def share(self, part: str) -> float:
        """Return the share of one part in the total, 0 to 1."""
        return getattr(self, f"{part}_s") / (self.data_s + self.forward_s + self.backward_s + self.update_s)


def time_steps(
    batches: Iterable[tuple[Tensor, Tensor]],
    model: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    device: str | torch.device = "cpu",
    clock: Callable[[], float] = time.perf_counter,
) -> StepTimes:
    """Train on all batches once and time the parts of each step, in seconds.

    Moving a batch to the device counts as data. An accelerator works behind the program's back, so its queue is waited
    for before each reading of the clock.

    Raises:
        UsageError: if there is no batch.
    """
    device = torch.device(device)

    def now() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return clock()

    spent = [0.0] * 4
    steps, last = 0, now()
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        marks = [last, now()]
        loss = loss_fn(model(x), y)
        marks.append(now())
        optimizer.zero_grad()
        loss.backward()
        marks.append(now())
        optimizer.step()
        marks.append(now())
        spent = [total + after - before for total, before, after in zip(spent, marks, marks[1:], strict=False)]
        steps, last = steps + 1, marks[-1]
    if not steps:
        raise UsageError("There was no batch to time.", expected="at least one (x, y)")
    return StepTimes(*spent, steps=steps)


@dataclass(frozen=True)
class Span:
    """One bar of the timeline: who worked on which batch from when to when, in ms."""

    lane: str  # "worker 0", ..., or "main"
    kind: str  # "load" or "compute"
    batch: int
    start_ms: float
    end_ms: float


def timeline(
    workers: int,
    batch_size: int,
    item_ms: float,
    compute_ms: float,
    n_batches: int = 8,
    prefetch: int = 2,
    cores: int | None = None,
) -> list[Span]:
    """Return the schedule of loading and computing, in ms.

    Batch ``i`` is made by worker ``i % workers``, one after the other. At most ``prefetch * workers`` batches are asked
    for ahead: another one is when one is handed over. Batches are consumed in order. The start of the processes and
    the way between them cost nothing here; both favour workers. With more workers than ``cores``, they share them.

    Args:
        workers: 0 loads in the main process, between the steps.
        batch_size: items per batch.
        item_ms: cost of one item.
        compute_ms: forward, backward and update for one batch.
        n_batches: how many batches to draw.
        prefetch: batches ahead for each worker, torch's ``prefetch_factor``.
        cores: how many can work at once; None for enough.
    """
    load_ms = item_ms * batch_size
    if workers and cores is not None:
        load_ms *= max(1.0, workers / cores)
    spans: list[Span] = []
    if not workers:
        now = 0.0
        for batch in range(n_batches):
            spans.append(Span("main", "load", batch, now, now + load_ms))
            spans.append(Span("main", "compute", batch, now + load_ms, now + load_ms + compute_ms))
            now += load_ms + compute_ms
        return spans
    free, ready, taken = [0.0] * workers, [0.0] * n_batches, [0.0] * n_batches
    now = 0.0

    def load(batch: int, asked_ms: float) -> None:
        worker = batch % workers
        start = max(free[worker], asked_ms)
        free[worker] = ready[batch] = start + load_ms
        spans.append(Span(f"worker {worker}", "load", batch, start, start + load_ms))

    ahead = prefetch * workers
    for batch in range(min(ahead, n_batches)):
        load(batch, 0.0)
    for batch in range(n_batches):
        taken[batch] = max(now, ready[batch])
        if batch + ahead < n_batches:
            load(batch + ahead, taken[batch])
        now = taken[batch] + compute_ms
        spans.append(Span("main", "compute", batch, taken[batch], now))
    return spans


def total_ms(spans: Iterable[Span]) -> float:
    """Return when the last bar ends, in ms."""
    return max(span.end_ms for span in spans)


def steady_step_ms(workers: int, batch_size: int, item_ms: float, compute_ms: float) -> float:
    """Return the time of one step once the pipeline is full, in ms: the slower of the two sides."""
    load_ms = batch_size * item_ms
    return load_ms + compute_ms if workers == 0 else max(load_ms / workers, compute_ms)


def workers_needed(batch_size: int, item_ms: float, compute_ms: float) -> int:
    """Return how many workers keep the main process busy: loading time over computing time, rounded up."""
    return math.ceil(batch_size * item_ms / compute_ms)
