"""Record what the reader's step or loop does, in order: clearing, forward, backward, clipping, updates, schedules.

PyTorch's own observation points are used where there are any (global module hooks, optimizer hooks); the rest are
functions that are wrapped for the time of the block and put back.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import lr_scheduler
from torch.optim import optimizer as optimizer_hooks
from torch.utils.data import DataLoader

from course_utils.doctor.parts import batch_size, tensors_of
from course_utils.doctor.where import reader_line

SAMPLE = 4096  # elements of each parameter that are compared before and after an update
MARKED = 64  # backward passes whose graphs are marked
_MARK = "course_utils.doctor"


@dataclass
class Backward:
    """One backward pass.

    Args:
        index: number of the backward, from 0.
        root: value of what was differentiated, NaN if it is no scalar.
        root_has_graph: whether the root was computed from something that requires gradients.
        reached: ids of the tracked parameters whose gradient it changed.
        reached_inputs: whether it filled the ``.grad`` of a tensor that no optimizer and no module holds.
        finite: whether all gradients it left are finite.
        scaled: whether the root came from GradScaler.scale.
        training: whether the model was in training mode at its last forward.
        after: number of forward passes of the model before it.
    """

    index: int
    root: float
    root_has_graph: bool
    reached: set[int] = field(default_factory=set)
    reached_inputs: bool = False
    finite: bool = True
    scaled: bool = False
    training: bool | None = None
    after: int = 0
    under_autocast: bool = False
    first_bad: str = ""
    excused: bool = False  # somebody but the optimizer made use of its gradients
    epoch: int = 0
    batch: int = 0
    updates: int = 0  # made before it
    shares_with: int | None = None  # an earlier backward pass that went through a part of its graph
    cleared_epoch: int = -1  # epoch in which they were thrown away


@dataclass
class Update:
    """One ``optimizer.step()``.

    Args:
        optimizer: id of the optimizer.
        sources: numbers of the backward passes whose gradients were in ``.grad``.
        stale: those that an earlier update of this optimizer had used already.
        erased: number of backward passes since the last update that were cleared before this one.
        has_gradients: whether any parameter had a gradient other than zero.
        moved: share of the compared weights with a non-zero gradient that changed, 0..1.
        lr: largest learning rate.
        via_scaler: whether GradScaler.step made it.
        grads_scaled: whether the gradients still carry the scaler's factor.
        in_autocast: number of the autocast block that was open, or None.
        replaced: whether somebody put other gradients in place by hand.
    """

    optimizer: int
    index: int
    sources: tuple[int, ...] = ()
    stale: tuple[int, ...] = ()
    erased: tuple[int, ...] = ()
    has_gradients: bool = False
    finite: bool = True
    moved: float = 1.0
    compared: int = 0
    unmoved_names: tuple[str, ...] = ()
    lr: float = 0.0
    via_scaler: bool = False
    grads_scaled: bool = False
    in_autocast: int | None = None
    replaced: bool = False
    with_closure: bool = False
    grad_scale: float = 1.0  # gradient at the update divided by what the last backward left
    epoch: int = 0
    where: str = ""
    clip_norm: float | None = None
    is_capturing: bool = False


@dataclass
class Event:
    """Anything else, in order: ``kind`` and facts."""

    kind: str
    at_update: int  # how many updates had been made
    at_backward: int
    epoch: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """What happened, in order."""

    backwards: list[Backward] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    called: dict[int, int] = field(default_factory=dict)  # id of module -> forward passes
    called_with_graph: dict[int, int] = field(default_factory=dict)  # … while gradients were on
    built_in_forward: list[tuple[nn.Module, str]] = field(default_factory=list)
    trained: set[int] = field(default_factory=set)  # ids of tracked tensors that ever got a gradient
    nonzero: set[int] = field(default_factory=set)  # … other than zero
    gradients_of_others: list[weakref.ref[Tensor]] = field(default_factory=list)
    seen_optimizers: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    epochs: int = 0
    batch_sizes: list[tuple[int, int]] = field(default_factory=list)  # epoch, examples
    forwards: int = 0
    root_modes: list[bool] = field(default_factory=list)
    leftover: dict[int, tuple[int, ...]] = field(default_factory=dict)  # optimizer -> backwards never used
    new_schedulers: dict[int, Any] = field(default_factory=dict)  # copies of those that were built, as they began

    def of_kind(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def updates_of(self, optimizer: torch.optim.Optimizer) -> list[Update]:
        return [update for update in self.updates if update.optimizer == id(optimizer)]


class Recorder:
    """Keeps the account of gradients while the reader's code runs; see ``recording``."""

    def __init__(
        self,
        model: nn.Module | None,
        optimizers: Iterable[torch.optim.Optimizer],
        named: dict[int, str],
        others: Iterable[Tensor] = (),
    ) -> None:
        self.trace = Trace()
        self.model = model
        self.named = named
        self.tracked: dict[int, Tensor] = {}
        self.owners: dict[int, set[int]] = {}  # parameter -> optimizers
        self.sources: dict[int, list[int]] = {}  # parameter -> backward passes in its .grad
        self.marks: dict[int, tuple[Any, int]] = {}  # parameter -> its .grad and version when last seen
        self.used: dict[int, dict[int, int]] = {}  # optimizer -> backward -> first update that used it
        self.erased: dict[int, set[int]] = {}  # optimizer -> backwards cleared since its last update
        self.after_backward: dict[int, Tensor] = {}  # parameter -> sample of .grad after the last backward
        self.at_backward: dict[int, Tensor] = {}  # parameter -> sample of its values at the last backward
        self.values: dict[int, Tensor] = {}
        self.scaled_roots: list[weakref.ref[Tensor]] = []
        self.scaler_depth = 0
        self.unscaled: set[int] = set()
        self.autocasts: list[int] = []
        self.autocast_count = 0
        self.depth = 0
        self.on_forward: Callable[[nn.Module, Any, Any, Any], None] | None = None  # module, args, kwargs, output
        self.on_backward: Callable[[Tensor], None] | None = None
        self.on_batch: Callable[[int, int, Any], None] | None = None  # pass, number, batch
        self.on_update: Callable[[], None] | None = None
        self._backward_depth = 0
        self._backwards_at_step: dict[int, int] = {}
        self.current_batch = 0
        self.passes: list[int] = []  # loaders that are being gone through, the innermost last
        self.trained_on: set[int | None] = set()  # loaders during whose passes a backward pass ran
        self.is_validating = False  # a forward pass in training mode, without gradients, outside of these
        for optimizer in optimizers:
            self.add_optimizer(optimizer)
        for tensor in [*(model.parameters() if model is not None else ()), *others]:
            self.track(tensor)

    # The account of gradients.

    def track(self, tensor: Tensor) -> None:
        if id(tensor) not in self.tracked:
            self.tracked[id(tensor)] = tensor
            self.sources[id(tensor)] = []
            self.marks[id(tensor)] = _mark(tensor)
            if tensor.grad is not None and bool(_any(tensor.grad)):
                self.sources[id(tensor)] = [-1]  # there before the doctor came

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self.trace.seen_optimizers:
            return
        self.trace.seen_optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.track(parameter)
                self.owners.setdefault(id(parameter), set()).add(id(optimizer))

    def poll(self) -> set[int]:
        """Notice gradients that were cleared or replaced since the last look; return the replaced."""
        replaced: set[int] = set()
        for key, tensor in self.tracked.items():
            if not self.sources[key]:
                self.marks[key] = _mark(tensor)
                continue
            grad, mark = tensor.grad, self.marks[key]
            if grad is None:
                self._cleared(key)
            elif not _is_mark(tensor, mark):
                if not bool(_any(grad)):
                    self._cleared(key)
                elif mark[0] is not None and mark[0]() is not grad:
                    replaced.add(key)
            self.marks[key] = _mark(tensor)
        return replaced

    def _cleared(self, key: int) -> None:
        for owner in self.owners.get(key, ()):
            used = self.used.setdefault(owner, {})
            for number in self.sources[key]:
                if number >= 0 and number not in used:
                    self.erased.setdefault(owner, set()).add(number)
                    if key in self.at_backward and not torch.equal(_sample(self.tracked[key]), self.at_backward[key]):
                        self.trace.backwards[number].excused = True  # they moved the weights, by hand
                    self.trace.backwards[number].cleared_epoch = self.trace.epochs
        self.sources[key] = []

    @property
    def current_loader(self) -> int | None:
        return self.passes[-1] if self.passes else None

    def note_judged(self) -> None:
        """A loss or a comparison was computed without gradients."""
        if self.is_validating:
            self.is_validating = False
            self.event("judged-in-training-mode", where=reader_line())

    def _note_root(self, model: nn.Module) -> None:
        is_outside = self.current_loader not in self.trained_on
        self.is_validating = bool(
            self.trace.updates and is_outside and not torch.is_grad_enabled() and model.training
            and any(_differs_by_mode(module) for module in model.modules())
        )  # fmt: skip

    def before_backward(self, root: Any) -> Backward:
        self.poll()
        self.trained_on.add(self.current_loader)
        trace = self.trace
        first = next(iter(tensors_of(root)), None)
        value = float("nan")
        if first is not None and first.numel() == 1:
            value = float(first.detach())
        scaled = any(ref() is first for ref in self.scaled_roots)
        backward = Backward(
            index=len(trace.backwards),
            root=value,
            root_has_graph=first is not None and first.grad_fn is not None,
            scaled=scaled,
            training=trace.root_modes[-1] if trace.root_modes else None,
            after=trace.forwards,
            under_autocast=torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
            epoch=trace.epochs,
            batch=self.current_batch,
            updates=len(trace.updates),
        )
        if first is not None:
            backward.shares_with = self._mark_graph(first, backward.index)
        trace.backwards.append(backward)
        if scaled:
            self.unscaled.clear()
        if first is not None and self.on_backward is not None:
            self.on_backward(first)
        return backward

    def _mark_graph(self, root: Tensor, index: int) -> int | None:
        """Write the number of a backward pass into its graph; return the number that was there, if any."""
        if index >= MARKED:
            return None
        earlier: int | None = None
        for node in nodes_under(root, 2000):
            if not node.next_functions:  # leaves are in every graph
                continue
            if earlier is None:
                found = node.metadata.get(_MARK)
                earlier = found[1] if found is not None and found[0] == id(self) else None
            node.metadata[_MARK] = (id(self), index)
        return earlier

    def after_backward_done(self, backward: Backward) -> None:
        for key, tensor in self.tracked.items():
            grad = tensor.grad
            if grad is None or _is_mark(tensor, self.marks[key]):
                continue
            backward.reached.add(key)
            self.trace.trained.add(key)
            if key not in self.trace.nonzero and bool(_any(grad)):
                self.trace.nonzero.add(key)
            self.sources[key].append(backward.index)
            self.after_backward[key] = _sample(grad)
            self.at_backward[key] = _sample(tensor)
            if backward.finite and not _finite(grad):
                backward.finite = False
                backward.first_bad = self.named.get(key, "a parameter")
            self.marks[key] = _mark(tensor)

    def before_update(self, optimizer: torch.optim.Optimizer, closure: bool) -> Update:
        self.add_optimizer(optimizer)
        replaced = self.poll()
        update = Update(
            optimizer=id(optimizer),
            index=len(self.trace.updates),
            via_scaler=self.scaler_depth > 0,
            with_closure=closure,
            epoch=self.trace.epochs,
            where=reader_line(),
            lr=max((float(group["lr"]) for group in optimizer.param_groups if "lr" in group), default=0.0),
            in_autocast=self.autocasts[-1] if self.autocasts and _caches() else None,
        )
        self._fill(update, optimizer, replaced)
        for parameter in _parameters(optimizer):
            self.values[id(parameter)] = _sample(parameter)
        self.trace.updates.append(update)
        self._backwards_at_step[id(optimizer)] = len(self.trace.backwards)
        return update

    def _fill(self, update: Update, optimizer: torch.optim.Optimizer, replaced: set[int]) -> None:
        used = self.used.setdefault(id(optimizer), {})
        sources: set[int] = set()
        ratios: list[float] = []
        for parameter in _parameters(optimizer):
            key = id(parameter)
            sources |= set(self.sources[key])
            if parameter.grad is None:
                continue
            if bool(_any(parameter.grad)):
                update.has_gradients = True
            update.finite = update.finite and _finite(parameter.grad)
            update.replaced = update.replaced or key in replaced
            before = self.after_backward.get(key)
            if before is not None and key not in replaced:
                ratios.append(_ratio(_sample(parameter.grad), before))
        update.sources = tuple(sorted(sources))
        update.stale = tuple(number for number in update.sources if number in used or (number < 0 and used))
        update.grads_scaled = (
            not update.via_scaler
            and id(optimizer) not in self.unscaled
            and any(number >= 0 and self.trace.backwards[number].scaled for number in update.sources)
        )
        if ratios:
            update.grad_scale = sorted(ratios)[len(ratios) // 2]
        update.erased = tuple(sorted(self.erased.pop(id(optimizer), set())))
        for number in update.erased:
            # Somebody else made use of these gradients: another optimizer, the gradient of an input, a finite check.
            backward = self.trace.backwards[number]
            others = [marks for owner, marks in self.used.items() if owner != id(optimizer)]
            is_used = any(number in marks for marks in others)
            backward.excused = backward.excused or is_used or backward.reached_inputs or not backward.finite
        update.erased = tuple(n for n in update.erased if not self.trace.backwards[n].excused)

    def after_update(self, update: Update, optimizer: torch.optim.Optimizer) -> None:
        if len(self.trace.backwards) > self._backwards_at_step[id(optimizer)]:
            update.with_closure = True
            self._fill(update, optimizer, self.poll())
            update.stale, update.erased = (), ()
        used = self.used.setdefault(id(optimizer), {})
        for number in update.sources:
            used.setdefault(number, update.index)
        moved = compared = 0
        still: list[str] = []
        for parameter in _parameters(optimizer):
            before = self.values.get(id(parameter))
            if before is None or parameter.grad is None:
                continue
            with_gradient = _sample(parameter.grad) != 0
            changed = _sample(parameter) != before
            compared += int(with_gradient.sum())
            moved += int((changed & with_gradient).sum())
            if bool(with_gradient.any()) and not bool((changed & with_gradient).any()):
                still.append(self.named.get(id(parameter), "a parameter"))
        update.compared = compared
        update.moved = moved / compared if compared else 1.0
        update.unmoved_names = tuple(still)
        self.event("updated", optimizer=id(optimizer))
        if self.on_update is not None:
            self.on_update()

    def event(self, kind: str, **facts: Any) -> None:
        trace = self.trace
        trace.events.append(Event(kind, len(trace.updates), len(trace.backwards), trace.epochs, facts))

    def finish(self) -> None:
        """Close the account: what was never used."""
        self.poll()
        for optimizer in self.trace.seen_optimizers.values():
            used = self.used.get(id(optimizer), {})
            left = {n for p in _parameters(optimizer) for n in self.sources.get(id(p), ()) if n >= 0 and n not in used}
            self.trace.leftover[id(optimizer)] = tuple(sorted(left))


@contextmanager
def recording(recorder: Recorder) -> Iterator[Trace]:
    """Record into ``recorder.trace`` what happens in the block; all observation points are removed afterwards."""
    with ExitStack() as stack:
        _observe_modules(stack, recorder)
        _observe_optimizers(stack, recorder)
        _observe_backward(stack, recorder)
        _observe_schedules(stack, recorder)
        _observe_scaler(stack, recorder)
        _observe_rest(stack, recorder)
        try:
            yield recorder.trace
        finally:
            recorder.finish()


def replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(original)`` in the place of an attribute until the stack closes."""
    own = vars(owner).get(name, _ABSENT)
    original = getattr(owner, name)
    setattr(owner, name, make(original))

    def undo() -> None:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    stack.callback(undo)


_ABSENT = object()


def _observe_modules(stack: ExitStack, recorder: Recorder) -> None:
    trace = recorder.trace

    def before(module: nn.Module, inputs: Any) -> None:
        recorder.depth += 1
        if module is recorder.model or (
            recorder.depth == 1 and isinstance(recorder.model, (nn.ModuleDict, nn.ModuleList))
        ):
            trace.root_modes.append(module.training)

    def after(module: nn.Module, inputs: Any, kwargs: Any, output: Any) -> None:
        recorder.depth -= 1
        trace.called[id(module)] = trace.called.get(id(module), 0) + 1
        if torch.is_grad_enabled():
            trace.called_with_graph[id(module)] = trace.called_with_graph.get(id(module), 0) + 1
        if module is recorder.model:
            trace.forwards += 1
            recorder._note_root(module)
        if recorder.on_forward is not None:
            recorder.on_forward(module, inputs, kwargs, output)

    stack.callback(module_hooks.register_module_forward_pre_hook(before).remove)
    handle = module_hooks.register_module_forward_hook(after, with_kwargs=True, always_call=True)
    stack.callback(handle.remove)
    # `remove` forgets this one (torch 2.14), and then `torch.compile` believes that there are hooks on all modules.
    stack.callback(getattr(module_hooks, "_global_forward_hooks_with_kwargs", {}).pop, handle.id, None)

    def noting_births(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if recorder.depth > 0:
                trace.built_in_forward.append((self, reader_line()))

        return init

    replace(stack, nn.Module, "__init__", noting_births)

    def noting_modes(original: Any) -> Any:
        @functools.wraps(original)
        def train(self: nn.Module, mode: bool = True) -> nn.Module:
            if self is recorder.model:
                recorder.event("mode", training=mode)
            return original(self, mode)

        return train

    replace(stack, nn.Module, "train", noting_modes)


def _observe_optimizers(stack: ExitStack, recorder: Recorder) -> None:
    open_updates: list[Update] = []

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        closure = kwargs.get("closure", args[0] if args else None)
        open_updates.append(recorder.before_update(optimizer, callable(closure)))

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        recorder.after_update(open_updates.pop(), optimizer)

    stack.callback(optimizer_hooks.register_optimizer_step_pre_hook(before).remove)
    stack.callback(optimizer_hooks.register_optimizer_step_post_hook(after).remove)

    def noting_clears(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
            recorder.poll()
            original(self, *args, **kwargs)
            recorder.poll()
            recorder.event("cleared", owner=id(self))

        return zero_grad

    replace(stack, torch.optim.Optimizer, "zero_grad", noting_clears)
    replace(stack, nn.Module, "zero_grad", noting_clears)


def _observe_backward(stack: ExitStack, recorder: Recorder) -> None:
    def noting(original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            entry = recorder.before_backward(tensors)
            inputs = _leaves_outside(tensors, recorder) if entry.index < 64 else []
            before = [_mark(leaf) for leaf in inputs]
            result = original(tensors, *args, **kwargs)
            recorder.after_backward_done(entry)
            changed = [leaf for leaf, mark in zip(inputs, before, strict=True) if not _is_mark(leaf, mark)]
            entry.reached_inputs = bool(changed)
            recorder.trace.gradients_of_others.extend(weakref.ref(leaf) for leaf in changed)
            return result

        return backward

    replace(stack, torch.autograd, "backward", noting)


def _observe_schedules(stack: ExitStack, recorder: Recorder) -> None:
    def noting(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "_step_count", 1) == 0:  # its constructor sets the first learning rate
                result = original(self, *args, **kwargs)
                recorder.trace.new_schedulers[id(self)] = _as_it_begins(self)
                return result
            optimizer = getattr(self, "optimizer", None)
            before = [group.get("lr") for group in optimizer.param_groups] if optimizer is not None else []
            metric = args[0] if args else kwargs.get("metrics", kwargs.get("epoch"))
            recorder.event(
                "schedule", scheduler=id(self), kind_name=type(self).__name__, optimizer=id(optimizer),
                lr=[float(lr) for lr in before], metric=_number(metric), where=reader_line(),
                batch=recorder.current_batch,
            )  # fmt: skip
            return original(self, *args, **kwargs)

        return step

    kinds = {lr_scheduler.LRScheduler, *_subclasses(lr_scheduler.LRScheduler)}
    for kind in kinds:
        if "step" in vars(kind):
            replace(stack, kind, "step", noting)


def _as_it_begins(scheduler: Any) -> Any:
    """Return a copy of a new scheduler that neither changes with it nor reaches its optimizer."""
    twin = copy.copy(scheduler)
    vars(twin).update({k: copy.copy(v) for k, v in vars(scheduler).items() if isinstance(v, (list, dict))})
    groups = [{k: v for k, v in group.items() if k != "params"} for group in scheduler.optimizer.param_groups]
    twin.optimizer = types.SimpleNamespace(param_groups=groups)
    return twin


def _observe_scaler(stack: ExitStack, recorder: Recorder) -> None:
    scaler = torch.amp.GradScaler

    def noting_scale(original: Any) -> Any:
        @functools.wraps(original)
        def scale(self: Any, outputs: Any) -> Any:
            result = original(self, outputs)
            if self.is_enabled():
                recorder.scaled_roots.extend(weakref.ref(leaf) for leaf in tensors_of(result))
                recorder.event("scale", factor=float(self.get_scale()))
            return result

        return scale

    def noting_unscale(original: Any) -> Any:
        @functools.wraps(original)
        def unscale_(self: Any, optimizer: Any) -> Any:
            result = original(self, optimizer)
            recorder.unscaled.add(id(optimizer))
            recorder.event("unscale", optimizer=id(optimizer))
            return result

        return unscale_

    def noting_step(original: Any) -> Any:
        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.scaler_depth += 1
            updates = len(recorder.trace.updates)
            try:
                return original(self, optimizer, *args, **kwargs)
            finally:
                recorder.scaler_depth -= 1
                skipped = len(recorder.trace.updates) == updates and self.is_enabled()
                recorder.event(
                    "scaler-step", optimizer=id(optimizer), skipped=skipped, factor=float(self.get_scale()),
                    is_enabled=self.is_enabled(),
                )  # fmt: skip

        return step

    def noting_update(original: Any) -> Any:
        @functools.wraps(original)
        def update(self: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.event("scaler-update")
            return original(self, *args, **kwargs)

        return update

    replace(stack, scaler, "scale", noting_scale)
    replace(stack, scaler, "unscale_", noting_unscale)
    replace(stack, scaler, "step", noting_step)
    replace(stack, scaler, "update", noting_update)


def _observe_rest(stack: ExitStack, recorder: Recorder) -> None:
    from torch.nn.utils import clip_grad

    def noting_clip(original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            _note_clip(recorder, several, float(max_norm), float(total_norm))
            return original(several, max_norm, total_norm, *args, **kwargs)

        return clip

    def noting_value_clip(original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
            several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            _note_clip(recorder, several, float(clip_value), float("nan"))
            return original(several, clip_value, *args, **kwargs)

        return clip

    if hasattr(clip_grad, "_clip_grads_with_norm_"):
        replace(stack, clip_grad, "_clip_grads_with_norm_", noting_clip)
    replace(stack, clip_grad, "clip_grad_value_", noting_value_clip)
    replace(stack, torch.nn.utils, "clip_grad_value_", noting_value_clip)

    def noting_enter(original: Any) -> Any:
        @functools.wraps(original)
        def enter(self: Any) -> Any:
            result = original(self)
            recorder.autocast_count += 1
            recorder.autocasts.append(recorder.autocast_count)
            recorder.event(
                "autocast", dtype=str(getattr(self, "fast_dtype", "")), device=str(getattr(self, "device", ""))
            )
            return result

        return enter

    def noting_exit(original: Any) -> Any:
        @functools.wraps(original)
        def leave(self: Any, *args: Any) -> Any:
            if recorder.autocasts:
                recorder.autocasts.pop()
            return original(self, *args)

        return leave

    replace(stack, torch.amp.autocast_mode.autocast, "__enter__", noting_enter)
    replace(stack, torch.amp.autocast_mode.autocast, "__exit__", noting_exit)

    def noting_epochs(original: Any) -> Any:
        @functools.wraps(original)
        def iterate(self: DataLoader) -> Any:
            return counted(original(self), recorder, self)

        return iterate

    replace(stack, DataLoader, "__iter__", noting_epochs)

    def noting_state(original: Any) -> Any:
        @functools.wraps(original)
        def state_dict(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if self is recorder.model and not args and not kwargs:
                leaves = [weakref.ref(leaf) for leaf in tensors_of(dict(result)) if leaf.numel()]
                recorder.event("state_dict", tensors=leaves, where=reader_line())
            return result

        return state_dict

    replace(stack, nn.Module, "state_dict", noting_state)


def counted(iterator: Iterable[Any], recorder: Recorder, loader: Any) -> Iterator[Any]:
    """Pass batches on, and count passes and sizes."""
    trace = recorder.trace
    trace.epochs += 1
    epoch = trace.epochs
    recorder.event("epoch", loader=id(loader))
    recorder.passes.append(id(loader))
    try:
        for number, batch in enumerate(iterator):
            recorder.current_batch = number
            trace.batch_sizes.append((epoch, batch_size(batch) or 0))
            if recorder.on_batch is not None:
                recorder.on_batch(epoch, number, batch)
            yield batch
    finally:
        if id(loader) in recorder.passes:
            recorder.passes.remove(id(loader))
    recorder.event("epoch-end", loader=id(loader), batches=sum(number == epoch for number, _ in trace.batch_sizes))


class CountedLoader:
    """A loader that tells a recorder of its passes; for loaders that are no DataLoader."""

    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self._loader, self._recorder = loader, recorder

    def __iter__(self) -> Iterator[Any]:
        return counted(iter(self._loader), self._recorder, self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def _note_clip(recorder: Recorder, parameters: list[Tensor], limit: float, norm: float) -> None:
    recorder.poll()
    keys = [id(parameter) for parameter in parameters]
    sources = {n for key in keys for n in recorder.sources.get(key, ())}
    owners = {owner for key in keys for owner in recorder.owners.get(key, ())}
    used = {n for owner in owners for n in recorder.used.get(owner, {})}
    scaled = any(n >= 0 and recorder.trace.backwards[n].scaled for n in sources) and not owners & recorder.unscaled
    recorder.event(
        "clip", owners=owners, sources=tuple(sorted(sources)), limit=limit, norm=norm, scaled=scaled,
        is_used=bool(sources) and sources <= used, where=reader_line(), is_known=bool(owners),
    )  # fmt: skip
    for key in keys:
        tensor = recorder.tracked.get(key)
        if tensor is not None:
            recorder.marks[key] = _mark(tensor)


def _leaves_outside(roots: Any, recorder: Recorder, most: int = 2000) -> list[Tensor]:
    """Return the leaves of a graph that are neither parameters nor held by an optimizer."""
    leaves: list[Tensor] = []
    for node in {node for tensor in tensors_of(roots) for node in nodes_under(tensor, most)}:
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in recorder.tracked and not isinstance(variable, nn.Parameter):
            leaves.append(variable)
    return leaves


def nodes_under(root: Tensor, most: int) -> set[Any]:
    """Return the nodes of the graph under a tensor, at most so many."""
    waiting = [root.grad_fn] if root.grad_fn is not None else []
    seen: set[Any] = set()
    while waiting and len(seen) < most:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        waiting.extend(follower for follower, _ in node.next_functions if follower is not None)
    return seen


def count_nodes(root: Tensor, most: int = 20000) -> int:
    """Return how many nodes of the graph hang under a tensor."""
    return len(nodes_under(root, most))


def custom_functions(root: Tensor) -> set[Any]:
    """Return the autograd Functions in a graph that are not PyTorch's own."""
    kinds = {getattr(type(node), "_forward_cls", None) for node in nodes_under(root, 3000)}
    return {kind for kind in kinds if kind is not None and not kind.__module__.startswith("torch.")}


def _differs_by_mode(module: nn.Module) -> bool:
    """Tell whether a layer is in training mode and does something else there than in evaluation mode."""
    if not module.training:
        return False
    if isinstance(module, _BatchNorm):
        return module.track_running_stats
    return isinstance(module, _DropoutNd) and module.p > 0


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _mark(tensor: Tensor) -> tuple[Any, int]:
    grad = tensor.grad
    return (None, -1) if grad is None else (weakref.ref(grad), grad._version)


def _is_mark(tensor: Tensor, mark: tuple[Any, int]) -> bool:
    grad = tensor.grad
    if grad is None or mark[0] is None:
        return grad is None and mark[0] is None
    return mark[0]() is grad and mark[1] == grad._version


def _any(grad: Tensor) -> Tensor:
    values = grad._values() if grad.layout == torch.sparse_coo else grad
    return (values != 0).any()


def _finite(grad: Tensor) -> bool:
    values = grad._values() if grad.layout == torch.sparse_coo else grad
    return bool(torch.isfinite(values).all())


def _sample(tensor: Tensor) -> Tensor:
    """Return a copy of up to SAMPLE elements, evenly spread."""
    value = tensor.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    flat = value.reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLE)].clone()


def _ratio(now: Tensor, before: Tensor) -> float:
    """Return by which factor a gradient was scaled, NaN if it was not only scaled."""
    if now.shape != before.shape or not bool((before != 0).any()):
        return float("nan")
    place = int(before.abs().argmax())
    ratio = float(now[place] / before[place])
    close = torch.allclose(now, before * ratio, rtol=1e-3, atol=float(before.abs().max()) * abs(ratio) * 1e-3)
    return ratio if close else float("nan")


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        return None


def _caches() -> bool:
    return torch.is_autocast_cache_enabled() and (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


def _subclasses(kind: type) -> Iterator[type]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)
