"""Run the reader's own training loop for a pass or two, and record what it does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from course_utils.doctor.experiments.run import Run, edited_leaves, observing
from course_utils.doctor.parts import LimitedLoader, clone_tree, tensors_of
from course_utils.doctor.running import attempt
from course_utils.doctor.tracing import CountedLoader, Recorder, replace
from course_utils.errors import UsageError

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

STEPS = 6  # for loops that ask for a number of steps


@dataclass
class Training(Run):
    """What the reader's loop did; see Run.

    Args:
        is_cut: whether it saw fewer batches than it would have.
        hooks_before: for each module, hooks with the same code before.
        hooks_after: and after.
        orders: for each pass, sums of its first batches.
        is_shuffling: whether the loader shuffles.
        set_epochs: calls of DistributedSampler.set_epoch.
        modules: names of the modules by id.
    """

    is_cut: bool = False
    hooks_before: dict[int, dict[Any, int]] = field(default_factory=dict)
    hooks_after: dict[int, dict[Any, int]] = field(default_factory=dict)
    orders: list[tuple[float, ...]] = field(default_factory=list)
    is_shuffling: bool = False
    set_epochs: int = 0
    modules: dict[int, str] = field(default_factory=dict)


def run_training(examination: Examination) -> Training | None:
    """Run ``train`` once, with a loader that is cut where a whole pass would take too long."""
    parts = examination.parts
    if parts.train is None or parts.model is None:
        return None
    _ = examination.steps  # measures how long a step takes
    facts = _observed(examination)
    if facts.failure is not None and not isinstance(facts.failure.error, UsageError):
        again = examination.run(lambda: _train(examination, _given_loader(examination)), 0.3)
        if again.is_done:  # the doctor's own doing: observe less
            facts = _observed(examination, functions=False)
            facts.failure = None
    if facts.failure is not None and isinstance(facts.failure.error, UsageError):
        examination.remarks.append(facts.failure.text.splitlines()[0])
        facts.failure = None
    if facts.failure is not None:
        facts.failure.again = lambda: _train(examination, _given_loader(examination))
    return facts


def _given_loader(examination: Examination) -> Any:
    batches = examination.batches
    return list(clone_tree(batches.kept)) if batches.is_one_shot else examination.parts.loader


def _observed(examination: Examination, *, functions: bool = True) -> Training:
    parts = examination.parts
    model = parts.model
    assert model is not None
    facts = Training(is_shuffling=_is_shuffling(parts.loader))
    facts.modules = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    facts.hooks_before = _hooks(model)
    orders: dict[int, list[float]] = {}
    handed: list[tuple[Any, Any]] = []  # the batch before, as it was, and itself

    def note_order(epoch: int, number: int, batch: Any) -> None:
        if handed:
            facts.edited += edited_leaves(*handed.pop())
        if number < 3 and epoch == 1:
            handed.append((clone_tree(batch), batch))
            facts.is_stored = facts.is_stored or any(map(examination.snapshot.keeps_storage_of, tensors_of(batch)))
        first = next(iter(tensors_of(batch)), None)
        if number < 3 and first is not None:
            orders.setdefault(epoch, []).append(float(first.double().sum()))

    with ExitStack() as stack:
        recorder = stack.enter_context(observing(examination, facts, functions=functions))
        recorder.on_batch = note_order
        replace(stack, DistributedSampler, "set_epoch", _counting(facts))
        loader, cut = _loader(examination, recorder)
        examination._is_dirty = True
        outcome = attempt(lambda: _train(examination, loader), max(0.5, examination.budget.share(0.5)))
        facts.hooks_after = _hooks(model)
    facts.failure, facts.is_over_time, facts.warnings = outcome.failure, outcome.is_over_time, outcome.warnings
    facts.count = facts.failed_at = len(facts.trace.backwards)
    facts.losses = [backward.root for backward in facts.trace.backwards]
    facts.is_cut = outcome.is_over_time or (cut is not None and cut.was_cut)
    facts.is_whole_epoch = not facts.is_cut and outcome.is_done
    facts.orders = [tuple(values) for values in orders.values()]
    examination.rewind()
    return facts


def _train(examination: Examination, loader: Any) -> Any:
    parts = examination.parts
    return parts.call(parts.train, ("model", "loader", "loss_fn", "optimizer"), loader=loader, steps=STEPS)


def short_training(examination: Examination, batches: int) -> Any:
    """Run a short piece of what the reader runs: some steps, or the loop over some batches."""
    import itertools

    from course_utils.doctor.experiments.steps import fresh

    parts = examination.parts
    if parts.train is not None and parts.step is None:
        loader = (
            list(clone_tree(examination.batches.kept[:batches])) if examination.batches.is_one_shot else parts.loader
        )
        return _train(examination, LimitedLoader(loader, batches) if loader is not None else None)
    for batch in itertools.islice(fresh(examination), batches):
        parts.run_step(batch)
    return None


def _counting(facts: Training) -> Any:
    def make(original: Any) -> Any:
        def set_epoch(sampler: Any, epoch: int) -> None:
            facts.set_epochs += 1
            original(sampler, epoch)

        return set_epoch

    return make


def _loader(examination: Examination, recorder: Recorder) -> tuple[Any, LimitedLoader | None]:
    """Return the loader for the reader's loop, cut if a pass would take more than a part of the time."""
    loader, batches = examination.parts.loader, examination.batches
    if loader is None:
        return None, None
    if batches.is_one_shot:
        return CountedLoader(clone_tree(batches.kept), recorder), None
    whole = len(batches.sizes) if batches.is_whole else batches.length
    step_s = examination.budget.step_s or 0.0
    affordable = int(0.25 * examination.budget.left_s / max(step_s * 2.0, 2e-4))
    cut: LimitedLoader | None = None
    if whole is None or whole > max(8, affordable):
        cut = LimitedLoader(loader, max(4, min(affordable, 64)))
    if isinstance(loader, DataLoader):
        return loader if cut is None else cut, cut  # DataLoader passes are counted at the class
    return CountedLoader(loader if cut is None else cut, recorder), cut


def _hooks(model: nn.Module) -> dict[int, dict[Any, int]]:
    """Return how many hooks with the same code each module has."""
    counts: dict[int, dict[Any, int]] = {}
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for module in model.modules():
        for table in tables:
            for hook in getattr(module, table).values():
                code = getattr(hook, "__code__", None) or type(hook)
                own = counts.setdefault(id(module), {})
                own[code] = own.get(code, 0) + 1
    return counts


def _is_shuffling(loader: Any) -> bool:
    sampler = getattr(loader, "sampler", None)
    return isinstance(sampler, RandomSampler) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)
