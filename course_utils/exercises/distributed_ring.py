"""Checks of lesson 07 about messages: round the ring, averages, a wrapper. Ranks are threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.exercises.compare import describe, is_close, is_true
from course_utils.exercises.inputs import Inputs
from course_utils.exercises.verdicts import Check
from course_utils.world import Rank, World


class Scaled(nn.Module):
    """A linear layer with a buffer that its result depends on."""

    def __init__(self, inputs: Inputs, d: int, c: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d, c), nn.Linear(c, 2)
        self.register_buffer("scale", inputs.rand(c) + 0.5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(inputs.randn(*parameter.shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) * self.scale)


class Wrapped(nn.Module):
    """What DDP does, on ranks that are threads: a forward through the wrapper has the next backward average."""

    def __init__(self, module: nn.Module, dist: Rank) -> None:
        super().__init__()
        self.module = module
        self._dist = dist
        self._is_quiet = False
        self._waiting: set[nn.Parameter] = set()
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)

    def forward(self, *inputs: Any) -> Any:
        self._waiting = set() if self._is_quiet else set(self.module.parameters())
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep what is computed in the block to this rank: forward passes in it are followed by no averaging."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def _average(self, parameter: nn.Parameter) -> None:
        if parameter in self._waiting:
            self._waiting.remove(parameter)
            assert parameter.grad is not None
            self._dist.all_reduce(parameter.grad)
            parameter.grad /= self._dist.get_world_size()


def grads(model: nn.Module) -> Tensor:
    """Return all gradients as one vector; zeros where there is none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.detach().flatten() for part in parts])


