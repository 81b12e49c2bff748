"""What the numbers of a watched run say: lengths of gradients, silent units, live tensors, waiting for data."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

# A healthy gradient moves by a factor of 10 or 100: warm-up, a critic that learns, a rare batch.
EXPLODES, ABOVE_FIRST, LEAP = 1000.0, 10.0, 10.0  # times the lowest of late; the first ones; the one before
VANISHES, VANISH_LOOKS, RECOVERS = 1e-5, 16, 10.0  # of the longest gradient; looks in a row; times the start of them
# A rare feature fires once in hundreds of examples.
DEAD_SHARE, DEAD_LOOKS, DEAD_EXAMPLES = 0.9, 10, 500
GRAPHS = 16  # marked steps whose graphs must all be alive
SCANS, SCAN_UPDATES, GROWN_UPDATES, GROWN_BYTES = 8, 30, 200, 2**20
SCAN_SHARE, SCAN_START_S = 0.01, 3.0  # of the time; a scan takes 10 to 100 ms, so a short run has none
STARVED, STARVED_BATCHES, STARVED_S, STARVED_WAIT_S = 0.5, 20, 1.0, 0.002


def explodes(lengths: Iterable[float], first: Iterable[float]) -> tuple[float, float] | None:
    """Return (the lowest length of late, the length now) if gradients explode, else None.

    Either they leap, tenfold twice in a row, or medians of three have risen, so that no single batch decides.
    """
    values, start = [length for length in lengths if length > 0], [length for length in first if length > 0]
    if len(values) < 4 or not start or max(values[-3:]) <= EXPLODES * min(values):
        return None
    leaps = values[-1] > LEAP * values[-2] > LEAP**2 * values[-3]
    if len(values) < 12 and not leaps:
        return None
    triples = [statistics.median(values[i : i + 3]) for i in range(0, len(values) - 2, 3)]
    lowest, before = min(triples[:-1], default=min(values)), statistics.median(values[-6:-3])
    now = values[-1] if leaps else statistics.median(values[-3:])
    is_long = now > EXPLODES * lowest and now > ABOVE_FIRST * statistics.median(start)
    return (lowest, now) if is_long and now > before else None


def vanishes(shares: Iterable[float]) -> float | None:
    """Return the median share of the longest gradient that reaches the first weights if it is next to nothing.

    Args:
        shares: 0 to 1, one for each look, the last one last.
    """
    shares = list(shares)
    if len(shares) < VANISH_LOOKS or max(shares) >= VANISHES:
        return None
    third = len(shares) // 3
    start, end = statistics.median(shares[:third]), statistics.median(shares[-third:])
    return None if end > RECOVERS * start else statistics.median(shares)


def starved(waits: Iterable[tuple[float, float]]) -> tuple[float, float] | None:
    """Return (share of the time spent waiting, median wait in seconds) if a loop is starved of data, else None.

    Args:
        waits: seconds of waiting and of working, for the last batches.
    """
    pairs = list(waits)
    total = sum(wait + work for wait, work in pairs)
    if len(pairs) < STARVED_BATCHES or total < STARVED_S:
        return None
    share, wait = sum(wait for wait, _ in pairs) / total, statistics.median(wait for wait, _ in pairs)
    is_usual = sum(wait > work for wait, work in pairs) > len(pairs) / 2  # not one hiccup
    return (share, wait) if share > STARVED and is_usual and wait >= STARVED_WAIT_S else None


class Units:
    """Which units in front of one layer have been 0 for every example so far.

    Once enough of them have fired, or if the layer gets data, nothing is dead before the next restart: ``rests`` says
    so, and looks need only be counted.
    """

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.rests = False
        self.silent: Tensor | None = None
        self.looks = self.examples = 0

    def add(self, values: Tensor) -> None:
        """Add one look at values whose axis ``axis`` holds the units."""
        others = [axis for axis in range(values.ndim) if axis != self._axis % values.ndim]
        silent = values.sum(others) == 0  # what follows a ReLU has no sign, so nothing cancels
        if self.silent is not None and self.silent.shape != silent.shape:
            self.restart()
        self.silent = silent if self.silent is None else self.silent & silent
        self.looks += 1
        self.examples += len(values)

    def dead(self) -> tuple[int, int] | None:
        """Return (how many are dead, how many there are) if nearly all are; None if not, or if it is too early."""
        if self.silent is None or self.rests:
            return None
        dead, size = int(self.silent.sum()), self.silent.numel()
        self.rests = dead < DEAD_SHARE * size or size == 1
        is_early = self.looks < DEAD_LOOKS or self.examples < DEAD_EXAMPLES
        return None if self.rests or is_early else (dead, size)

    def is_over(self) -> bool:
        """Tell whether it is time for a restart: units may die later."""
        return self.looks >= 2 * DEAD_LOOKS and (self.rests or self.examples >= DEAD_EXAMPLES)


class LiveTensors:
    """Counts the tensors that are alive, rarely: it goes through all objects of the process.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._next_update, self._next_s = SCAN_UPDATES, clock() + SCAN_START_S
        self._counts: deque[tuple[int, int, int]] = deque(maxlen=SCANS)  # update, tensors, bytes

    def look(self, update: int) -> list[tuple[int, int, int]]:
        """Count if it is time; return the counts (update, tensors, bytes) if they have grown for long, else []."""
        began = self._clock()
        if update < self._next_update or began < self._next_s:
            return []
        self._counts.append((update, *live_tensors()))
        ended = self._clock()
        self._next_update, self._next_s = update + SCAN_UPDATES, ended + (ended - began) / SCAN_SHARE
        return list(self._counts) if grows(self._counts) else []


def live_tensors() -> tuple[int, int]:
    """Return (how many tensors Python knows, the bytes of their storages)."""
    n_tensors, storages = 0, {}
    for item in gc.get_objects():
        if issubclass(type(item), Tensor):  # type(): isinstance would ask proxies what they stand for
            n_tensors += 1
            if item.layout == torch.strided:
                storage = item.untyped_storage()
                if storage.device.type != "meta":  # fake tensors say that they are elsewhere; their storages don't
                    storages[storage.data_ptr()] = storage.nbytes()
    return n_tensors, sum(storages.values())


def grows(counts: Iterable[tuple[int, int, int]]) -> bool:
    """Tell whether tensors and bytes rise from each count to the next, for long and by much."""
    counts = list(counts)
    if len(counts) < SCANS:
        return False
    rises = all(b[1] > a[1] and b[2] > a[2] for a, b in itertools.pairwise(counts))
    first, last = counts[0], counts[-1]
    return rises and last[0] - first[0] >= GROWN_UPDATES and last[2] - first[2] > GROWN_BYTES
