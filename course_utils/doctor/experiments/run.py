"""What is recorded while the reader's step or loop runs; shared by both."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_utils.doctor.experiments.twins import compare_twin, find_twin
from course_utils.doctor.functions import Calls, FunctionObserver
from course_utils.doctor.parts import clone_tree, named_leaves, tensors_of
from course_utils.doctor.running import Failure
from course_utils.doctor.snapshot import is_library
from course_utils.doctor.tracing import Recorder, Trace, count_nodes, custom_functions, nodes_under, recording
from course_utils.doctor.where import reader_frames

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

OBSERVED = 4  # updates during which every function is observed
LOOKS = 12  # updates after which the reader's variables are looked at
ROOTS = 3


@dataclass
class Root:
    """One call of the model as a whole: its arguments and what it returned, copied."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs


@dataclass
class Kept:
    """A variable of the reader that keeps graphs alive: how much, at some moments."""

    name: str
    sizes: list[int] = field(default_factory=list)


@dataclass
class Run:
    """What happened while the reader's code trained a little.

    Args:
        trace: the events in order.
        calls: functions of PyTorch that were called at the beginning.
        failure: the exception that ended it.
        failed_at: number of the step that failed, from 0.
        is_over_time: whether the doctor had to stop it.
        is_whole_epoch: whether every batch was seen.
        count: steps.
        losses: their values.
        nodes: size of the graph under the loss, at each backward.
        roots: first calls of the model.
        weights_moved: ids of the parameters that changed.
        buffers_moved: names of the buffers that changed.
        hidden_used: ids of hidden tensors that some function was given.
        values_into: for linear and convolutional layers, least and largest input, and whether all are whole numbers.
        loss_is_leaf: whether a loss was a leaf that requires gradients.
        loss_dtypes: dtypes of the losses.
        functions: custom autograd Functions in the graph.
        kept: variables that keep graphs alive, after each of the first updates.
        holders: attributes and lists that keep graphs alive, likewise.
        depths: for each of these, nodes of the graphs under it.
        chains: for each of these, whether its graph leads back to the one of the update before.
        pins: for the reader's lists, how many of their tensors hold on to a much larger storage.
        edited: names of batch tensors that were changed in place.
        is_stored: whether batches lie on memory that the reader's objects keep.
        symmetric: names of weights whose units were equal before and are still equal after they moved.
        states_alive: line, tensors and later updates of a state dict that is held and follows the live weights.
        ema: how an averaged copy stands to the model.
        warnings: that PyTorch gave.
    """

    trace: Trace = field(default_factory=Trace)
    calls: Calls = field(default_factory=Calls)
    failure: Failure | None = None
    failed_at: int = -1
    is_over_time: bool = False
    is_whole_epoch: bool = False
    count: int = 0
    losses: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    weights_moved: set[int] = field(default_factory=set)
    buffers_moved: set[str] = field(default_factory=set)
    hidden_used: set[int] = field(default_factory=set)
    values_into: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    loss_is_leaf: bool = False
    loss_dtypes: set[torch.dtype] = field(default_factory=set)
    functions: set[Any] = field(default_factory=set)
    kept: list[Kept] = field(default_factory=list)
    holders: dict[str, list[int]] = field(default_factory=dict)
    depths: dict[str, list[int]] = field(default_factory=dict)
    chains: dict[str, list[bool]] = field(default_factory=dict)
    pins: dict[int, list[int]] = field(default_factory=dict)
    edited: list[str] = field(default_factory=list)
    is_stored: bool = False
    symmetric: list[str] = field(default_factory=list)
    states_alive: tuple[str, int, int] | None = None
    ema: dict[str, Any] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def did_something(self) -> bool:
        return bool(self.trace.backwards or self.trace.updates)