def check_around(gather: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.around: everybody's tensor, by messages to the right neighbour alone."""
    for n in (3, 2, 5):
        given = inputs.randn(n, 4)
        world = World(n)
        results = world.run(lambda dist, given=given: gather(given[dist.get_rank()].clone(), dist))
        yield is_true(
            f"{n} ranks: returns a list of {n} tensors",
            all(type(found) in (list, tuple) and len(found) == n for found in results)
            and all(type(item) is Tensor and item.shape == (4,) for found in results for item in found),
            detail=f"rank 0 got {describe(results[0])}",
            hint="One tensor for each rank, shaped like the one that was given; one's own too.",
        )
        yield is_true(
            f"{n} ranks: messages go to the right neighbour alone",
            all(message.to == (rank + 1) % n for rank in range(n) for message in world.sent[rank]),
            detail=f"rank 0 sent to {sorted({message.to for message in world.sent[0]})}",
            hint="Rank r sends to (r + 1) % n and nobody else. What came from the left goes on to the right.",
        )
        for rank, found in enumerate(results):
            stack = torch.stack(list(found))
            came = torch.stack([given[(rank - k) % n] for k in range(n)])
            last = given[(rank + 1) % n].expand(n, 4).clone()  # what came last, from the right by way of all others
            last[rank] = given[rank]
            yield is_close(
                f"{n} ranks: rank {rank} has them in the order of the ranks",
                stack,
                given,
                hint="The tensor of rank k stands at place k of the list.",
                mistakes=[
                    (came, "That is the order in which they came. The tensor of rank k belongs at place k."),
                    (came.flip(0), "That is the order in which they came, reversed. Rank k's tensor goes to place k."),
                    (last, "All places hold what came last: receive into a new tensor each time."),
                ],
            )
        yield is_true(
            f"{n} ranks: each sends {n - 1} messages",
            all(len(sent) == n - 1 for sent in world.sent),
            detail=f"rank 0 sent {len(world.sent[0])}",
            hint="In each of the n − 1 rounds a rank passes on what it got in the round before.",
        )
    alone = World(1).run(lambda dist: gather(torch.ones(4), dist))[0]
    yield is_true(
        "one rank alone has its own tensor",
        type(alone) in (list, tuple) and len(alone) == 1 and type(alone[0]) is Tensor and bool((alone[0] == 1).all()),
        detail=f"got {describe(alone)}",
        hint="With one rank there is nobody to talk to.",
    )


def check_ring(all_reduce: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.ring: the sum over all ranks, in place, in 2 (n - 1) steps with one n-th of the tensor in each."""
    for n, length in ((3, 6), (2, 5), (5, 13), (4, 9), (4, 4)):
        given = inputs.randn(n, length)
        tensors = [row.clone() for row in given]
        world = World(n)
        world.run(lambda dist, tensors=tensors: all_reduce(tensors[dist.get_rank()], dist))
        total = given.sum(0)
        for rank, tensor in enumerate(tensors):
            right = torch.isclose(tensor, total, rtol=1e-4, atol=1e-5)
            chunks = [bool(chunk.all()) for chunk in right.tensor_split(n)]
            halfway = "Half of it: each rank has one complete part. Now hand the sums on, round the ring once more."
            yield is_close(
                f"{n} ranks, {length} numbers: rank {rank} has the sum",
                tensor,
                total,
                rtol=1e-4,
                atol=1e-5,
                hint=halfway if sum(chunks) == 1 and n > 2 else "Every rank ends with the sum over all, in place.",
                mistakes=[
                    (given[rank], "The tensor is as it was. The sum belongs into it, in place: tensor.copy_(...)."),
                    (total / n, "That is the mean; the sum was asked for."),
                ],
            )
        most = 2 * (n - 1) * -(-length // n)
        sent = max(sum(message.numbers for message in messages) for messages in world.sent)
        largest = max((message.numbers for messages in world.sent for message in messages), default=0)
        yield is_true(
            f"{n} ranks, {length} numbers: the ranks send messages",
            sent > 0,
            detail="none was sent",
            hint="Send parts to the right neighbour: dist.isend and dist.recv.",
        )
        yield is_true(
            f"{n} ranks, {length} numbers: no rank sends more than {most} numbers",
            sent <= most,
            detail=f"one sent {sent}",
            hint="Whole tensors go round here. In each step a rank sends one of n parts."
            if largest > -(-length // n)
            else "It takes 2 (n − 1) steps; here are more.",
        )
        yield is_true(
            f"{n} ranks: messages go to the right neighbour alone",
            all(message.to == (rank + 1) % n for rank in range(n) for message in world.sent[rank]),
            detail=f"rank 0 sent to {sorted({message.to for message in world.sent[0]})}",
            hint="Rank r sends to (r + 1) % n and receives from (r − 1) % n.",
        )
    alone = torch.arange(3.0)
    World(1).run(lambda dist: all_reduce(alone, dist))
    yield is_close("one rank alone keeps its tensor", alone, torch.arange(3.0), hint="A sum over one rank.")


def check_average(average: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.average: gradients averaged over ranks by hand, also where a rank has none."""
    n = 3
    models = [nn.ModuleList([nn.Linear(4, 2), nn.Linear(2, 3), nn.Linear(3, 3)]) for _ in range(n)]
    wanted: list[Tensor] = []
    for place, _ in enumerate(models[0].parameters()):
        given = []
        for rank, model in enumerate(models):
            parameter = list(model.parameters())[place]
            has_none = place >= 4 or (place == 2 and rank == 1)  # the last layer nowhere, one weight not on rank 1
            parameter.grad = None if has_none else inputs.randn(*parameter.shape)
            given.append(torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad.clone())
        wanted.append(torch.stack(given).mean(0).flatten())
    whole = torch.cat(wanted)
    weights = [torch.cat([p.detach().clone().flatten() for p in model.parameters()]) for model in models]
    own = [grads(model) for model in models]
    World(n).run(lambda dist: average(models[dist.get_rank()], dist))
    for rank, model in enumerate(models):
        yield is_close(
            f"rank {rank} has the mean of all ranks' gradients",
            grads(model),
            whole,
            hint="Sum each gradient over the ranks, then divide by their number. None counts as zeros.",
            mistakes=[
                (whole * n, "That is the sum. Divide by the number of ranks."),
                (own[rank], "The gradients are as they were. all_reduce works in place on p.grad."),
            ],
        )
    yield is_true(
        "the weights stay as they are",
        all(
            torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), before)
            for model, before in zip(models, weights, strict=True)
        ),
        detail="the parameters changed",
        hint="Average p.grad, not p.",
    )


