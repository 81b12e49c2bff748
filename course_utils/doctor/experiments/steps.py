"""Run a few steps, the reader's own or the usual one, and record what they do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from course_utils.doctor.experiments.run import Run, edited_leaves, observing
from course_utils.doctor.parts import clone_tree, tensors_of
from course_utils.doctor.running import Outcome, attempt
from course_utils.doctor.tracing import counted

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

LEAST, MOST = 6, 40


@dataclass
class Steps(Run):
    """What the steps did; see Run.

    Args:
        is_guess: whether the reader has a loop of their own, so that these steps only stand in for it.
    """

    is_guess: bool = False


def run_steps(examination: Examination) -> Steps:
    """Run a first step bare, to time it and to see whether it runs at all, and then some under observation."""
    parts, batches = examination.parts, examination.batches
    facts = Steps(is_guess=parts.step is None and parts.train is not None)
    if parts.loader is None or parts.model is None or not batches.kept:
        return facts
    if parts.step is None and (parts.loss_fn is None or not parts.optimizers):
        return facts
    bare = _bare(examination, 2)
    if bare.is_over_time:
        facts.is_over_time = True
        return facts
    _observed(examination, facts)
    if facts.failure is not None:
        again = _bare(examination, facts.failed_at + 1, timing=False)
        if again.is_done:  # the doctor's own doing: observe less
            facts = Steps(is_guess=facts.is_guess)
            _observed(examination, facts, functions=False)
            facts.failure = None
        elif again.failure is not None:
            facts.failure = again.failure
    if facts.failure is not None:
        facts.failure.again = lambda: _few(examination, facts.failed_at + 1)
    return facts


def _few(examination: Examination, count: int) -> None:
    """Run so many steps as they come."""
    for batch in itertools.islice(_cycle(examination), count):
        examination.parts.run_step(batch)


def _bare(examination: Examination, count: int, *, timing: bool = True) -> Outcome:
    seconds: list[float] = []

    def go() -> None:
        for batch in itertools.islice(_cycle(examination), count):
            started = time.perf_counter()
            examination.parts.run_step(batch)
            seconds.append(time.perf_counter() - started)
            if sum(seconds) > 5:
                return

    limit = examination.budget.limit_s * 0.6 if timing else examination.budget.share(0.5)
    examination._is_dirty = True
    outcome = attempt(go, limit)
    examination.rewind()
    if timing:
        examination.budget.step_s = min(seconds, default=outcome.seconds) + examination.batches.fetch_s
    return outcome


def _observed(examination: Examination, facts: Steps, *, functions: bool = True) -> None:
    parts, batches = examination.parts, examination.batches
    epoch = len(batches.sizes) if batches.is_whole else None
    least = max(LEAST, min(epoch or LEAST, MOST))
    started = time.perf_counter()
    allowed = examination.budget.share(0.35)

    def one(batch: Any) -> None:
        before = clone_tree(batch) if facts.count < 2 else None
        loss = parts.run_step(batch)
        if before is not None:
            facts.edited += edited_leaves(before, batch)
            facts.is_stored = facts.is_stored or any(map(examination.snapshot.keeps_storage_of, tensors_of(batch)))
        facts.losses.append(_float(next(iter(tensors_of(loss)), loss)))
        facts.count += 1

    with observing(examination, facts, functions=functions) as recorder:

        def go() -> None:
            passes = 0
            while facts.count < least and passes < least:
                passes += 1
                for batch in counted(fresh(examination), recorder, parts.loader):
                    one(batch)
                    is_late = time.perf_counter() - started > allowed and facts.count >= 2
                    if facts.count >= MOST or is_late:
                        return
                facts.is_whole_epoch = True

        examination._is_dirty = True
        outcome = attempt(go, max(allowed, 0.2) * 2)
    facts.failure, facts.failed_at = outcome.failure, facts.count
    facts.warnings = outcome.warnings
    examination.rewind()


def fresh(examination: Examination) -> Iterator[Any]:
    """Return a new pass over the loader, or over what was kept of one that can't be repeated."""
    if examination.batches.is_one_shot:
        return iter(clone_tree(examination.batches.kept))
    return iter(examination.parts.loader)


def _cycle(examination: Examination) -> Iterator[Any]:
    """Yield batches for ever, pass after pass."""
    while True:
        is_empty = True
        for batch in fresh(examination):
            is_empty = False
            yield batch
        if is_empty:
            return


def _float(value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)  # or PyTorch would warn, about us
    except (TypeError, ValueError, RuntimeError):
        return float("nan")
