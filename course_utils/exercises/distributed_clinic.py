"""Checks of the clinic of lesson 07: programs that run and train something else, or wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from course_utils.exercises.compare import describe, is_close, is_equal, is_true
from course_utils.exercises.distributed_ring import Scaled, Wrapped, grads
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.world import Rank, World


def check_clinic_epoch(orders: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic distributed.clinic-epoch: each epoch deals anew, and alike on all ranks."""
    n_examples, n_ranks, epochs = 24, 3, 4
    dataset = TensorDataset(torch.arange(n_examples))
    dealt = []
    for rank in range(n_ranks):
        torch.manual_seed(inputs.size(0, 10**6))
        dealt.append(orders(dataset, rank, n_ranks, epochs))
    yield is_true(
        "returns a list of indices for each epoch",
        all(type(found) is list and len(found) == epochs for found in dealt)
        and all(type(epoch) is list and len(epoch) == n_examples // n_ranks for found in dealt for epoch in found),
        detail=f"got {describe(dealt[0])}",
        hint="A list of lists: found.append(list(sampler))."
        if not _reads_everything(dealt[0], n_examples)
        else "Each rank reads all examples here. The sampler deals each rank its part: found.append(list(sampler)).",
    )
    distinct = len({tuple(epoch) for epoch in dealt[0]})
    yield is_true(
        "each epoch has another order",
        distinct == epochs,
        detail=f"{epochs} epochs, {distinct} different" + (" order" if distinct == 1 else " orders"),
        hint="The sampler shuffles from its seed and its epoch, and nobody tells it the epoch: set_epoch.",
    )
    for epoch in range(epochs):
        seen = sorted(i for found in dealt for i in found[epoch])
        yield is_true(
            f"epoch {epoch}: the ranks see every example once",
            seen == list(range(n_examples)),
            detail=f"{n_examples - len(set(seen))} examples are seen by nobody",
            hint="All ranks must shuffle alike: the seed and the epoch are the same on every rank.",
        )
    yield is_true(
        "a rank sees other examples in the next epoch",
        set(dealt[0][0]) != set(dealt[0][1]),
        detail="rank 0 keeps its own examples",
        hint="Let the sampler deal anew, instead of shuffling the rank's own examples.",
    )
    yield is_true(
        "another run deals in the same way",
        orders(dataset, 0, n_ranks, epochs) == dealt[0],
        detail="two runs differ",
        hint="The order comes from the seed and the epoch, not from the global generator.",
    )


def _reads_everything(found: Any, n_examples: int) -> bool:
    return type(found) is list and all(type(epoch) is list and len(epoch) == n_examples for epoch in found)


def check_clinic_noise(begin: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic distributed.clinic-noise: the same weights everywhere, other noise on each rank."""
    seed = inputs.size(0, 1000)

    def run(seed: int) -> list[tuple[Any, Any]]:
        found = []
        for rank in range(3):
            torch.manual_seed(10**6 + 17 * rank)
            found.append(begin(rank, seed, lambda: nn.Linear(4, 3)))
        return found

    started = run(seed)
    yield is_true(
        "returns (model, generator)",
        all(
            type(pair) in (tuple, list)
            and len(pair) == 2
            and isinstance(pair[0], nn.Module)
            and isinstance(pair[1], torch.Generator)
            for pair in started
        ),
        detail=f"got {describe(started[0])}",
        hint="return model, noise",
    )
    weights = [model.weight.detach() for model, _ in started]
    yield is_true(
        "all ranks start with the same weights",
        all(torch.equal(weights[0], other) for other in weights),
        detail="the weights differ",
        hint="What DDP starts from is the same on every rank: seed it with the seed alone.",
    )
    draws = [torch.rand(5, generator=noise) for _, noise in started]
    yield is_true(
        "each rank draws other noise",
        len({tuple(draw.tolist()) for draw in draws}) == 3,
        detail="two ranks draw the same",
        hint="All generators start from the same seed. Let the rank be part of it.",
    )
    again = run(seed)
    yield is_true(
        "the same seed starts the same run",
        torch.equal(again[1][0].weight, weights[1]) and torch.equal(torch.rand(5, generator=again[1][1]), draws[1]),
        detail="two runs with the same seed differ",
        hint="Weights and noise come from seed and rank, and from nothing else."
        if all(noise is not torch.default_generator for _, noise in started)
        else "This is the global generator, and everybody draws from it. Make one for the noise: torch.Generator().",
    )
    fresh = run(seed + 5000)
    yield is_true(
        "another seed starts another run",
        not torch.equal(fresh[0][0].weight, weights[0])
        and not torch.equal(torch.rand(5, generator=fresh[0][1]), draws[0]),
        detail="the weights or the noise are those of the other seed",
        hint="Both depend on the seed.",
    )


def check_clinic_barrier(prepare: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic distributed.clinic-barrier: rank 0 downloads, everybody loads afterwards."""
    n = 3
    world, lock = World(n), threading.Lock()
    downloads: list[int] = []
    early: list[int] = []
    is_there = threading.Event()

    def program(dist: Rank) -> object:
        def download() -> None:
            with lock:
                downloads.append(dist.get_rank())
            time.sleep(0.03)
            is_there.set()

        def load() -> str:
            if not is_there.is_set():
                with lock:
                    early.append(dist.get_rank())
            return f"data of rank {dist.get_rank()}"

        return prepare(dist, download, load)

    results = world.run(program)
    yield is_equal(
        "every rank returns what it loaded",
        results,
        [f"data of rank {rank}" for rank in range(n)],
        hint="return load() on every rank.",
    )
    yield is_equal(
        "rank 0 downloads, once",
        downloads,
        [0],
        hint="Others would write the same file at the same time: if dist.get_rank() == 0: download()",
    )
    yield is_true(
        "nobody loads before the download is done",
        not early,
        detail=f"rank {min(early, default=0)} loaded too early",
        hint="Rank 0 comes to the barrier when it has downloaded, the others go there at once. Then all load.",
    )


def check_clinic_stop(train_until: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic distributed.clinic-stop: early stopping that all ranks decide alike."""
    apart = [[9.0, 5.0, 6.0, 6.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [8.0, 7.0, 4.0, 4.5, 5.5, 5.0, 6.0, 7.0, 8.0, 9.0]]
    # One rank goes on improving while the mean rises.
    torn = [
        [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        [5.0, 8.0, 11.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0],
    ]
    shift = inputs.rand(1).item()
    for losses, patience in ((apart, 2), (apart, 3), (torn, 2)):
        means = [sum(pair) / 2 for pair in zip(*losses, strict=True)]
        slowest = max(_epochs(own, patience) for own in losses)
        world = World(2)

        def program(dist: Rank, patience: int = patience, losses: list[list[float]] = losses) -> tuple[Any, int]:
            count = 0

            def train_epoch() -> float:
                nonlocal count
                dist.all_reduce(torch.ones(7))  # the gradients
                if count >= len(losses[0]):
                    raise RuntimeError("training never stops")
                count += 1
                return losses[dist.get_rank()][count - 1] + shift

            return train_until(dist, train_epoch, patience), count

        results = world.run(program)
        wanted = _epochs(means, patience)
        yield is_true(
            f"patience {patience}: both ranks train the same number of epochs",
            results[0][1] == results[1][1],
            detail=f"{results[0][1]} and {results[1][1]}",
            hint="The decision must be the same on all ranks: make it from the mean loss over the ranks.",
        )
        yield is_equal(
            f"patience {patience}: stops when the mean over the ranks has not improved for {patience} epochs",
            results[0][1],
            wanted,
            hint="Sum the loss over the ranks, divide by their number, and go on as before.",
            mistakes=[
                *(
                    [(slowest, "That is when no rank improves any more. The mean over the ranks decides.")]
                    if losses is torn
                    else []
                ),
                (_epochs(losses[0], patience), "That is when rank 0 alone would stop. The mean over ranks decides."),
                (_epochs(losses[1], patience), "That is when rank 1 alone would stop. The mean over ranks decides."),
            ],
        )
        yield is_equal(
            f"patience {patience}: returns the number of epochs",
            [n for n, _ in results],
            [wanted] * 2,
            hint="return epochs",
        )


def _epochs(losses: list[float], patience: int) -> int:
    best, bad = float("inf"), 0
    for number, loss in enumerate(losses, 1):
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        if bad == patience:
            return number
    return len(losses)


def check_clinic_module(train_step: Callable, inputs: Inputs) -> Iterator[Check]:
    """Clinic distributed.clinic-module: a step whose gradients are averaged over the ranks."""
    n, d, rows, lr = 2, 4, 5, 0.3
    models = [Scaled(inputs, d, 3) for _ in range(n)]
    models[1].load_state_dict(models[0].state_dict())
    reference = Scaled(inputs, d, 3)
    reference.load_state_dict(models[0].state_dict())
    x, y = inputs.randn(n, rows, d), inputs.randint(0, 2, n, rows)

    def program(dist: Rank) -> object:
        rank = dist.get_rank()
        optimizer = torch.optim.SGD(models[rank].parameters(), lr=lr)
        for parameter in models[rank].parameters():
            parameter.grad = torch.ones_like(parameter)  # of a step before
        return train_step(Wrapped(models[rank], dist), x[rank], y[rank], optimizer)

    returned = World(n).run(program)
    before = _weights(reference)
    losses = [F.cross_entropy(reference(x[rank]), y[rank]) for rank in range(n)]
    sum(losses).div(n).backward()
    whole = grads(reference)
    moved = [_weights(model) - before for model in models]
    yield is_true(
        "the weights move",
        all(bool(step.any()) for step in moved),
        detail="they are as before",
        hint="zero_grad, backward, step.",
    )
    yield is_true(
        "both ranks have the same weights after the step",
        torch.allclose(moved[0], moved[1], atol=1e-6),
        detail=f"largest difference {(moved[0] - moved[1]).abs().max():.2g}",
        hint="DDP arms its averaging in its own forward. ddp.module(x) goes past it: call ddp(x).",
    )
    for rank in range(n):
        yield is_close(
            f"rank {rank} made the step of the whole batch",
            moved[rank],
            -lr * whole,
            rtol=1e-3,
            atol=1e-5,
            hint="One forward through ddp, zero_grad before backward, one step. DDP divides by the number of ranks.",
            mistakes=[
                (-lr * (whole + 1), "Gradients of the step before are still in: zero_grad before backward."),
                (-lr * whole * n, "Twice as far as it should be: DDP averages, no factor is needed."),
            ],
        )
    yield is_close(
        "returns the loss of this rank as a number",
        returned[0],
        losses[0].item(),
        hint="loss.item()",
    )


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().clone().flatten() for parameter in model.parameters()])
