"""Run the reader's own training loop for a pass or two, and record what it does."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from course_utils.doctor.parts import LimitedLoader, clone_tree, tensors_of
from course_utils.doctor.running import Failure, attempt
from course_utils.doctor.tracing import CountedLoader, Recorder, Trace, count_nodes, recording
from course_utils.doctor.where import reader_frames
from course_utils.errors import UsageError

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

LOOKS = 12  # updates after which the reader's variables are looked at


@dataclass
class Kept:
    """A variable of the reader that keeps graphs alive: how much, after each of some updates."""

    name: str
    sizes: list[int] = field(default_factory=list)
    is_list: bool = False


@dataclass
class Training:
    """What the reader's loop did.

    Args:
        trace: what happened.
        failure: the exception that ended it.
        is_cut: whether it saw fewer batches than it would have.
        hooks_before: hooks on the model's modules before.
        hooks_after: and after.
        kept: variables that keep graphs alive.
        states_alive: (line, tensors that still share memory with the live weights) of state dicts that are still held.
        warnings: that PyTorch gave.
        orders: for each pass, the first batch's fingerprint.
    """

    trace: Trace
    failure: Failure | None = None
    is_cut: bool = False
    is_over_time: bool = False
    hooks_before: dict[int, dict[Any, int]] = field(default_factory=dict)
    hooks_after: dict[int, dict[Any, int]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    states_alive: list[tuple[str, int, int]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    orders: list[tuple[float, ...]] = field(default_factory=list)
    is_shuffling: bool = False
    set_epochs: int = 0
    modules: dict[int, str] = field(default_factory=dict)
    buffers_moved: set[str] = field(default_factory=set)
    value: Any = None


def run_training(examination: Examination) -> Training | None:
    """Run ``train`` once, with a loader that is cut where a whole pass would take too long."""
    parts = examination.parts
    if parts.train is None or parts.model is None:
        return None
    steps = examination.steps  # measures how long a step takes
    recorder = Recorder(parts.model, examination.optimizers, examination.names, _others(examination))
    facts = Training(recorder.trace)
    loader, cut = _loader(examination, recorder, steps.step_s)
    facts.is_shuffling = _is_shuffling(parts.loader)
    facts.modules = {id(module): name or type(module).__name__ for name, module in parts.model.named_modules()}
    facts.hooks_before = _hooks(parts.model)
    buffers = {name: b.detach().clone() for name, b in parts.model.named_buffers()}
    kept: dict[tuple[int, str], Kept] = {}
    looks = 0

    def look() -> None:
        nonlocal looks
        if looks >= LOOKS:
            return
        looks += 1
        seen: set[tuple[int, str]] = set()
        for frame in reader_frames(sys._getframe(1)):
            for name, value in list(frame.f_locals.items()):
                size, is_list = graph_size(value)
                key = (id(frame.f_code), name)
                if key not in seen and (size or key in kept):
                    seen.add(key)
                    kept.setdefault(key, Kept(name, [], is_list)).sizes.append(size)

    recorder.on_update = look

    def go() -> Any:
        return _train(examination, loader)

    orders: dict[int, list[float]] = {}

    def note_order(epoch: int, number: int, batch: Any) -> None:
        """Remember the first values of each pass, to see whether two passes are in one order."""
        if number < 3:
            first = next(iter(tensors_of(batch)), None)
            orders.setdefault(epoch, []).append(float(first.double().sum()) if first is not None else 0.0)

    recorder.on_batch = note_order
    with recording(recorder), _set_epochs(facts):
        examination._is_dirty = True
        outcome = attempt(go, max(0.5, examination.budget.share(0.5)))
        facts.states_alive = _states_alive(recorder, parts.model)
    facts.value = outcome.value
    facts.failure, facts.is_over_time = outcome.failure, outcome.is_over_time
    if isinstance(outcome.failure, Failure) and isinstance(outcome.failure.error, UsageError):
        facts.failure = None
        examination.remarks.append(outcome.failure.text.splitlines()[0])
    facts.is_cut = outcome.is_over_time or (cut is not None and cut.was_cut)
    facts.warnings = outcome.warnings
    facts.hooks_after = _hooks(parts.model)
    facts.buffers_moved = {
        n
        for n, b in parts.model.named_buffers()
        if n in buffers and b.shape == buffers[n].shape and not torch.equal(b, buffers[n])
    }
    facts.kept = list(kept.values())
    facts.orders = [tuple(values) for values in orders.values()]
    examination.rewind()
    return facts


def _train(examination: Examination, loader: Any) -> Any:
    parts = examination.parts
    return parts.call(parts.train, ("model", "loader", "loss_fn", "optimizer"), loader=loader, steps=6)


def _others(examination: Examination) -> list[Tensor]:
    others = [hidden.tensor for hidden in examination.hidden if hidden.tensor.is_floating_point()]
    loss = examination.parts.loss_fn
    return [*others, *(loss.parameters() if isinstance(loss, nn.Module) else ())]


def _loader(examination: Examination, recorder: Recorder, step_s: float) -> tuple[Any, LimitedLoader | None]:
    """Return the loader for the reader's loop, cut if a pass would take more than a part of the time."""
    loader, batches = examination.parts.loader, examination.batches
    if loader is None:
        return None, None
    if batches.is_one_shot:
        return CountedLoader(clone_tree(batches.kept), recorder), None
    whole = len(batches.sizes) if batches.is_whole else batches.length
    affordable = int(0.25 * examination.budget.left_s / max(step_s * 2.0, 2e-4))
    cut: LimitedLoader | None = None
    if whole is None or whole > max(8, affordable):
        cut = LimitedLoader(loader, max(4, min(affordable, 64)))
        loader = cut
    if isinstance(loader, DataLoader) or (cut is not None and isinstance(examination.parts.loader, DataLoader)):
        return loader, cut  # DataLoader passes are counted at the class
    return CountedLoader(loader, recorder), cut


