"""Lesson 05's explorer: design a schedule, see the rate that torch really uses, and train with it at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from course_utils.schedules import KINDS, Plan, Trial, tiny_training
from course_utils.text import table
from course_utils.widgets.panel import Choice, Slider, View, explore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

PEAKS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
STEPS_PER_EPOCH = 20  # about 63 of the 1,257 training examples each


def explore_schedule() -> None:
    """Show the schedule designer."""
    explore(
        schedule_view,
        kind=Choice("schedule", list(KINDS), "onecycle"),
        peak=Choice("peak rate", {f"{rate:g}": rate for rate in PEAKS}, 0.3),
        warmup=Slider("warm-up (epochs)", 0.0, 4.0, 2.0, 0.5),
        epochs=Slider("epochs", 5, 12, 8, 1),
    )


def schedule_view(kind: str, peak: float, warmup: float, epochs: int) -> View:
    """Draw the learning rate of each step and the training that it drives, on the 8x8 digits."""
    import matplotlib.pyplot as plt

    from course_utils.plots import styled

    plan = Plan(kind=kind, peak=peak, warmup=warmup, epochs=epochs, steps_per_epoch=STEPS_PER_EPOCH)
    trial = tiny_training(plan, *_digits())
    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.9))
        draw_rates(left, trial)
        draw_training(right, trial)
    return View(figure, describe(plan, trial))


def draw_rates(ax: Axes, trial: Trial) -> Axes:
    """Draw the learning rate that each step used."""
    ax.plot(trial.rates, color="#0072b2")
    ax.set(xlabel="step", ylabel="learning rate", title="Learning rate used", ylim=(0, 1.08 * max(trial.rates)))
    return ax


def draw_training(ax: Axes, trial: Trial) -> Axes:
    """Draw the training loss of each step, and the accuracy on held-out digits after each epoch."""
    steps = len(trial.losses) // len(trial.accuracies)
    losses = [min(loss, 10.0) if math.isfinite(loss) else 10.0 for loss in trial.losses]
    ax.plot(losses, color="#999999", linewidth=1, label="training loss (nats)")
    ax.set(xlabel="step", ylabel="loss (nats)", ylim=(0, 1.05 * max(2.5, *losses)), title="Training with it")
    twin = ax.twinx()
    ends = [steps * (epoch + 1) for epoch in range(len(trial.accuracies))]
    twin.plot(ends, [100 * share for share in trial.accuracies], "o-", color="#d55e00", label="accuracy (%)")
    twin.set(ylabel="held-out accuracy (%)", ylim=(0, 105))
    twin.grid(False)
    ax.legend(handles=[*ax.lines, *twin.lines], loc="center right", fontsize=8)
    return ax


def describe(plan: Plan, trial: Trial) -> str:
    """Return the numbers of the picture as text."""
    highest = trial.rates.index(max(trial.rates))
    rates = trial.rates
    lines = [
        f"{plan.kind}, {plan.epochs} epochs of {plan.steps_per_epoch} steps = {plan.n_steps} steps",
        f"learning rate: first {rates[0]:.3g}, highest {max(rates):.3g} at step {highest}, last {rates[-1]:.3g}",
    ]
    if plan.kind == "plateau":
        lines.append("plateau: steps once per epoch with the validation loss; it has no warm-up of its own")
    rows = [
        (epoch + 1, f"{_mean(trial.losses, epoch, plan.steps_per_epoch):.3f}", f"{100 * share:.1f} %")
        for epoch, share in enumerate(trial.accuracies)
    ]
    return "\n".join(lines) + "\n\n" + table(rows, ("epoch", "mean loss (nats)", "held-out accuracy"))


def _mean(losses: Sequence[float], epoch: int, steps: int) -> float:
    return math.fsum(losses[epoch * steps : (epoch + 1) * steps]) / steps


@cache
def _digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from course_utils.data import load_digits8

    digits = load_digits8()
    return digits.train.as_batch(), digits.test.as_batch()
