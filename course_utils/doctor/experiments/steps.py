"""Run a few steps, the reader's own or the usual one, and record what they do."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_utils.doctor.functions import Calls, FunctionObserver
from course_utils.doctor.parts import clone_tree, tensors_of
from course_utils.doctor.running import Failure, Outcome, attempt
from course_utils.doctor.tracing import Recorder, Trace, count_nodes, counted, recording

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

LEAST, MOST = 4, 40
OBSERVED = 4  # steps during which every function is observed


@dataclass
class Root:
    """One call of the model as a whole, as the reader's step made it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@dataclass
class Steps:
    """What the steps did.

    Args:
        count: steps that ran to their end.
        losses: what each returned, NaN where it was no number.
        failure: the exception that stopped them, the same with and without the doctor's observation.
        failed_at: number of the step that failed, from 0.
        trace: what happened.
        calls: functions called in the first steps.
        nodes: size of the loss's graph at each backward.
        roots: first calls of the model.
        edited: names of batch tensors that a step changed in place.
        buffers_moved: names of the buffers that changed.
        weights_moved: ids of the parameters that changed.
        is_whole_epoch: whether every batch was seen.
        graph_holders: where tensors with a graph are kept after a step, with their number.
        warnings: texts of the warnings that the reader's code caused.
    """

    count: int = 0
    losses: list[float] = field(default_factory=list)
    failure: Failure | None = None
    failed_at: int = -1
    trace: Trace | None = None
    calls: Calls = field(default_factory=Calls)
    nodes: list[int] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    buffers_moved: set[str] = field(default_factory=set)
    weights_moved: set[int] = field(default_factory=set)
    is_whole_epoch: bool = False
    graph_holders: dict[str, list[int]] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    values_into: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    graph_leaves: set[int] = field(default_factory=set)
    used_tensors: set[int] = field(default_factory=set)
    hidden_used: set[int] = field(default_factory=set)
    is_over_time: bool = False
    ema: dict[str, Any] = field(default_factory=dict)
    loss_is_leaf: bool = False
    loss_value: Tensor | None = None
    step_s: float = 0.0


def run_steps(examination: Examination) -> Steps:
    """Run a first step bare, to time it and to see whether it runs at all, and then some under observation."""
    facts = Steps()
    parts, batches = examination.parts, examination.batches
    if parts.loader is None or parts.model is None or not batches.kept:
        return facts
    if parts.step is None and (parts.loss_fn is None or not parts.optimizers):
        return facts
    bare = _bare(examination, 2)
    facts.is_over_time = bare.is_over_time
    if bare.is_over_time:
        return facts
    _observed(examination, facts)
    if facts.failure is not None:
        again = _bare(examination, facts.failed_at + 1, timing=False)
        if again.failure is None and again.is_done:  # the doctor's own doing: observe less
            facts = Steps()
            _observed(examination, facts, functions=False)
            if facts.failure is not None:
                facts.failure = None
        elif again.failure is not None:
            facts.failure = again.failure
    return facts


def _bare(examination: Examination, count: int, *, timing: bool = True) -> Outcome:
    parts = examination.parts
    seconds: list[float] = []

    def go() -> None:
        for batch in itertools.islice(_cycle(examination), count):
            started = time.perf_counter()
            parts.run_step(batch)
            seconds.append(time.perf_counter() - started)
            if sum(seconds) > 5:
                return

    limit = examination.budget.limit_s * 0.6 if timing else examination.budget.share(0.5)
    examination._is_dirty = True
    outcome = attempt(go, limit)
    examination.rewind()
    if timing:
        step_s = min(seconds, default=outcome.seconds)
        examination.budget.step_s = step_s + examination.batches.fetch_s
    return outcome