def graph_size(value: Any) -> tuple[int, bool]:
    """Return how many graph nodes a variable keeps alive, and whether it is a container."""
    if isinstance(value, Tensor):
        return (count_nodes(value, 4000) if value.grad_fn is not None else 0), False
    if isinstance(value, (list, deque)) and value and len(value) < 5000:
        held = [
            leaf for item in value for leaf in (tensors_of(item) if isinstance(item, (Tensor, tuple, dict)) else ())
        ]
        with_graph = [leaf for leaf in held if leaf.grad_fn is not None]
        return (len(with_graph) * 2 if with_graph else 0), True
    if isinstance(value, dict) and len(value) < 1000:
        with_graph = [leaf for leaf in value.values() if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        return sum(count_nodes(leaf, 2000) for leaf in with_graph), True
    return 0, False


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


def _states_alive(recorder: Recorder, model: nn.Module) -> list[tuple[str, int, int]]:
    """Return the state dicts that somebody still holds although updates came after, and that follow the weights."""
    live = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    alive = []
    for event in recorder.trace.of_kind("state_dict"):
        tensors = [ref() for ref in event.facts["tensors"]]
        held = [t for t in tensors if t is not None and t.untyped_storage().data_ptr() in live]
        later = len(recorder.trace.updates) - event.at_update
        if tensors and len(held) == len(tensors) and later > 0:
            alive.append((event.facts["where"], len(held), later))
    return alive


def _is_shuffling(loader: Any) -> bool:
    from torch.utils.data import DistributedSampler, RandomSampler

    sampler = getattr(loader, "sampler", None)
    return isinstance(sampler, RandomSampler) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)


class _set_epochs:
    """Count calls of DistributedSampler.set_epoch."""

    def __init__(self, facts: Training) -> None:
        self.facts = facts

    def __enter__(self) -> None:
        from torch.utils.data import DistributedSampler

        self.original = original = DistributedSampler.set_epoch
        facts = self.facts

        def set_epoch(sampler: Any, epoch: int) -> None:
            facts.set_epochs += 1
            original(sampler, epoch)

        DistributedSampler.set_epoch = set_epoch

    def __exit__(self, *_error: object) -> None:
        from torch.utils.data import DistributedSampler

        DistributedSampler.set_epoch = self.original
