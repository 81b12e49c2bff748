"""What ``doctor.watch`` costs when nothing is wrong: ``python -m benchmarks.watching``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.results import Result, as_text
from course_utils import doctor

GOAL = 1.05  # times the bare step
BATCH = 64
BATCHES = 25  # that are gone through again and again


@dataclass
class Loop:
    """One model with its optimizer and its batches, trained on and on."""

    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train(self, batches: object) -> float:
        """Train on all batches; return the seconds of the processor, which other programs disturb least."""
        began = time.thread_time()
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return time.thread_time() - began


def digits_mlp() -> Loop:
    """64 inputs, two hidden layers of 256, 10 classes: a model of the course's size."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return Loop(nn.Sequential(*layers), _batches(64))


def small_cnn() -> Loop:
    """Two convolutions on 28x28 images."""
    torch.manual_seed(0)
    convolutions = (nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
    return Loop(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 10)), _batches(1, 28, 28))


def _batches(*shape: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(BATCH, *shape), torch.randint(10, (BATCH,))) for _ in range(BATCHES)]


def watching(repeats: int) -> Iterator[Result]:
    """A watched step beside a bare one, in the same process, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, make, steps in (("MLP 64-256-256-10", digits_mlp, 1000), ("small CNN", small_cnn, 100)):
            found = ratios(make, steps, repeats)
            yield Result(name=f"doctor.watch: step of the {name}, batch {BATCH}", unit="× bare", runs=found, goal=GOAL)
    finally:
        torch.set_num_threads(threads)


def ratios(make: Callable[[], Loop], steps: int, repeats: int) -> list[float]:
    """Return processor seconds of watched runs over those of bare ones.

    The runs take turns, and so does which of a pair comes first. A watched run has the watcher's begin and end in it.
    """
    bare, watched = make(), make()
    batches = bare.batches * (steps // len(bare.batches))
    bare.train(bare.batches)
    with doctor.watch(watched.model) as first:  # what is imported once
        watched.train(first(bare.batches))
    found = []
    for pair in range(repeats):
        seconds = {}
        for name in ("bare", "watched") if pair % 2 else ("watched", "bare"):
            if name == "bare":
                seconds[name] = bare.train(batches)
            else:
                began = time.thread_time()
                with doctor.watch(watched.model) as watching:
                    watched.train(watching(batches))
                seconds[name] = time.thread_time() - began
        found.append(seconds["watched"] / seconds["bare"])
    return found


if __name__ == "__main__":
    print(as_text(list(watching(9))))