def _observed(examination: Examination, facts: Steps, *, functions: bool = True) -> None:
    parts, batches = examination.parts, examination.batches
    model = parts.model
    assert model is not None
    others = [hidden.tensor for hidden in examination.hidden if hidden.tensor.is_floating_point()]
    if isinstance(parts.loss_fn, nn.Module):
        others += list(parts.loss_fn.parameters())
    recorder = Recorder(model, examination.optimizers, examination.names, others)
    facts.trace = recorder.trace
    weights = {id(p): p.detach().clone() for p in model.parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    epoch = len(batches.sizes) if batches.is_whole else None
    least = max(LEAST, min(epoch or LEAST, MOST))
    started = time.perf_counter()
    allowed = examination.budget.share(0.35)
    hidden_ids = {id(hidden.tensor) for hidden in examination.hidden}
    _watch_forward(recorder, facts, model)

    def noting_use(name: str, args: Any, kwargs: Any, result: Any) -> None:
        if hidden_ids and name not in ("__get__", "__set__"):
            for leaf in args:
                if id(leaf) in hidden_ids:
                    facts.hidden_used.add(id(leaf))

    observer = FunctionObserver(facts.calls, noting_use)

    def one(batch: Any) -> None:
        before = clone_tree(batch) if facts.count < 2 else None
        if functions and facts.count < OBSERVED:
            with observer:
                loss = parts.run_step(batch)
        else:
            loss = parts.run_step(batch)
        if before is not None:
            facts.edited += _edited(before, batch)
        first = next(iter(tensors_of(loss)), loss)
        facts.losses.append(_float(first))
        if facts.count < OBSERVED * 2:
            _note_holders(examination, facts)
        facts.count += 1

    def go() -> None:
        passes = 0
        while facts.count < least and passes < least:
            passes += 1
            for batch in counted(_fresh(examination), recorder, parts.loader):
                one(batch)
                if facts.count >= MOST or (time.perf_counter() - started > allowed and facts.count >= 2):
                    return
            facts.is_whole_epoch = True

    with recording(recorder), _graph_sizes(recorder, facts):
        examination._is_dirty = True
        outcome = attempt(go, max(allowed, 0.2) * 2)
    facts.failure, facts.failed_at = outcome.failure, facts.count
    facts.warnings = outcome.warnings
    facts.weights_moved = {key for key, p in _by_id(model).items() if key in weights and _differs(p, weights[key])}
    facts.buffers_moved = {name for name, b in model.named_buffers() if name in buffers and _differs(b, buffers[name])}
    _note_twins(examination, facts)
    gc.collect(0)
    examination.rewind()
    facts.step_s = examination.budget.step_s or 0.0


def _fresh(examination: Examination) -> Iterator[Any]:
    if examination.batches.is_one_shot:
        return iter(clone_tree(examination.batches.kept))
    return iter(examination.parts.loader)


def _cycle(examination: Examination) -> Iterator[Any]:
    """Yield batches for ever, pass after pass."""
    while True:
        empty = True
        for batch in _fresh(examination):
            empty = False
            yield batch
        if empty:
            return


def _watch_forward(recorder: Recorder, facts: Steps, model: nn.Module) -> None:
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is model and len(facts.roots) < 3:
            facts.roots.append(Root(clone_tree(tuple(inputs)), {}, clone_tree(output)))
        if (
            id(module) in names
            and names[id(module)] not in facts.values_into
            and isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        ):
            first = inputs[0] if inputs else None
            if isinstance(first, Tensor) and first.numel():
                values = first.detach()
                whole = bool((values == values.round()).all())
                facts.values_into[names[id(module)]] = (float(values.min()), float(values.max()), whole)

    recorder.on_forward = note


class _graph_sizes:
    """While open, count the graph under each root of a backward."""

    def __init__(self, recorder: Recorder, facts: Steps) -> None:
        self.recorder, self.facts = recorder, facts

    def __enter__(self) -> None:
        original = self.recorder.before_backward
        facts = self.facts

        def counting(root: Any) -> Any:
            entry = original(root)
            first = next(iter(tensors_of(root)), None)
            if first is not None and len(facts.nodes) < 24:
                facts.nodes.append(count_nodes(first, 5000))
                entry.nodes = facts.nodes[-1]
            if first is not None and first.requires_grad and first.grad_fn is None:
                facts.loss_is_leaf = True
            return entry

        self.recorder.before_backward = counting  # type: ignore[method-assign]

    def __exit__(self, *_error: object) -> None:
        del self.recorder.before_backward


def _note_holders(examination: Examination, facts: Steps) -> None:
    """Count tensors with a graph in what the reader's objects hold."""
    for name, module in examination.parts.model.named_modules() if examination.parts.model is not None else ():
        for own, value in vars(module).items():
            if own in ("_parameters", "_buffers", "_modules"):
                continue
            held = [leaf for leaf in tensors_of(value) if leaf.grad_fn is not None]
            if held:
                path = f"{name}.{own}" if name else own
                facts.graph_holders.setdefault(path, []).append(
                    sum(count_nodes(leaf, 2000) for leaf in held[-3:]) + len(held)
                )
    for number, (container, _) in enumerate(examination.snapshot._contents):
        if isinstance(container, list) and container and isinstance(container[-1], Tensor):
            held = [leaf for leaf in container if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
            if held:
                facts.graph_holders.setdefault(f"a list ({len(container)} tensors)#{number}", []).append(len(held))


def _note_twins(examination: Examination, facts: Steps) -> None:
    """Compare an averaged copy (EMA) with the model after the steps."""
    from course_utils.doctor.experiments.twins import compare_twin, find_twin

    twin = find_twin(examination)
    if twin is not None and examination.parts.model is not None:
        facts.ema = compare_twin(examination, twin)


def _by_id(model: nn.Module) -> dict[int, Tensor]:
    return {id(p): p for p in model.parameters()}


def _edited(before: Any, after: Any) -> list[str]:
    from course_utils.doctor.parts import named_leaves

    pairs = zip(named_leaves(before), named_leaves(after), strict=False)
    return [name for (name, old), (_, new) in pairs if old.shape != new.shape or _differs(old, new)]


def _differs(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return True
    if first.is_meta or second.is_meta:
        return False
    return not torch.equal(torch.nan_to_num(first.detach()), torch.nan_to_num(second.detach()))


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")
