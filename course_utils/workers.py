"""What worker processes of a ``DataLoader`` do: how they start and end, what they draw, how quick they are."""

from __future__ import annotations

import copy
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker  # private; see acting_as_worker

from course_utils.datasets import Draws
from course_utils.errors import UsageError
from course_utils.seeding import preserved_rng, stream

GENERATORS = ("random", "numpy", "torch", "own generator")


def start_methods(*wanted: str) -> tuple[str, ...]:
    """Return those of the wanted ways to start a process that this platform can use; all, if none is named.

    Without ``fork`` on macOS: Python calls it unsafe there, since system libraries may start threads.
    """
    here = [name for name in multiprocessing.get_all_start_methods() if (name, sys.platform) != ("fork", "darwin")]
    return tuple(name for name in (wanted or here) if name in here)


class Epochs:
    """Passes over a loader whose workers `ending_workers` can end.

    torch has no call that ends workers: they end when nothing refers to the iterator that started them any more. So the
    iterator is held in one place, the generator of the pass, and is let go when this is closed.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader: DataLoader | None = copy.copy(loader)  # a persistent iterator is kept by the loader: ours, then
        self._passes: list[Generator[Any, None, None]] = []

    def __iter__(self) -> Iterator[Any]:
        if self.loader is None:
            raise UsageError("This loader's workers have been ended.", fix="iterate inside of the with block")
        one = _one_pass(self.loader)
        self._passes.append(one)
        return one

    def __len__(self) -> int:
        if self.loader is None:
            raise UsageError(
                "This loader's workers have been ended.", fix="ask for the length inside of the with block"
            )
        return len(self.loader)

    def close(self) -> None:
        """Let go of everything that keeps a worker alive."""
        for one in self._passes:
            one.close()
        self._passes.clear()
        self.loader = None


def _one_pass(loader: DataLoader) -> Generator[Any, None, None]:
    iterator = iter(loader)
    try:
        yield from iterator
    finally:
        del iterator, loader  # a traceback may keep this frame


@contextmanager
def ending_workers(loader: DataLoader) -> Iterator[Epochs]:
    """Iterate over a loader as often as you like; at the end of the block its workers are gone, however it ends.

    Without it, an error or an interrupt in the loop keeps them: the traceback holds the loop's iterator.
    """
    epochs = Epochs(loader)
    try:
        yield epochs
    except BaseException as error:
        _clear_loader_frames(error)
        raise
    finally:
        epochs.close()


def _clear_loader_frames(error: BaseException | None) -> None:
    """Empty the frames of the loader in a traceback, and in those before it: their locals keep the iterator."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_globals.get("__name__", "").startswith("torch.utils.data"):
                with suppress(RuntimeError):  # a frame that is still running
                    frame.clear()
        error = error.__cause__ or error.__context__


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
    """Let ``get_worker_info`` answer as in a worker, in this process, and seed the global generators as there.

    For trying code that asks which worker it is in, without starting one: a function from a notebook can't be sent to
    a spawned one. torch has no public way to do that, so this is the one place of the course that sets a private name.
    Afterwards, all is as before.

    Args:
        number: of the worker.
        count: how many there are.
        dataset: the worker's copy of it.
        seed: what torch gives this worker in this epoch, the base seed plus the number; up to 64 bits.
    """
    before = get_worker_info()
    with preserved_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # torch derives another number from the same seed
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
