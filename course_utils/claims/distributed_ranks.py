"""Lesson 07, what takes two ranks: experiments that run in both of them, all in one launch at the first question.

An experiment is a function of the rank that is marked with ``@on_two_ranks``. Called without arguments it gives what it
returned in rank 0 and in rank 1. In each rank the process group is up, with gloo on the CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.claims.evidence import attempt
from course_utils.display import error_text
from course_utils.distributed import launch
from course_utils.errors import CourseError

Experiment = Callable[[int], Any]
EXPERIMENTS: dict[str, Experiment] = {}
MIB = 2**20


class RankFailure(str):
    """The error that a launch or an experiment ended in, as text."""


def on_two_ranks(experiment: Experiment) -> Callable[[], tuple[Any, Any]]:
    """Mark a function of the rank as an experiment; the result gives what both ranks returned."""
    name = experiment.__name__
    EXPERIMENTS[name] = experiment

    def both_ranks() -> tuple[Any, Any]:
        launched = _launched()
        found = (launched, launched) if isinstance(launched, RankFailure) else tuple(each[name] for each in launched)
        for result in found:
            if isinstance(result, RankFailure):
                raise CourseError(f"{name} failed in a rank: {result}")
        return found[0], found[1]

    return both_ranks


@cache
def _launched() -> list[dict[str, Any]] | RankFailure:
    try:
        return launch(f"{__name__}:run_all", 2, timeout_s=120)
    except CourseError as error:  # remembered, so that the other claims don't wait for it again
        return RankFailure(error_text(error))


def run_all() -> dict[str, Any]:
    """Be one rank: run every experiment, one after the other, and return name -> result."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    results = {}
    for name, experiment in EXPERIMENTS.items():
        torch.manual_seed(0)
        dist.barrier()  # one experiment after the other in both ranks
        try:
            results[name] = experiment(dist.get_rank())
        except Exception as error:
            results[name] = RankFailure(error_text(error))
    return results


