"""Facts for the schedule designer: the learning rate that a plan really gives, and what a tiny training makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from course_utils.errors import UsageError
from course_utils.text import did_you_mean

Scheduler = LRScheduler | ReduceLROnPlateau
WARM_UP_START = 1e-3  # share of the peak where a warm-up begins; a rate of exactly 0 would waste the first step


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A schedule as a person describes it; all lengths in epochs, so that the batch size doesn't matter.

    Raises:
        UsageError: if ``kind`` is unknown, a number is not positive, or the warm-up leaves no time.
    """

    kind: str = "onecycle"  # a key of KINDS
    peak: float = 0.3  # highest learning rate
    warmup: float = 2.0  # epochs of straight rise to the peak
    epochs: int = 8  # passes over the training examples
    steps_per_epoch: int = 20  # optimizer steps in one pass

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            fix = did_you_mean(self.kind, KINDS)
            raise UsageError(f"There is no schedule called {self.kind!r}.", expected=", ".join(KINDS), fix=fix)
        if not (self.peak > 0 and self.epochs >= 1 and self.steps_per_epoch >= 1):  # this way round: nan is refused too
            raise UsageError("A plan needs a rate, an epoch and a step.", got=self, expected="positive numbers")
        if not 0 <= self.warmup < self.epochs:
            got = f"warmup={self.warmup}, epochs={self.epochs}"
            raise UsageError(
                "The warm-up leaves no time to train.", got=got, expected=f"less than {self.epochs} epochs"
            )

    @property
    def n_steps(self) -> int:
        """Optimizer steps in the whole run."""
        return self.epochs * self.steps_per_epoch

    @property
    def warmup_steps(self) -> int:
        """Optimizer steps of the warm-up."""
        return round(self.warmup * self.steps_per_epoch)


def _constant(optimizer: Optimizer, plan: Plan, steps: int) -> LRScheduler:
    return lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)


def _stairs(optimizer: Optimizer, plan: Plan, steps: int) -> LRScheduler:
    return lr_scheduler.StepLR(optimizer, step_size=max(1, math.ceil(steps / 3)), gamma=0.1)


def _cosine(optimizer: Optimizer, plan: Plan, steps: int) -> LRScheduler:
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def _restarts(optimizer: Optimizer, plan: Plan, steps: int) -> LRScheduler:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=max(1, math.ceil(steps / 3)))


KINDS: dict[str, Callable[[Optimizer, Plan, int], LRScheduler] | None] = {
    "constant": _constant,
    "stairs": _stairs,
    "cosine": _cosine,
    "warm restarts": _restarts,
    "onecycle": None,  # brings its own warm-up
    "plateau": None,  # waits for the validation loss
}


def make_scheduler(optimizer: Optimizer, plan: Plan) -> Scheduler:
    """Return torch's scheduler for a plan. All but ``plateau`` are to be stepped once per optimizer step.

    ``plateau`` is to be stepped once per epoch with the validation loss; its warm-up is left out.
    """
    if plan.kind == "plateau":
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
    if plan.kind == "onecycle":
        share = max(plan.warmup_steps, 2) / plan.n_steps  # with 1 step torch divides by zero
        return lr_scheduler.OneCycleLR(optimizer, max_lr=plan.peak, total_steps=plan.n_steps, pct_start=share)
    build = KINDS[plan.kind]
    assert build is not None
    if plan.warmup_steps == 0:
        return build(optimizer, plan, plan.n_steps)
    rise = lr_scheduler.LinearLR(optimizer, start_factor=WARM_UP_START, total_iters=plan.warmup_steps)
    then = build(optimizer, plan, plan.n_steps - plan.warmup_steps)
    return lr_scheduler.SequentialLR(optimizer, [rise, then], milestones=[plan.warmup_steps])


def lr_curve(plan: Plan) -> tuple[float, ...]:
    """Return the learning rate that each optimizer step uses, by stepping torch's own scheduler.

    For ``plateau`` the validation loss is taken to fall all the time, so that the rate stays.
    """
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=plan.peak, momentum=0.9)
    scheduler = make_scheduler(optimizer, plan)
    rates = []
    for _ in range(plan.n_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if not isinstance(scheduler, ReduceLROnPlateau) and len(rates) < plan.n_steps:
            scheduler.step()
    return tuple(rates)


@dataclass(frozen=True)
class Trial:
    """What a tiny training made of a plan."""

    rates: tuple[float, ...]  # learning rate of each step
    losses: tuple[float, ...]  # training loss of each step, nats
    accuracies: tuple[float, ...]  # on held-out examples, one per epoch, 0 to 1


def tiny_training(plan: Plan, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], seed: int = 0) -> Trial:
    """Train one hidden layer of 32 units with SGD and momentum 0.9 under a plan.

    Args:
        plan: the schedule; ``steps_per_epoch`` decides the batch size.
        train: images (N, ...) and labels (N,).
        held_out: the same, to measure the accuracy after each epoch.
        seed: of weights and shuffling.
    """
    (images, labels), generator = train, torch.Generator().manual_seed(seed)
    images = images.flatten(1)
    first, second = _layer(images.shape[1], 32, generator), _layer(32, 10, generator)
    parameters = [*first, *second]
    optimizer = torch.optim.SGD(parameters, lr=plan.peak, momentum=0.9)
    scheduler = make_scheduler(optimizer, plan)
    rates: list[float] = []
    losses: list[Tensor] = []
    accuracies = []

    def logits(x: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, *first)), *second)

    for _ in range(plan.epochs):
        for index in torch.randperm(len(images), generator=generator).tensor_split(plan.steps_per_epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(logits(images[index]), labels[index])
            loss.backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            losses.append(loss.detach())
            if not isinstance(scheduler, ReduceLROnPlateau) and len(rates) < plan.n_steps:
                scheduler.step()
        with torch.no_grad():
            seen = logits(held_out[0].flatten(1))
            accuracies.append((seen.argmax(1) == held_out[1]).float().mean().item())
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(F.cross_entropy(seen, held_out[1]))
    return Trial(tuple(rates), tuple(torch.stack(losses).tolist()), tuple(accuracies))


def _layer(n_inputs: int, n_outputs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return weight (n_outputs, n_inputs), scaled for ReLU, and bias 0, both to be learned. Source: He et al. 2015."""
    weight = torch.randn(n_outputs, n_inputs, generator=generator) * math.sqrt(2 / n_inputs)
    return weight.requires_grad_(), torch.zeros(n_outputs, requires_grad=True)