def check_wrap(wrap: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.wrap: a module that gives all ranks the same start and averages gradients in backward."""
    n, d, c, rows = 3, 5, 4, 4
    models = [Scaled(inputs, d, c) for _ in range(n)]
    first = {name: value.clone() for name, value in models[0].state_dict().items()}
    x, y = inputs.randn(2, n * rows, d), inputs.randn(2, n * rows, 2)

    def program(dist: Rank) -> dict[str, Any]:
        rank = dist.get_rank()
        net = wrap(models[rank], dist)
        if not isinstance(net, nn.Module):
            return {"net": net}
        found: dict[str, Any] = {"net": net, "start": {k: v.clone() for k, v in models[rank].state_dict().items()}}
        found["grads"], found["outputs"], found["calls"] = [], [], [len(world.calls[rank])]
        for step in range(2):
            out = net(x[step, rank::n])
            found["outputs"].append(out)
            if not isinstance(out, Tensor) or out.shape != (rows, 2):
                return found  # the comparison below says what is wrong
            F.mse_loss(out, y[step, rank::n]).backward()
            found["grads"].append(grads(models[rank]))
            found["calls"].append(len(world.calls[rank]))
            with torch.no_grad():
                for parameter in models[rank].parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        return found

    world = World(n)
    results = world.run(program)
    yield is_true(
        "is a module",
        all(isinstance(found["net"], nn.Module) for found in results),
        detail=f"got {describe(results[0]['net'])}",
        hint="class SmallDDP(nn.Module), and super().__init__() before anything else.",
    )
    same = [all(torch.equal(found["start"][k], first[k]) for k, _ in models[0].named_parameters()) for found in results]
    yield is_true(
        "all ranks start with the weights of rank 0",
        all(same),
        detail=f"rank {same.index(False)} has others" if not all(same) else "",
        hint="In __init__, dist.broadcast(p.data, 0) for every parameter.",
    )
    same = [torch.equal(found["start"]["scale"], first["scale"]) for found in results]
    yield is_true(
        "all ranks start with the buffers of rank 0",
        all(same),
        detail=f"rank {same.index(False)} has others" if not all(same) else "",
        hint="Buffers are part of the state as well: module.buffers().",
    )
    reference = Scaled(inputs, d, c)
    reference.load_state_dict(first)
    for step in range(2):
        out = reference(x[step])
        wanted = out[0::n]
        yield is_close(
            f"step {step + 1}: forward returns what the module returns",
            results[0]["outputs"][step],
            wanted,
            rtol=1e-3,
            hint="forward(x) returns self.module(x).",
        )
        reference.zero_grad()
        F.mse_loss(out, y[step]).backward()
        whole = grads(reference)
        for rank, found in enumerate(results):
            yield is_close(
                f"step {step + 1}: after backward, rank {rank} has the gradients of the whole batch",
                found["grads"][step],
                whole,
                rtol=1e-3,
                atol=1e-5,
                hint="A hook on every parameter, called when its gradient is there: average it over the ranks.",
                mistakes=[(whole * n, "That is the sum over the ranks. Divide by their number.")],
            )
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter -= 0.1 * parameter.grad
    start, middle, end = results[0]["calls"]
    first, second = middle - start, end - middle
    yield is_true(
        "the second step sends no more than the first",
        second <= first,
        detail=f"{second} calls after {first}",
        hint="Register the hooks once, in __init__: those that forward registers pile up, and all of them run.",
    )


def check_accumulate(accumulate: Callable, inputs: Inputs) -> Iterator[Check]:
    """distributed.accumulate: several micro-batches, one exchange."""
    n, d, parts, rows = 2, 5, inputs.choice([3, 4]), 3
    models = [Scaled(inputs, d, 4) for _ in range(n)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    x, y = inputs.randn(n, parts, rows, d), inputs.randn(n, parts, rows, 2)
    world = World(n)

    def program(dist: Rank) -> None:
        rank = dist.get_rank()
        batches = [(x[rank, part], y[rank, part]) for part in range(parts)]
        accumulate(Wrapped(models[rank], dist), batches, F.mse_loss)

    world.run(program)
    reference = Scaled(inputs, d, 4)
    reference.load_state_dict(models[0].state_dict())
    F.mse_loss(reference(x.reshape(-1, d)), y.reshape(-1, 2)).backward()
    whole, own = grads(reference), []
    for rank in range(n):
        reference.zero_grad()
        F.mse_loss(reference(x[rank].reshape(-1, d)), y[rank].reshape(-1, 2)).backward()
        own.append(grads(reference))
    for rank, model in enumerate(models):
        yield is_close(
            f"rank {rank} has the gradients of all batches of all ranks",
            grads(model),
            whole,
            rtol=1e-3,
            atol=1e-5,
            hint="The mean over all examples: backward for every batch, the loss divided by the number of batches.",
            mistakes=[
                (whole * parts, "Gradients of the batches add up: divide each loss by the number of batches."),
                (
                    own[rank],
                    "These are the gradients of this rank alone: the last batch must not be in no_sync(), and must go "
                    "through ddp(x), not past it.",
                ),
                (own[rank] * parts, "The last batch must not be in no_sync(). And divide by the number of batches."),
                (torch.zeros_like(whole), "No gradient arrived. Call backward() for each batch."),
            ],
        )
    once = len(list(models[0].parameters()))
    calls = len(world.calls[0])
    yield is_true(
        "the ranks exchange gradients once",
        calls == once,
        detail=f"{calls / once:g} times for {parts} batches",
        hint="All batches but the last go into `with ddp.no_sync():`, the forward pass too.",
    )