@contextmanager
def observing(examination: Examination, run: Run, *, functions: bool = True) -> Iterator[Recorder]:
    """Record into ``run`` what the reader's code does in the block."""
    model = examination.parts.model
    assert model is not None
    recorder = Recorder(model, examination.optimizers, examination.names, _others(examination))
    run.trace = recorder.trace
    weights = {id(p): p.detach().clone() for p in model.parameters()}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    hidden = {id(item.tensor) for item in examination.hidden}

    def noting_use(args: Any) -> None:
        if hidden:
            run.hidden_used.update(id(leaf) for leaf in args if id(leaf) in hidden)

    observer = FunctionObserver(run.calls, noting_use)
    observer.on_judged = recorder.note_judged
    kept: dict[tuple[int, str], Kept] = {}
    heads: dict[str, set[Any]] = {}
    _watch_forward(recorder, run, model)
    _watch_losses(recorder, run)

    def after_update() -> None:
        updates = len(recorder.trace.updates)
        if updates >= OBSERVED:
            observer.is_active = False
        if updates <= LOOKS:
            look_at_variables(kept)
            _look_at_holders(examination, run, heads)
        run.states_alive = _held_state(recorder, model) or run.states_alive

    recorder.on_update = after_update
    with recording(recorder):
        if functions:
            with observer:
                yield recorder
        else:
            yield recorder
    run.kept = list(kept.values())
    run.weights_moved = {id(p) for p in model.parameters() if id(p) in weights and differs(p, weights[id(p)])}
    run.buffers_moved = {n for n, b in model.named_buffers() if n in buffers and differs(b, buffers[n])}
    run.symmetric = [
        name for name, p in model.named_parameters()
        if id(p) in run.weights_moved and _rows_equal(p) and _rows_equal(weights[id(p)])
    ]  # fmt: skip
    twin = find_twin(examination)
    if twin is not None:
        run.ema = compare_twin(examination, twin)


def _others(examination: Examination) -> list[Tensor]:
    """Return trainable tensors outside of the model whose gradients matter: hidden ones, and those of the loss."""
    others = [item.tensor for item in examination.hidden if item.tensor.is_floating_point()]
    loss = examination.parts.loss_fn
    return [*others, *(loss.parameters() if isinstance(loss, nn.Module) else ())]


def _watch_forward(recorder: Recorder, run: Run, model: nn.Module) -> None:
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module is model and len(run.roots) < ROOTS and output is not None and not _is_wrapped((args, kwargs)):
            run.roots.append(Root(clone_tree(tuple(args)), clone_tree(kwargs), clone_tree(output)))
        name = names.get(id(module))
        if (
            name is not None
            and name not in run.values_into
            and isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))
        ):
            first = args[0] if args else None
            if (
                isinstance(first, Tensor)
                and first.numel()
                and not torch._C._functorch.is_functorch_wrapped_tensor(first)
            ):
                values = first.detach()
                is_whole = bool((values == values.round()).all())
                run.values_into[name] = (float(values.min()), float(values.max()), is_whole)

    recorder.on_forward = note


def _is_wrapped(tree: Any) -> bool:
    """Tell whether there are tensors that live only inside of vmap or another function transform."""
    return any(torch._C._functorch.is_functorch_wrapped_tensor(leaf) for leaf in tensors_of(tree))


def _watch_losses(recorder: Recorder, run: Run) -> None:
    def note(first: Tensor) -> None:
        if len(run.nodes) < 3:
            run.functions |= custom_functions(first)
        if len(run.nodes) < 24:
            run.nodes.append(count_nodes(first, 5000))
        if first.requires_grad and first.grad_fn is None:
            run.loss_is_leaf = True
        run.loss_dtypes.add(first.dtype)

    recorder.on_backward = note


def look_at_variables(kept: dict[tuple[int, str], Kept]) -> None:
    """Note how much graph the variables of the reader's running functions keep alive."""
    seen: set[tuple[int, str]] = set()
    for frame in reader_frames(sys._getframe(1)):
        for name, value in list(frame.f_locals.items()):
            key = (id(frame.f_code), name)
            size = graph_size(value)
            if key not in seen and (size or key in kept):
                seen.add(key)
                kept.setdefault(key, Kept(name)).sizes.append(size)


