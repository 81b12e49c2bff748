"""Run the reader's own validation, and record in which mode and with which graph it works."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader

from course_utils.doctor.experiments.run import Kept, look_at_variables
from course_utils.doctor.functions import Calls, FunctionObserver
from course_utils.doctor.parts import batch_size, length_of, tensors_of
from course_utils.doctor.running import Failure, Outcome, attempt
from course_utils.doctor.tracing import Recorder, Trace, recording
from course_utils.errors import UsageError

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

LISTED = 10_000  # batches at most of which the indices are listed


@dataclass
class Evaluation:
    """What the reader's validation did.

    Args:
        trace: what happened.
        failure: the exception that ended it.
        active: names of Dropout and BatchNorm layers that ran in training mode, while the whole model was too.
        buffers_moved: names of the buffers that it changed.
        weights_moved: whether it changed weights.
        graphs: outputs of the model that require gradients.
        forwards: calls of the model.
        kept: variables that keep graphs alive.
        returned_graphs: tensors with a graph in what it returned.
        mode_before: mode of the model before, and after.
        mixing: for two batches of different size: value of both, of each alone, and their sizes.
    """

    trace: Trace
    failure: Failure | None = None
    is_over_time: bool = False
    active: list[str] = field(default_factory=list)
    buffers_moved: list[str] = field(default_factory=list)
    weights_moved: bool = False
    graphs: int = 0
    forwards: int = 0
    kept: list[Kept] = field(default_factory=list)
    returned_graphs: int = 0
    mode_before: bool = True
    mode_after: bool = True
    value: Any = None
    mixing: tuple[float, float, float, int, int] | None = None
    calls: Calls = field(default_factory=Calls)
    is_same_twice: bool | None = None


def run_evaluation(examination: Examination) -> Evaluation | None:
    """Run ``evaluate`` once under observation, in training mode as it would be met in a loop."""
    parts, model = examination.parts, examination.parts.model
    if parts.evaluate is None or model is None:
        return None
    _ = examination.steps  # measures how long a step takes
    recorder = Recorder(model, examination.optimizers, examination.names)
    facts = Evaluation(recorder.trace, mode_before=model.training)
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    weights = [p.detach().clone() for p in model.parameters()]
    kept: dict[tuple[int, str], Kept] = {}
    active: dict[str, None] = {}

    def look(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module is model:
            facts.forwards += 1
            facts.graphs += any(leaf.requires_grad for leaf in tensors_of(output))
            if facts.forwards <= 8:
                look_at_variables(kept)
        elif id(module) in names and module.training and model.training and _acts(module):
            active.setdefault(names[id(module)])

    recorder.on_forward = look

    def go() -> Any:
        with FunctionObserver(facts.calls):
            return _evaluate(examination)

    with recording(recorder):
        examination._is_dirty = True
        outcome = attempt(go, max(0.5, examination.budget.share(0.4)))
    facts.active = list(active)
    facts.failure, facts.is_over_time, facts.value = outcome.failure, outcome.is_over_time, outcome.value
    if facts.failure is not None and isinstance(facts.failure.error, UsageError):
        examination.remarks.append(facts.failure.text.splitlines()[0])
        facts.failure = None
    if facts.failure is not None:
        facts.failure.again = lambda: _evaluate(examination)
    facts.buffers_moved = [n for n, b in model.named_buffers() if n in buffers and not torch.equal(b, buffers[n])]
    facts.weights_moved = any(not torch.equal(p.detach(), w) for p, w in zip(model.parameters(), weights, strict=False))
    facts.returned_graphs = sum(
        leaf.grad_fn is not None for leaf in tree_leaves(outcome.value) if isinstance(leaf, Tensor)
    )
    facts.mode_after = model.training
    facts.kept = list(kept.values())
    examination.rewind()
    if outcome.is_done and examination.budget.allows(3 * outcome.seconds):
        facts.mixing = _mix(examination)
    return facts


def _evaluate(examination: Examination, loader: Any = None) -> Any:
    parts = examination.parts
    given = {} if loader is None else {"loader": loader, "val_loader": loader}
    validation = parts.get("val_loader") if parts.get("val_loader") is not None else parts.loader
    if loader is None:
        given = {"loader": validation}
    return parts.call(parts.evaluate, ("model", "loader", "loss_fn"), **given)


def _acts(module: nn.Module) -> bool:
    """Tell whether a layer does something else in training mode than in evaluation mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, _BatchNorm):
        return module.track_running_stats
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _mix(examination: Examination) -> tuple[float, float, float, int, int] | None:
    """Evaluate on a long and a short batch together and on each alone, as far as a loader can be found for it."""
    for loader in _loaders(examination):
        batches = _two_batches(loader)
        if batches is None:
            continue
        (first, second), (size_a, size_b), put = batches
        values = []
        for chosen in ([first, second], [first], [second]):
            outcome = _with_batches(examination, loader, put, chosen)
            value = _scalar(outcome.value) if outcome.is_done else None
            values.append(value)
        if all(value is not None for value in values) and values[1] != values[2]:
            return (*values, size_a, size_b)  # type: ignore[return-value]
    return None


def _with_batches(
    examination: Examination, loader: Any, put: Callable[[Any, list[Any]], None], chosen: list[Any]
) -> Outcome:
    def go() -> Any:
        put(loader, chosen)
        return _evaluate(examination)

    return examination.run(go, 0.2)


def _loaders(examination: Examination) -> Iterator[Any]:
    """Yield the loaders that a validation may use: those that were given, then those that can be reached."""
    seen: set[int] = set()
    given = [examination.parts.get("val_loader"), examination.parts.loader]
    for loader in [*given, *examination.snapshot.found(DataLoader)]:
        if loader is not None and id(loader) not in seen:
            seen.add(id(loader))
            yield loader


def _two_batches(loader: Any) -> tuple[tuple[Any, Any], tuple[int, int], Callable[[Any, list[Any]], None]] | None:
    """Return a first batch and one of another size, their sizes, and how to put only chosen batches into the loader."""
    if isinstance(loader, list):
        sized = [(batch_size(batch) or 0, batch) for batch in loader]
        other = next((pair for pair in sized if pair[0] != sized[0][0]), None) if sized else None
        if other is None:
            return None
        return (
            (sized[0][1], other[1]),
            (sized[0][0], other[0]),
            lambda target, chosen: target.__setitem__(slice(None), chosen),
        )
    if isinstance(loader, DataLoader) and isinstance(loader.batch_sampler, BatchSampler) and _is_short(loader):
        state = torch.get_rng_state()
        indices = list(loader.batch_sampler)
        torch.set_rng_state(state)
        other_indices = next((some for some in indices if len(some) != len(indices[0])), None) if indices else None
        if other_indices is None:
            return None

        def put(target: DataLoader, chosen: list[Any]) -> None:
            vars(target)["batch_sampler"] = chosen

        return (indices[0], other_indices), (len(indices[0]), len(other_indices)), put
    return None


def _is_short(loader: DataLoader) -> bool:
    """Tell whether the indices of a whole pass can be listed."""
    length = length_of(loader)
    return length is not None and length <= LISTED


def _scalar(value: Any) -> float | None:
    """Return the first number in what an evaluation returned."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor) and leaf.numel() == 1:
            leaf = leaf.detach().item()
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and math.isfinite(leaf):
            return float(leaf)
    return None