def ddp(model: nn.Module, **options: Any) -> Any:
    """Wrap a model. Imported here, since it takes a second that the other claims need not wait for."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, **options)


def net(seed: int = 0) -> nn.Module:
    """Return a small network, (N, 4) -> (N, 2), with weights that depend on the seed alone."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def batch(part: int | None = None) -> tuple[Tensor, Tensor]:
    """Return 8 examples and labels, or one half of them."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    rows = slice(None) if part is None else slice(4 * part, 4 * part + 4)
    return x[rows], torch.arange(8)[rows] % 2


def flat(model: nn.Module, gradients: bool = False) -> list[float]:
    """Return all weights, or all gradients, as numbers."""
    return torch.cat([(p.grad if gradients else p.detach()).flatten() for p in model.parameters()]).tolist()


class Counter:
    """Stands in for ``all_reduce`` of the buckets: counts calls and bytes, then does it."""

    def __init__(self, model: Any) -> None:
        self.sizes: list[int] = []
        model.register_comm_hook(None, self.reduce)

    def reduce(self, _state, bucket):  # without annotations: torch compares them with classes, and here they are text
        self.sizes.append(bucket.buffer().nbytes)
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])


@on_two_ranks
def process_of_the_model(rank: int) -> int:
    seen: list[int] = []
    model = net()
    model.register_forward_hook(lambda *_: seen.append(os.getpid()))
    ddp(model)(batch(rank)[0])
    return seen[0]


@on_two_ranks
def weights_before_and_after_wrapping(rank: int) -> tuple[list[float], list[float], int]:
    model = net(seed=rank)  # as if only rank 0 had been given the seed
    before = flat(model)
    wrapped = ddp(model)
    return before, flat(wrapped.module), sum(p.nbytes for p in wrapped.parameters())


@on_two_ranks
def gradient_of_one_half(rank: int) -> list[float]:
    model = ddp(net())
    x, y = batch(rank)
    F.cross_entropy(model(x), y).backward()
    return flat(model.module, gradients=True)


@on_two_ranks
def names_of_the_state(rank: int) -> dict[str, str]:
    model = ddp(net())
    return {
        "first key of ddp.state_dict()": next(iter(model.state_dict())),
        "first key of ddp.module.state_dict()": next(iter(model.module.state_dict())),
        "load ddp.state_dict() into a plain model": attempt(lambda: net(1).load_state_dict(model.state_dict())),
        "load ddp.module.state_dict() into one": attempt(lambda: net(1).load_state_dict(model.module.state_dict())),
    }


@on_two_ranks
def wrap_with_and_without_device_ids(rank: int) -> dict[str, str]:
    return {
        "gloo, CPU, no device_ids": attempt(lambda: ddp(net())),
        "gloo, CPU, device_ids=[0]": attempt(lambda: ddp(net(), device_ids=[0])),
    }


@on_two_ranks
def sizes_of_the_buckets(rank: int) -> dict[str, list[int]]:
    found = {}
    for name, cap_mb in (("1 MiB", 1), ("100 MiB", 100)):
        model = ddp(nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]), bucket_cap_mb=cap_mb)
        counter = Counter(model)
        for _ in range(2):  # the buckets are made anew after the first step, in the order in which gradients came
            counter.sizes.clear()
            model(torch.ones(2, 512)).sum().backward()
        found[name] = list(counter.sizes)
    return found


@on_two_ranks
def bytes_sent_in_half_precision(rank: int) -> dict[str, int]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

    sent: dict[str, int] = {}
    reduce = dist.all_reduce
    for name, hook in (("as it is", allreduce_hook), ("fp16_compress_hook", fp16_compress_hook)):
        sent[name] = 0

        def counted(tensor: Tensor, *args: Any, name: str = name, **options: Any) -> Any:
            sent[name] += tensor.nbytes
            return reduce(tensor, *args, **options)

        model = ddp(net())
        model.register_comm_hook(None, hook)
        with patch.object(dist, "all_reduce", counted):
            model(batch(rank)[0]).sum().backward()
    return sent


@on_two_ranks
def reductions_in_four_parts(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("each part", "no_sync"):
        model = ddp(net())
        counter = Counter(model)
        for number in range(4):
            x, y = batch(rank)
            part = slice(number, number + 1)
            if name == "no_sync" and number < 3:
                with model.no_sync():
                    F.cross_entropy(model(x[part]), y[part]).backward()
            else:
                F.cross_entropy(model(x[part]), y[part]).backward()
        found[name], found[name + ", gradient"] = len(counter.sizes), flat(model.module, gradients=True)
    return found


class TwoHeads(nn.Module):
    """A network with a part that the loss doesn't use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@on_two_ranks
def steps_with_an_unused_part(rank: int) -> dict[str, str]:
    model = ddp(TwoHeads())
    x, _ = batch(rank)
    return {step: attempt(lambda: model(x).sum().backward()) for step in ("first step", "second step")}


@on_two_ranks
def gradient_past_the_wrapper(rank: int) -> list[float]:
    model = ddp(net())
    x, y = batch(rank)
    F.cross_entropy(model.module(x), y).backward()
    return flat(model.module, gradients=True)


@on_two_ranks
def statistics_of_a_batch_norm(rank: int) -> dict[str, Any]:
    part = torch.arange(8.0)[4 * rank : 4 * rank + 4, None]
    norm = nn.BatchNorm1d(1, momentum=1.0)  # so that the running mean is that of the last batch
    ddp(norm)(part)
    found: dict[str, Any] = {"BatchNorm": norm.running_mean.item()}
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    sync = nn.SyncBatchNorm(1, momentum=1.0).to(device)
    found["SyncBatchNorm said"] = attempt(lambda: sync(part.to(device)))
    found["SyncBatchNorm"] = sync.running_mean.item()
    return found


def _seconds_per_step(model: nn.Module, x: Tensor, steps: int) -> float:
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        model(x).square().mean().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])  # the first step sets things up; the least disturbed of the others


@on_two_ranks
def speed_of_two_ranks(rank: int) -> dict[str, float]:
    found = {}
    for name, model, x in (
        ("times faster, a small layer", nn.Linear(64, 64), torch.randn(64, 64)),
        ("times faster, convolutions", nn.Conv2d(16, 16, 3), torch.randn(64, 16, 32, 32)),
    ):
        alone = _seconds_per_step(model, x, steps=10) if rank == 0 else 0.0
        dist.barrier()  # until here the other rank waits
        both = _seconds_per_step(ddp(model), x[: len(x) // 2], steps=10)
        found[name] = alone / both
    return found
