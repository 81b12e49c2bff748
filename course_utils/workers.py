"""What worker processes of a ``DataLoader`` do: how they start and end, what they draw, how quick they are."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as torch_worker

from course_utils.datasets import Draws
from course_utils.seeding import preserved_rng, stream

GENERATORS = ("random", "numpy", "torch", "own generator")


def start_methods(*wanted: str) -> tuple[str, ...]:
    """Return those of the wanted ways to start a process that this platform can use; all, if none is named.

    Without ``fork`` on macOS: Python calls it unsafe there, since system libraries may start threads.
    """
    here = [name for name in multiprocessing.get_all_start_methods() if (name, sys.platform) != ("fork", "darwin")]
    return tuple(name for name in (wanted or here) if name in here)


class Epochs:
    """A loader whose iterators are remembered, so that `ending_workers` can end what they started."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.iterators: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.loader)
        self.iterators.append(iterator)
        return iterator

    def __len__(self) -> int:
        return len(self.loader)


@contextmanager
def ending_workers(loader: DataLoader) -> Iterator[Epochs]:
    """Iterate over a loader as often as you like; at the end of the block its workers are gone, however it ends.

    Without it, an error or an interrupt in the loop keeps them: the traceback holds the loop's iterator.
    """
    epochs = Epochs(loader)
    try:
        yield epochs
    finally:
        for iterator in epochs.iterators:
            shut_down = getattr(iterator, "_shutdown_workers", None)  # torch has no public call for it
            if shut_down is not None:
                shut_down()
        if getattr(loader, "_iterator", None) in epochs.iterators:
            loader._iterator = None  # a persistent one: the next pass starts new workers


@dataclass(frozen=True)
class Drawn:
    """The first draws of two workers in two epochs for one way of starting, ``values[generator][epoch][worker]``."""

    method: str
    persistent: bool
    values: dict[str, list[list[float]]]

    def workers_repeat(self, generator: str) -> bool:
        """Tell whether the two workers drew the same in some epoch."""
        return any(len(set(epoch)) < len(epoch) for epoch in self.values[generator])

    def epochs_repeat(self, generator: str) -> bool:
        """Tell whether a worker drew in the second epoch what it drew in the first."""
        first, second = self.values[generator]
        return any(a == b for a, b in zip(first, second, strict=True))


def first_draws(method: str, persistent: bool, seed: int = 0, worker_init_fn: Any = None) -> Drawn:
    """Start two workers, run two epochs, and report the first draw of each from four generators.

    Nothing is seeded in the workers but what torch or ``worker_init_fn`` seeds there.
    """
    loader = DataLoader(
        Draws(2),
        batch_size=1,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=persistent,
        generator=stream(seed, "draws"),
        worker_init_fn=worker_init_fn,
        collate_fn=_only,
    )
    with ending_workers(loader) as epochs:
        runs = [list(epochs) for _ in range(2)]  # batches come in order: the first is worker 0's, the second worker 1's
    values = {name: [[item[name] for item in run] for run in runs] for name in GENERATORS}
    return Drawn(method, persistent, values)


def first_batch_error(dataset: Dataset, method: str = "spawn", timeout_s: float = 60) -> str:
    """Ask one worker for one batch; return the error in one line without process numbers, or '' if it came.

    The time limit turns a worker that hangs into an error.
    """
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context=method, timeout=timeout_s)
    with _silent_stderr(), ending_workers(loader) as epochs:
        try:
            next(iter(epochs))
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            text = re.sub(r"[(]pid[^0-9]*[0-9, ]+[)]", "(pid …)", text)
            head, found, _ = text.partition("exited unexpectedly")  # the signal and the queue word it differently
            return f"{type(error).__name__}: {head}{found}"
    return ""


@contextmanager
def acting_as_worker(number: int, count: int, dataset: Any = None, seed: int = 0) -> Iterator[None]:
    """Let ``get_worker_info`` answer as in a worker, in this process, and seed torch's generator as torch does there.

    For trying code that asks which worker it is in, without starting one. Afterwards, all is as before.

    Args:
        number: of the worker.
        count: how many there are.
        dataset: the worker's copy of it.
        seed: what torch gives this worker in this epoch, the base seed plus the number.
    """
    before = torch_worker._worker_info
    with preserved_rng():
        torch.manual_seed(seed)
        torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)
        try:
            yield
        finally:
            torch_worker._worker_info = before


@dataclass(frozen=True)
class Speed:
    """Items per second of one loader, the start of its workers apart."""

    workers: int
    start_s: float  # until the first batch
    items_per_s: float  # from the first batch of the second epoch on


def throughput(
    dataset: Dataset, workers: Sequence[int], batch_size: int = 32, method: str | None = None
) -> list[Speed]:
    """Time one epoch of a loader for each number of workers, after a first epoch that starts them."""
    found = []
    for count in workers:
        options = {"persistent_workers": True, "multiprocessing_context": method} if count else {}
        loader = DataLoader(dataset, batch_size=batch_size, num_workers=count, **options)
        with ending_workers(loader) as epochs:
            started = time.perf_counter()
            for number, _ in enumerate(epochs):
                if number == 0:
                    start_s = time.perf_counter() - started
            began = time.perf_counter()
            for _ in epochs:
                pass
            spent = time.perf_counter() - began
        found.append(Speed(count, start_s, len(dataset) / max(spent, 1e-9)))  # type: ignore[arg-type]
    return found


def live_children() -> int:
    """Return how many processes that this one started are still alive."""
    return len(multiprocessing.active_children())


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Throw away what this process and its children write to file descriptor 2: a dying worker's traceback."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _only(batch: list[Any]) -> Any:
    return batch[0]
