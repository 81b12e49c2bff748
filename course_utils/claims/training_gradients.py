"""Lesson 05, the part about gradients: emptying them, and adding them up over several batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from course_utils.claims.evidence import WORKS, attempt
from course_utils.claims.ledger import Evidence, Page
from course_utils.claims.verdicts import CAVEAT, FALSE, OPINION, OUTDATED, TRUE

PAGE = Page("training")
MakeOptimizer = Callable[..., Optimizer]


def sgd(parameters: Any, lr: float = 0.1, **more: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=lr, **more)


def problem() -> tuple[Tensor, Tensor, nn.Module]:
    """Return 64 examples of 8 features, their classes out of 3, which a line separates, and a network; all seeded."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    return x, y, nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def flat(tensors: Sequence[Tensor] | Any) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradient(model: nn.Module) -> Tensor:
    return flat([p.grad for p in model.parameters()])


# --- zero_grad -------------------------------------------------------------------------------------------------------


def _weights_after(order: str, make: MakeOptimizer = sgd, steps: int = 3, **options: Any) -> Tensor:
    """Return the weights after some steps, the calls of each step in the given order."""
    x, y, model = problem()
    optimizer = make(model.parameters(), **options)
    calls = {
        "zero": optimizer.zero_grad,
        "backward": lambda: F.cross_entropy(model(x), y).backward(),
        "step": optimizer.step,
    }
    for _ in range(steps):
        for name in order.split():
            calls[name]()
    return flat(model.parameters())