def graph_size(value: Any) -> int:
    """Return how much graph a variable keeps alive: nodes for a tensor, twice the tensors with a graph for a list."""
    if isinstance(value, Tensor):
        return count_nodes(value, 4000) if value.grad_fn is not None else 0
    if isinstance(value, (list, deque)) and value and len(value) < 5000:
        leaves = [
            leaf for item in value for leaf in (tensors_of(item) if isinstance(item, (Tensor, tuple, dict)) else ())
        ]
        return 2 * sum(leaf.grad_fn is not None for leaf in leaves)
    if isinstance(value, dict) and len(value) < 1000:
        leaves = [leaf for leaf in value.values() if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        return sum(count_nodes(leaf, 2000) for leaf in leaves)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and not isinstance(value, (nn.Module, type)) and not is_library(type(value).__module__):
        leaves = [leaf for leaf in own.values() if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        return sum(count_nodes(leaf, 2000) for leaf in leaves)  # a meter that adds up losses
    return 0


def _look_at_holders(examination: Examination, run: Run, heads: dict[str, set[Any]]) -> None:
    """Note how much graph attributes, variables and lists of the reader keep alive, and whether it is a chain.

    Args:
        examination: whose objects are looked at.
        run: gets the numbers.
        heads: for each holder, the graph's nodes that it held at the update before; is brought up to date.
    """
    for name, value in _holders(examination):
        held = [leaf for leaf in tensors_of(value) if leaf.grad_fn is not None]
        if not held:
            heads.pop(name, None)
            continue
        under = set().union(*(nodes_under(leaf, 2000) for leaf in held[-3:]))
        size = len(held) if name.startswith("list #") else len(under) + len(held)
        run.holders.setdefault(name, []).append(size)
        run.depths.setdefault(name, []).append(len(under))
        run.chains.setdefault(name, []).append(bool(heads.get(name, set()) & under))
        heads[name] = {leaf.grad_fn for leaf in held}
    for number, container in enumerate(examination.snapshot.lists):
        pinned = sum(map(_pins, container)) if container and isinstance(container[-1], Tensor) else 0
        if pinned:
            run.pins.setdefault(number, []).append(pinned)


def _holders(examination: Examination) -> Iterator[tuple[str, Any]]:
    """Yield what may hold on to a graph from one update to the next: attributes, globals, lists and dicts."""
    model = examination.parts.model
    modules = {} if model is None else {id(module): name for name, module in model.named_modules()}
    owners = [*(model.modules() if model is not None else ()), *examination.snapshot.owners]
    for owner in {id(owner): owner for owner in owners}.values():
        prefix = modules.get(id(owner), type(owner).__name__)
        for name, value in [*vars(owner).items(), *vars(owner).get("_buffers", {}).items()]:
            if name not in ("_parameters", "_buffers", "_modules"):
                yield f"{prefix}.{name}" if prefix else name, value
    yield from examination.snapshot.global_values()
    for number, container in enumerate(examination.snapshot.lists):
        if container and isinstance(container[-1], Tensor):
            yield f"list #{number}", container
    for number, table in enumerate(examination.snapshot.tables):
        yield f"dict #{number}", [value for value in table.values() if isinstance(value, Tensor)]


def _pins(value: Any) -> bool:
    """Tell whether a tensor lies on a storage more than eight times as large as itself."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or not value.numel():
        return False
    return value.untyped_storage().nbytes() > 8 * value.numel() * value.element_size()


def _held_state(recorder: Recorder, model: nn.Module) -> tuple[str, int, int] | None:
    """Return a state dict that somebody still holds although updates came after, and that follows the weights."""
    events = recorder.trace.of_kind("state_dict")
    if not events:
        return None
    live = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    for event in events:
        tensors = [ref() for ref in event.facts["tensors"]]
        held = [t for t in tensors if t is not None and t.untyped_storage().data_ptr() in live]
        later = len(recorder.trace.updates) - event.at_update
        if tensors and len(held) == len(tensors) and later > 0:
            return event.facts["where"], len(held), later
    return None


def _rows_equal(weight: Tensor) -> bool:
    """Tell whether all units of a layer, the rows of its weight, are one and the same."""
    value = weight.detach()
    return value.ndim >= 2 and value.shape[0] >= 2 and value.is_floating_point() and bool((value == value[:1]).all())


def edited_leaves(before: Any, after: Any) -> list[str]:
    """Return the names of a batch's tensors that are not what they were."""
    pairs = zip(named_leaves(before), named_leaves(after), strict=False)
    return [name for (name, old), (_, new) in pairs if old.shape != new.shape or differs(old, new)]


def differs(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors differ in shape, dtype or any value; NaN equals NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return True
    if first.is_meta or second.is_meta:
        return False
    return not torch.equal(torch.nan_to_num(first.detach()), torch.nan_to_num(second.detach()))
