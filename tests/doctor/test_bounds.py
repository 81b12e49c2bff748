"""Loaders without an end, steps that take minutes: an examination is short, whatever it is given."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from course_utils import doctor
from course_utils.doctor.deadline import Budget
from tests.doctor.programs import batches, mlp, regression, setup

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES_AT_MOST = 30_000  # that an examination asks a loader for; without a bound it would never end


class Clock:
    """A clock that goes on only when a step runs."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    counting = Clock()
    monkeypatch.setattr(time, "perf_counter", counting)
    return counting


def slow(seconds: float, clock: Clock, **more: Any) -> dict[str, Any]:
    """Return a set-up whose steps take so long on the counting clock."""
    x, y = regression(256)

    def step(model: nn.Module, batch: Any, loss_fn: Any, optimizer: Any) -> Any:
        clock.now += seconds
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    def train(model: nn.Module, loader: Any, loss_fn: Any, optimizer: Any, epochs: int = 1) -> None:
        for _ in range(epochs):
            for batch in loader:
                step(model, batch, loss_fn, optimizer)

    return setup(mlp(), batches(x, y, 4), step=step, **({"train": train} if more.get("with_loop") else {}))


@pytest.mark.parametrize("with_loop", [False, True], ids=["steps", "loop"])
@pytest.mark.parametrize("seconds", [0.01, 0.5, 2.0])
def test_an_examination_takes_no_longer_than_twenty_steps_and_two_seconds(seconds, with_loop, clock):
    started = clock.now
    report = doctor.examine(**slow(seconds, clock, with_loop=with_loop))
    assert clock.now - started <= 2 + 20 * seconds, report
    assert report.is_healthy, report


def test_the_time_is_bounded_also_if_steps_take_minutes(clock):
    started = clock.now
    doctor.examine(**slow(90.0, clock), limit_s=60)
    assert clock.now - started <= 60 + 3 * 90  # a step that has begun can't be ended by a clock that counts


def test_a_step_that_takes_minutes_is_ended():
    x, y = regression()
    started = time.perf_counter()
    report = doctor.examine(**setup(mlp(), batches(x, y), step=lambda *_: time.sleep(300)), limit_s=0.6)
    assert time.perf_counter() - started < 30
    assert [finding.code for finding in report.findings] == ["failure.too-slow"]


def test_a_slow_validation_and_a_slow_loader_are_ended():
    def endless():
        while True:
            time.sleep(0.05)
            yield torch.randn(4, 4), torch.randn(4, 1)

    started = time.perf_counter()
    doctor.examine(**setup(mlp(), endless(), evaluate=lambda model: time.sleep(300)), limit_s=1.0)
    assert time.perf_counter() - started < 30


def test_the_budget_is_two_seconds_and_twenty_steps():
    budget = Budget(60.0)
    assert budget.total_s == 60.0
    budget.step_s = 0.1
    assert budget.total_s == pytest.approx(4.0)
    budget.step_s = 100.0
    assert budget.total_s == 60.0


class Endless:
    """A loader that never ends, and counts what it gave."""

    def __init__(self) -> None:
        self.given = [0]

    def __iter__(self):
        for number in itertools.count():
            self.given[0] += 1
            if self.given[0] > 10 * BATCHES_AT_MOST:
                raise AssertionError("this loader was never going to end")
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(8, 4, generator=generator)
            yield x, x.sum(1, keepdim=True)


class Stream(IterableDataset):
    def __iter__(self):
        for number in itertools.count():
            x = torch.full((4,), float(number % 7))
            yield x, x[:1]


class Huge(Dataset):
    """A thousand million examples."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int):
        x = torch.full((4,), (index % 97) / 97)
        return x, x[:1]


def _whole_epochs(model, loader, loss_fn, optimizer):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss_fn(model(inputs), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("with_loop", [False, True], ids=["steps", "loop"])
@pytest.mark.parametrize(
    "make", [Endless, lambda: DataLoader(Stream(), 8), lambda: DataLoader(Huge(), 8)],
    ids=["endless loader", "endless stream", "huge data set"],
)  # fmt: skip
def test_endless_and_huge_loaders_are_sampled(make, with_loop):
    loader = make()

    def evaluate(model):
        return sum(float((model(x) - y).abs().mean()) for x, y in itertools.islice(loader, 4))

    parts = setup(mlp(), loader, evaluate=evaluate, val_loader=loader)
    report = doctor.examine(**(parts | {"train": _whole_epochs} if with_loop else parts), limit_s=10)
    assert report.is_healthy, report
    assert report.seconds < 10
    if isinstance(loader, Endless):
        assert loader.given[0] == 0  # put back, as everything


def test_batches_asked_of_an_endless_loader_are_few():
    class Counting(Endless):
        def __iter__(self):
            for batch in super().__iter__():
                counts.append(1)
                yield batch

    counts = _Outside()
    doctor.examine(**setup(mlp(), Counting(), train=_whole_epochs))
    assert 0 < counts.total < BATCHES_AT_MOST


class _Outside:
    """Counts through a slot that the doctor does not rewind."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def append(self, value: int) -> None:
        self.total += value
