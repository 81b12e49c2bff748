"""Lesson 06's explorers: a memory budget beside its measurement, and a loss scale driven by real overflows."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from course_utils.ledger import (
    BACKWARD,
    FORWARD,
    OWNER_COLOURS,
    OWNERS,
    STEP,
    Ledger,
    Recording,
    measure_step,
    mlp_budget,
)
from course_utils.precision import ScaledStep, scaled_training
from course_utils.text import table
from course_utils.widgets.panel import Choice, Slider, Switch, View, explore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

MIB = 1024**2
OPTIMIZERS = ("SGD", "SGD with momentum", "Adam")
N_INPUTS, N_CLASSES = 784, 10
STEPS = 60


def explore_budget() -> None:
    """Show the memory budget calculator."""
    explore(
        budget_view,
        batch=Slider("batch size", 16, 1024, 256, 16),
        width=Slider("width", 64, 1024, 256, 64),
        depth=Slider("hidden layers", 1, 6, 3, 1),
        optimizer=Choice("optimizer", list(OPTIMIZERS), "Adam"),
        mixed=Switch("bfloat16 autocast", False),
    )


def budget_view(batch: int, width: int, depth: int, optimizer: str, mixed: bool) -> View:
    """Compute the budget of one training step of an MLP, run the step, and put both side by side."""
    import matplotlib.pyplot as plt

    from course_utils.plots import styled

    budget = mlp_budget(batch, N_INPUTS, [width] * depth, N_CLASSES, optimizer, mixed)
    memory = measured_step(batch, width, depth, optimizer, mixed)
    measured = as_held(memory)
    with styled():
        figure, ax = plt.subplots(figsize=(7.2, 2.4))
        draw_ledgers(ax, {"by arithmetic": budget, "measured": measured})
    return View(figure, describe_budget(budget, measured, memory))


def measured_step(batch: int, width: int, depth: int, optimizer: str, mixed: bool) -> Recording:
    """Run two training steps of the MLP, with zeros for a batch, and record the second."""
    import torch
    import torch.nn.functional as F

    from course_utils.models import MLP

    model = MLP(N_INPUTS, [width] * depth, N_CLASSES)
    x, y = torch.zeros(batch, N_INPUTS), torch.zeros(batch, dtype=torch.int64)
    settings = {"lr": 0.1, "momentum": 0.9} if optimizer == "SGD with momentum" else {"lr": 0.1}
    kind = torch.optim.Adam if optimizer == "Adam" else torch.optim.SGD
    stepper = kind(model.parameters(), **settings)

    def step() -> None:
        stepper.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        stepper.step()

    return measure_step(model, step, stepper)


def as_held(memory: Recording) -> Ledger:
    """Return what a step holds: activations at their most, the rest as it stands when the step is over."""
    after = memory.after(STEP)
    return Ledger(after.parameters, after.gradients, after.optimizer_state, memory.most().activations, after.other)


def draw_ledgers(ax: Axes, ledgers: dict[str, Ledger]) -> Axes:
    """Draw one stacked bar per ledger, in MiB, a colour per owner."""
    for owner in OWNERS:
        lefts = [sum(getattr(ledger, o) for o in OWNERS[: OWNERS.index(owner)]) / MIB for ledger in ledgers.values()]
        sizes = [getattr(ledger, owner) / MIB for ledger in ledgers.values()]
        label = owner.replace("_", " ")
        ax.barh(list(ledgers), sizes, left=lefts, color=OWNER_COLOURS[owner], label=label, height=0.6)
    ax.invert_yaxis()
    ax.set(xlabel="MiB")
    ax.legend(ncols=len(OWNERS), loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    return ax


def describe_budget(budget: Ledger, measured: Ledger, memory: Recording) -> str:
    """Return both ledgers owner by owner, and when and how high the step peaked."""
    rows = []
    for owner in OWNERS:
        computed, seen = getattr(budget, owner), getattr(measured, owner)
        rows.append((owner.replace("_", " "), f"{computed:>12,}", f"{seen:>12,}", "yes" if computed == seen else "no"))
    rows.append(("sum", f"{budget.total:>12,}", f"{measured.total:>12,}", "yes" if budget == measured else "no"))
    when = {FORWARD: "forward pass", BACKWARD: "backward pass", STEP: "optimizer's step"}
    phase = when.get(memory.phases[memory.peak_event], "start")
    return "\n".join(
        [
            table(rows, ("bytes", "  arithmetic", "    measured", "equal")),
            f"peak: {memory.peak_bytes / MIB:.1f} MiB, in the {phase}",
        ]
    )


def explore_scale() -> None:
    """Show the loss-scale simulator."""
    explore(
        scale_view,
        start=Slider("start at 2 to the power", 0, 32, 16, 1),
        interval=Slider("good steps until it doubles", 1, 30, 5, 1),
        loss_factor=Choice("loss times", {"1": 1.0, "1/100": 1e-2, "1/10,000": 1e-4, "1/1,000,000": 1e-6}, 1.0),
    )


def scale_view(start: int, interval: int, loss_factor: float) -> View:
    """Train in float16 with torch's scaler; draw the scale of each step, skipped steps, and what was lost."""
    import matplotlib.pyplot as plt

    from course_utils.plots import styled

    history = scaled_training(
        *_digits(), init_scale=2.0**start, growth_interval=interval, loss_factor=loss_factor, steps=STEPS
    )
    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.7))
        draw_scale(left, history)
        draw_lost(right, history)
    return View(figure, describe_scale(history))


def draw_scale(ax: Axes, history: list[ScaledStep]) -> Axes:
    """Draw the scale of each step as a power of two, with a cross where the step was skipped."""
    powers = [math.log2(step.scale) for step in history]
    ax.step(range(len(powers)), powers, where="mid", color="#0072b2")
    skipped = [index for index, step in enumerate(history) if step.skipped]
    ax.plot(skipped, [powers[index] for index in skipped], "x", color="#d55e00", label="skipped")
    ax.set(xlabel="step", ylabel="scale, power of two", title="Loss scale")
    if skipped:
        ax.legend()
    return ax


def draw_lost(ax: Axes, history: list[ScaledStep]) -> Axes:
    """Draw the loss of each step, and the share of the gradient that became 0."""
    ax.plot([step.loss for step in history], color="#999999", label="loss (nats)")
    ax.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None), title="Training with it")
    twin = ax.twinx()
    twin.plot([100 * step.lost for step in history], color="#d55e00", label="gradients lost (%)")
    twin.set(ylabel="became 0 (%)", ylim=(-3, 103))
    twin.grid(False)
    ax.legend(handles=[*ax.lines, *twin.lines], fontsize=8, loc="upper right")
    return ax


def describe_scale(history: list[ScaledStep]) -> str:
    """Return the numbers of the picture as text."""
    powers = [round(math.log2(step.scale)) for step in history]
    skipped = [index for index, step in enumerate(history) if step.skipped]
    return "\n".join(
        [
            f"scale: first 2**{powers[0]}, highest 2**{max(powers)}, last 2**{powers[-1]}",
            f"skipped steps: {len(skipped)} of {len(history)}"
            + (f", the first is step {skipped[0]}" if skipped else ""),
            f"gradients that became 0: {100 * history[0].lost:.0f} % in the first step,"
            f" {100 * max(step.lost for step in history):.0f} % at most",
            f"loss: {history[0].loss:.1f} nats at first, {history[-1].loss:.1f} at last",
        ]
    )


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from course_utils.data import load_digits8

    return load_digits8().train.as_batch()