@PAGE.claim(
    "L001",
    "optimizer.zero_grad() must be called before backward().",
    rule=lambda seen: (
        FALSE if seen["left out: same weights"] else CAVEAT if seen["after step(): same weights"] else TRUE
    ),
    right="It must be called somewhere between a step() and the next backward(): right after step() will do. Between "
    "the backward passes of one accumulated step it must not be called.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)
@PAGE.claim(
    "L035",
    "zero_grad() must come before backward(); placing it after step() is equivalent.",
    rule=lambda seen: TRUE if seen["after step(): same weights"] and not seen["left out: same weights"] else FALSE,
    right="On this version the two places are not equivalent.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)
@PAGE.claim(
    "L036",
    "Placing zero_grad() after backward (before step) runs without error but the step has no effect.",
    rule=lambda seen: FALSE if seen["between backward() and step(): weights moved, SGD"] else CAVEAT
    if seen["between backward() and step(): weights moved, AdamW"] else TRUE,
    right="With zeros instead of None (set_to_none=False), momentum and weight decay still move the weights.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)  # fmt: skip
def places_for_zero_grad() -> Evidence:
    usual, start = _weights_after("zero backward step"), flat(problem()[2].parameters())
    adamw = {"make": torch.optim.AdamW, "weight_decay": 0.1}
    return {
        "after step(): same weights": torch.equal(usual, _weights_after("backward step zero")),
        "left out: same weights": torch.equal(usual, _weights_after("backward step")),
        "between backward() and step(): weights moved, SGD": not torch.equal(
            start, _weights_after("backward zero step")
        ),
        "between backward() and step(): weights moved, AdamW": not torch.equal(
            start, _weights_after("backward zero step", **adamw)
        ),
    }


@PAGE.claim(
    "L002",
    "Gradients accumulate: each backward() adds to .grad instead of overwriting it.",
    rule=lambda seen: TRUE if (seen["after one"], seen["after two"]) == (3.0, 6.0) else FALSE,
    right="On this version backward() overwrites.",
    page="generated/torch.Tensor.backward.html",
)
def backward_twice() -> Evidence:
    weight, seen = torch.ones(1, requires_grad=True), []
    for _ in range(2):
        (3 * weight).sum().backward()
        seen.append(weight.grad.item())
    return {"after one": seen[0], "after two": seen[1]}


def losses_and_norms(
    make: MakeOptimizer, lr: float, empties: bool, steps: int = 200
) -> tuple[list[float], list[float]]:
    """Train with or without zero_grad; return loss and length of the gradient at each step."""
    x, y, model = problem()
    optimizer = make(model.parameters(), lr=lr)
    losses, norms = [], []
    for _ in range(steps):
        if empties:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        norms.append(gradient(model).norm().item())
        optimizer.step()
    return losses, norms


@PAGE.claim(
    "L003",
    "Without zero_grad the loss curve oscillates wildly, explodes or becomes NaN.",
    rule=lambda seen: TRUE if not seen["SGD, lr 0.01: falls at every step"] else CAVEAT
    if seen["Adam, lr 0.1: climbs to more than twice its start"] else FALSE,
    right="It depends on optimizer and rate. With a small rate the sum of gradients acts like momentum that is never "
    "lost: the curve falls smoothly, faster than with zero_grad, and looks healthy until the rate or the steps get "
    "large.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)  # fmt: skip
@PAGE.claim(
    "L032",
    "Forgetting optimizer.zero_grad() in the loop makes gradients pile up and corrupts updates; the loss may fall "
    "first and then explode or stall.",
    rule=lambda seen: TRUE if seen["Adam, lr 0.1: falls below half its start"]
    and seen["Adam, lr 0.1: climbs to more than twice its start"] else FALSE,
    right="On this version the loss doesn't come back up.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)  # fmt: skip
def train_without_zero_grad() -> Evidence:
    forgot, _ = losses_and_norms(torch.optim.SGD, 0.01, empties=False)
    healthy, _ = losses_and_norms(torch.optim.SGD, 0.01, empties=True)
    adam, _ = losses_and_norms(torch.optim.Adam, 0.1, empties=False)
    return {
        "SGD, lr 0.01: falls at every step": all(b <= a for a, b in pairwise(forgot)),
        "SGD, lr 0.01: ends below the run with zero_grad": forgot[-1] < healthy[-1],
        "Adam, lr 0.1: falls below half its start": min(adam) < adam[0] / 2,
        "Adam, lr 0.1: climbs to more than twice its start": max(adam) > 2 * adam[0],
    }


@PAGE.claim(
    "L022",
    "Forgetting zero_grad makes leaf gradients several to dozens of times larger than the true gradient.",
    rule=lambda seen: TRUE if all(2 <= times <= 100 for times in seen.values()) else CAVEAT
    if any(2 <= times <= 100 for times in seen.values()) else FALSE,
    right="It is the sum of all gradients since the start: about k times too large after k steps that agree, a "
    "thousand times after a thousand, and too small, even 0, where the gradients change their sign.",
    page="generated/torch.Tensor.backward.html",
)  # fmt: skip
def stored_gradient_over_the_true_one() -> Evidence:
    def times(steps: int, alternating: bool = False) -> float:
        weight = torch.ones(1, requires_grad=True)
        for step in range(steps):
            (-weight if alternating and step % 2 else weight).sum().backward()
        return abs(weight.grad.item())  # each true gradient is 1 or -1

    return {
        "after 10 steps": times(10),
        "after 1,000 steps": times(1000),
        "after 10 steps of alternating sign": times(10, alternating=True),
    }


@PAGE.claim(
    "L033",
    "To find a missing zero_grad, print a parameter gradient before step and see whether it grows with steps.",
    rule=lambda seen: FALSE if not seen["missing: grows"] else CAVEAT if seen["called, high rate: grows"] else TRUE,
    right="A gradient also grows where zero_grad is called and the rate is too high. Look before backward() instead: "
    "there .grad must be None, or zero.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)
def does_the_gradient_grow() -> Evidence:
    def grows(lr: float, empties: bool) -> bool:
        _, norms = losses_and_norms(sgd, lr, empties, steps=3)
        return norms[0] < norms[1] < norms[2]

    return {
        "missing: grows": grows(0.1, empties=False),
        "called: grows": grows(0.1, empties=True),
        "called, high rate: grows": grows(5.0, empties=True),
    }


@PAGE.claim(
    "L037",
    "optimizer.zero_grad() has a set_to_none argument whose default is False, i.e. gradients are zeroed, not freed.",
    rule=lambda seen: TRUE if not seen["default of set_to_none"] and not seen["grad is None afterwards"] else OUTDATED,
    right="The default is True since release 2.0: .grad is None afterwards.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)
@PAGE.claim(
    "L038",
    "Keep zero_grad set_to_none at False because None gradients break code.",
    rule=lambda seen: TRUE if WORKS not in (seen["step() with None"], seen["clip_grad_norm_ with None"]) else OPINION
    if seen["p.grad.norm() with None"] != WORKS else FALSE,
    right="Nothing in PyTorch breaks, only code that reads p.grad without asking for None. None saves memory and "
    "skips parameters that had no gradient, while zeros let momentum and weight decay move them.",
    page="generated/torch.optim.Optimizer.zero_grad.html",
)  # fmt: skip
def gradients_that_are_none() -> Evidence:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.zero_grad()
    return {
        "default of set_to_none": bool(
            inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default
        ),
        "grad is None afterwards": weight.grad is None,
        "step() with None": attempt(optimizer.step),
        "clip_grad_norm_ with None": attempt(lambda: nn.utils.clip_grad_norm_([weight], 1.0)),
        "p.grad.norm() with None": attempt(lambda: weight.grad.norm()),
    }


@PAGE.claim(
    "L026",
    "The optimizer must receive only parameters with requires_grad=True.",
    rule=lambda seen: FALSE if seen["optimizer of both kinds"] == WORKS and not seen["frozen weights moved"] else TRUE,
    right="Parameters that get no gradient are skipped, weight decay included, so frozen ones may be in it. Leaving "
    "them out saves nothing but a look at each, and must be undone when they are to learn again.",
    page="optim.html",
)
def optimizer_with_frozen_parameters() -> Evidence:
    x, y, model = problem()
    frozen = model[0].weight.requires_grad_(False)
    before, optimizers = frozen.clone(), []
    said = attempt(lambda: optimizers.append(torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)))
    for _ in range(3):
        F.cross_entropy(model(x), y).backward()
        optimizers[0].step()
    return {"optimizer of both kinds": said, "frozen weights moved": not torch.equal(frozen, before)}


# --- Accumulation ----------------------------------------------------------------------------------------------------


def parts_gradient(model: nn.Module, x: Tensor, y: Tensor, sizes: Sequence[int], divide: bool = True) -> Tensor:
    """Return the gradient after a backward pass for each part of a batch, each loss divided by the number of parts."""
    model.zero_grad()
    for part_x, part_y in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True):
        loss = F.cross_entropy(model(part_x), part_y)
        (loss / len(sizes) if divide else loss).backward()
    return gradient(model)


def _same_as_whole(model: nn.Module, sizes: Sequence[int]) -> bool:
    x, y, _ = problem()
    whole = parts_gradient(model, x, y, [64])
    return torch.allclose(parts_gradient(model, x, y, sizes), whole, atol=1e-5)


def _with(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 3))


@PAGE.claim(
    "L048",
    "Gradient accumulation: several backward passes then one step emulates a large batch; divide the loss by the "
    "number of steps.",
    rule=lambda seen: FALSE if not seen["4 equal parts: same gradient"] else TRUE if all(seen.values()) else CAVEAT,
    right="Equal for parts of equal size and layers that treat each example by itself. For a shorter last part weigh "
    "by its examples instead, and BatchNorm still sees the small parts.",
    page="notes/amp_examples.html#gradient-accumulation",
)
def accumulate_parts() -> Evidence:
    return {
        "4 equal parts: same gradient": _same_as_whole(problem()[2], [16, 16, 16, 16]),
        "last part shorter: same gradient": _same_as_whole(problem()[2], [20, 20, 20, 4]),
        "with BatchNorm: same gradient": _same_as_whole(_with(nn.BatchNorm1d(16)), [16, 16, 16, 16]),
    }


@PAGE.claim(
    "L049",
    "Not dividing by the accumulation steps is equivalent to multiplying the learning rate.",
    rule=lambda seen: TRUE if all(seen.values()) else CAVEAT if any(seen.values()) else FALSE,
    right="That holds for SGD with or without momentum. Weight decay and clipping get another weight, and Adam "
    "divides the size of the gradient out again: there the factor changes next to nothing.",
    page="generated/torch.optim.Adam.html",
)
def undivided_or_a_higher_rate() -> Evidence:
    def weights(make: MakeOptimizer, lr: float, divide: bool, **options: Any) -> Tensor:
        x, y, model = problem()
        optimizer = make(model.parameters(), lr=lr, **options)
        for _ in range(3):
            parts_gradient(model, x, y, [16] * 4, divide)
            optimizer.step()
        return flat(model.parameters())

    cases: dict[str, dict[str, Any]] = {
        "SGD with momentum": {"make": torch.optim.SGD, "momentum": 0.9},
        "SGD with weight decay": {"make": torch.optim.SGD, "weight_decay": 0.1},
        "Adam": {"make": torch.optim.Adam},
    }
    return {
        f"{name}: same weights": torch.allclose(
            weights(lr=0.01, divide=False, **case), weights(lr=0.04, divide=True, **case), atol=1e-5
        )
        for name, case in cases.items()
    }


def _used_in_steps(batches: int, k: int) -> int:
    """Return how many batches took part in a step; each adds 1 to the gradient."""
    weight, used = torch.zeros(1, requires_grad=True), 0.0
    for i in range(batches):
        weight.sum().backward()
        if (i + 1) % k == 0:
            used += weight.grad.item()  # here stands optimizer.step()
            weight.grad = None
    return int(used)


@PAGE.claim(
    "L050",
    "An accumulation loop that steps only when (i + 1) % k == 0 uses every batch of the epoch.",
    rule=lambda seen: FALSE if seen["10 batches, k = 5: used"] < 10 else TRUE if seen["10 batches, k = 4: used"] == 10
    else CAVEAT,
    right="Only if k divides the number of batches. Otherwise the last gradients are thrown away, or, worse, leak "
    "into the first step of the next epoch: also step after the last batch.",
    page="notes/amp_examples.html#gradient-accumulation",
)  # fmt: skip
def batches_that_reach_a_step() -> Evidence:
    return {"10 batches, k = 5: used": _used_in_steps(10, 5), "10 batches, k = 4: used": _used_in_steps(10, 4)}


@PAGE.claim(
    "L051",
    "Do not call zero_grad inside the accumulation window.",
    rule=lambda seen: TRUE if seen["called before each part: only the last part counts"] else FALSE,
    right="On this version it does no harm.",
    page="notes/amp_examples.html#gradient-accumulation",
)
def zero_grad_inside_the_window() -> Evidence:
    x, y, model = problem()
    whole = parts_gradient(model, x, y, [16] * 4)
    for part_x, part_y in zip(x.split(16), y.split(16), strict=True):
        model.zero_grad()
        (F.cross_entropy(model(part_x), part_y) / 4).backward()
    called = gradient(model)
    return {
        "called before each part: same gradient": torch.allclose(called, whole, atol=1e-5),
        "called before each part: only the last part counts": torch.allclose(
            called, parts_gradient(model, x[48:], y[48:], [16]) / 4, atol=1e-5
        ),
    }


@PAGE.claim(
    "L052",
    "Gradient accumulation does not change BatchNorm: statistics come from each micro-batch.",
    rule=lambda seen: TRUE if seen["updates of the running mean in one step of 4 parts"] == 4
    and not seen["BatchNorm: gradient of the whole batch"] else FALSE,
    right="On this version BatchNorm sees more than the micro-batch.",
    page="generated/torch.nn.BatchNorm1d.html",
)  # fmt: skip
@PAGE.claim(
    "L053",
    "To repair BatchNorm under gradient accumulation, replace it with GroupNorm or SyncBatchNorm.",
    rule=lambda seen: FALSE if not seen["GroupNorm: gradient of the whole batch"] else TRUE
    if seen["SyncBatchNorm: gradient of the whole batch"] else CAVEAT,
    right="GroupNorm does, since it looks at each example by itself. SyncBatchNorm joins the processes that run at "
    "the same time, not the parts that come one after the other: on one device it is BatchNorm.",
    page="generated/torch.nn.SyncBatchNorm.html",
)  # fmt: skip
def norms_in_four_parts() -> Evidence:
    batch_norm = nn.BatchNorm1d(16)
    norms = {"BatchNorm": batch_norm, "GroupNorm": nn.GroupNorm(4, 16), "SyncBatchNorm": nn.SyncBatchNorm(16)}
    same = {
        f"{name}: gradient of the whole batch": _same_as_whole(_with(norm), [16] * 4) for name, norm in norms.items()
    }
    updates = int(batch_norm.num_batches_tracked) - 1  # without the pass with the whole batch
    return {"updates of the running mean in one step of 4 parts": updates, **same}
