"""What a learning-rate schedule will do: play a copy of it forward."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from course_utils.doctor.tracing import Trace

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

COLLAPSE = 100.0  # a learning rate that falls by this factor within one epoch was meant per epoch
RESTARTING = ("CosineAnnealingWarmRestarts", "CyclicLR")


@dataclass(frozen=True)
class Pace:
    """A schedule that runs at the wrong pace."""

    message: str
    evidence: dict[str, Any]
    fix: str | None = None


def paces(examination: Examination) -> Iterator[Pace]:
    """Yield the schedules of a set-up that run at the wrong pace."""
    from torch.optim import lr_scheduler

    known = {id(s): s for s in [*examination.parts.schedulers, *examination.snapshot.found(lr_scheduler.LRScheduler)]}
    batches = examination.batches
    per_epoch = len(batches.sizes) if batches.is_whole else batches.length
    for trace in examination.traces:
        for key in {event.facts["scheduler"] for event in trace.of_kind("schedule")}:
            scheduler = known.get(key, trace.new_schedulers.get(key))
            if scheduler is None or isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                continue
            is_step = examination.training is None or trace is not examination.training.trace
            if _is_per_batch(trace, key, is_step):
                if per_epoch is not None and per_epoch >= 4:
                    yield from _per_batch(scheduler, per_epoch)
            elif not is_step:
                yield from _per_epoch(scheduler, trace, key, per_epoch, examination)


def _is_per_batch(trace: Trace, key: int, is_step: bool) -> bool:
    calls = [event for event in trace.of_kind("schedule") if event.facts["scheduler"] == key]
    updates = max(1, len(trace.updates))
    return len(calls) >= 0.5 * updates and (is_step or len(calls) >= 2 * max(1, trace.epochs))


def _per_batch(scheduler: Any, per_epoch: int) -> Iterator[Pace]:
    name = type(scheduler).__name__
    rates = simulate(scheduler, per_epoch)
    if not rates:
        return
    first, last = max(rates), rates[-1]
    horizon = getattr(scheduler, "T_max", None) or getattr(scheduler, "total_steps", None)
    if horizon is not None and name not in RESTARTING and name == "CosineAnnealingLR" and horizon < per_epoch:
        low = min(range(len(rates)), key=rates.__getitem__)
        if max(rates[low:]) > 2 * rates[low] + 1e-12 and low < per_epoch - 1:
            yield Pace(
                f"{name}(T_max={horizon}) is stepped once per batch, {per_epoch} times in an epoch: the learning rate "
                "falls and climbs again within one epoch.",
                {"T_max": horizon, "steps_per_epoch": per_epoch, "lowest": rates[low], "later": max(rates[low:])},
                "T_max = epochs * len(loader)  # or step once per epoch",
            )
        return
    if horizon is not None and horizon >= per_epoch:
        return
    if name in RESTARTING or (last <= 0 < first and horizon is not None):
        return
    if first > 0 and last < first / COLLAPSE:
        yield Pace(
            f"{name} is stepped once per batch: in the first epoch of {per_epoch} batches the learning rate falls "
            f"from {first:.3g} to {last:.3g}.",
            {"steps_per_epoch": per_epoch, "first_learning_rate": first, "learning_rate_after_one_epoch": last},
        )


def _per_epoch(
    scheduler: Any, trace: Trace, key: int, per_epoch: int | None, examination: Examination
) -> Iterator[Pace]:
    """A schedule whose length is counted in batches, but that steps once per epoch."""
    name = type(scheduler).__name__
    horizon = getattr(scheduler, "total_steps", None) or getattr(scheduler, "T_max", None)
    calls = sum(event.facts["scheduler"] == key for event in trace.of_kind("schedule"))
    if name not in ("OneCycleLR", "CosineAnnealingLR") or not horizon or per_epoch is None or per_epoch < 4:
        return
    is_cut = examination.training is not None and examination.training.is_cut
    if is_cut or trace.epochs < 1 or calls > trace.epochs + 1:
        return
    if (
        horizon % per_epoch == 0
        and horizon >= 2 * per_epoch
        and horizon > 3 * calls
        and horizon <= 2 * per_epoch * trace.epochs
    ):
        yield Pace(
            f"{name} is {horizon} steps long, that is {horizon // per_epoch} epochs of {per_epoch} batches, but it "
            "steps once per epoch: only its beginning is ever used.",
            {"length": horizon, "steps_per_epoch": per_epoch, "calls": calls},
            "scheduler.step()  # after every optimizer.step()",
        )


def simulate(scheduler: Any, count: int) -> list[float]:
    """Return the largest learning rate after each of ``count`` steps of a copy, the present one first."""
    optimizer = scheduler.optimizer
    dummies = [torch.zeros(1, requires_grad=True) for _ in optimizer.param_groups]
    groups = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": [dummy]}
        for group, dummy in zip(optimizer.param_groups, dummies, strict=True)
    ]
    twin = torch.optim.SGD(dummies, lr=0.1)
    twin.param_groups = groups
    rates = [max(float(group["lr"]) for group in groups)]
    try:
        played = copy.copy(scheduler)
        vars(played).update({k: copy.copy(v) if isinstance(v, (list, dict)) else v for k, v in vars(scheduler).items()})
        played.optimizer = twin
        for inner in getattr(played, "_schedulers", []):
            if inner is not None:
                return []  # composed schedules are not played
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(min(count, 5000)):
                played.step()
                rates.append(max(float(group["lr"]) for group in groups))
    except Exception:
        return rates if len(rates) > 1 else []
    return rates
