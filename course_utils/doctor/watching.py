"""Watch a training loop while it runs, and say what goes wrong as it happens.

Three places are looked at: where a forward pass begins (its inputs are kept until the update, so that it can be
repeated), where a backward pass begins (the loss is read), and where an optimizer is about to update. Gradients, graphs
and units are looked at in the first updates, and then ever more rarely, so that it costs little.

In most steps each hook does next to nothing, and that next to nothing is what counts: after a step of the reader's the
caches are full of its numbers, so each object that a hook touches costs far more than in a loop of its own.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any
from weakref import ref

import torch
from torch import Tensor, is_grad_enabled, nn
from torch._C import _is_any_autocast_enabled
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.cards import in_notebook
from course_utils.doctor import rules, trends
from course_utils.doctor.findings import NOTE, RULES, Finding, Seen, in_order
from course_utils.doctor.origin import Call, diagnose, is_bad, repeat, say
from course_utils.doctor.report import Report, card, finding_text
from course_utils.doctor.tracing import count_nodes
from course_utils.errors import UsageError

MOST_APART = 31  # updates between two looks, late in a run
LATE = 8  # updates between two readings of the losses on a GPU: each one waits for it
KEPT_CALLS = 4  # forward passes whose inputs are kept until the update
MARKED_NODES = 6  # nodes of a graph that are marked, to see whether it stays alive
JUDGED = 8  # batches from one judgement of the waiting to the next
_TAKERS: dict[type[nn.Module], int] = {nn.Linear: -1, nn.Conv1d: 1, nn.Conv2d: 1, nn.Conv3d: 1}  # axis of their units


def watch(
    model: Any,
    optimizer: Any = None,
    loader: Iterable[Any] | None = None,
    *,
    every: int | None = None,
    show: Callable[[Finding], Any] | None = None,
) -> Watcher:
    """Watch a training loop while it runs; say what goes wrong as it happens, each thing once.

    The loop stays as it is. Going through ``watching(loader)`` in place of ``loader`` lets the watcher name batches,
    counted from 0 like epochs, and measure the waiting for data. When the block ends, however it ends, all hooks are
    gone. Weights, gradients, modes and random numbers are those of a run that nobody watched.

    Args:
        model: the network; several in a list or a dict.
        optimizer: one or several whose updates count; by default all that update the model.
        loader: what going through the watcher itself goes through.
        every: updates between two readings of the losses; by default 1 on the CPU and 8 elsewhere, where reading
            waits for the device. A module that makes NaN can be named only if its loss is read before the update.
        show: gets each finding; by default it is displayed in a notebook and printed elsewhere.

    Returns:
        The watcher, to be used in a ``with`` statement; its ``report`` holds the findings so far.

    Raises:
        UsageError: if the model or the optimizer is none, or ``every`` is not positive.

    Example:
        >>> net = nn.Linear(3, 1)
        >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> data = [(torch.ones(8, 3), torch.full((8, 1), float("inf")))]
        >>> with watch(net, show=lambda finding: None) as watching:
        ...     for x, y in watching(data):
        ...         sgd.zero_grad()
        ...         nn.functional.mse_loss(net(x), y).backward()
        ...         sgd.step()
        >>> print(watching.report.findings[0].message)
        The loss of batch 0 of epoch 0 is not finite: batch[1] holds NaN or infinity.
    """
    return Watcher(model, optimizer, loader, every=every, show=show)


class Watcher:
    """Watches one loop; see `watch`."""

    def __init__(
        self,
        model: Any,
        optimizer: Any = None,
        loader: Iterable[Any] | None = None,
        *,
        every: int | None = None,
        show: Callable[[Finding], Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._models = _models(model)
        self._wanted = None if optimizer is None else {ref(item) for item in _optimizers(optimizer)}
        self._loader, self._show, self._clock = loader, show or announce, clock
        named = {root: dict(module.named_parameters()) for root, module in self._models.items()}
        self._parameters = {_join(root, name): p for root, found in named.items() for name, p in found.items()}
        self._names = {id(p): name for name, p in self._parameters.items()}
        self._kind = next((p.device.type for p in self._parameters.values()), "cpu")
        self._every = (1 if self._kind == "cpu" else LATE) if every is None else every
        if not self._every >= 1:
            raise UsageError("The losses can't be read so often.", got=every, fix="every=1")
        self._attached: contextlib.ExitStack | None = None  # hooks that stay for the whole block
        self._look: contextlib.ExitStack = contextlib.ExitStack()  # hooks that stay for one step
        self._began: float | None = None
        self._ended = 0.0
        self._findings: dict[tuple[str, str], Finding] = {}
        self._remarks: list[str] = []
        self._calls: deque[tuple[Any, ...]] = deque(maxlen=KEPT_CALLS)  # since the last update, what makes a `Call`
        self._went_back = True  # the last call's loss
        self._losses: list[tuple[int, tuple[int, int] | None, Tensor]] = []  # not read yet: update, place, value
        self._groups: dict[int, _Group] = {}  # by the optimizer's id
        self._graphs: deque[list[ref[_Mark]]] = deque(maxlen=trends.GRAPHS)
        self._units: list[tuple[str, nn.Module, trends.Units]] = []
        self._live = trends.LiveTensors(clock)
        self._updates = self._backwards = 0
        self._looking, self._marking = _Schedule(part=2), _Schedule()
        self._place: tuple[int, int] | None = None  # batch and epoch
        self._updated = self._place  # at the last update
        self._batch: Any = None
        self._told_nonfinite = self._is_looking = False

    # Beginning and end.

    def __enter__(self) -> Watcher:
        if self._began is not None:
            raise UsageError("A watcher watches one block.", fix="with doctor.watch(model) as watching: …")
        rules.load()
        self._began = self._clock()
        self._units = [
            (_join(root, name), module, trends.Units(_TAKERS[type(module)]))
            for root, model in self._models.items()
            for name, module in model.named_modules()
            if type(module) in _TAKERS
        ]
        with contextlib.ExitStack() as attached:
            for root, model in self._models.items():
                inner = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
                hook = _ForwardHook(self, root, model, inner)
                attached.callback(model.register_forward_pre_hook(hook, with_kwargs=True).remove)
            attached.callback(register_optimizer_step_pre_hook(self._before_update).remove)
            _wrap_backward(attached, self._before_backward)
            self._attached = attached.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                _Hook(self._look_back, self._failed)()
        finally:
            attached, self._attached = self._attached, None
            with contextlib.ExitStack() as ending:
                ending.callback(self._let_go)
                ending.push(attached)
                ending.push(self._look)
            self._ended = self._clock()

    def _let_go(self) -> None:
        """Keep nothing of the reader's: the report may live for long."""
        for held in (self._models, self._parameters, self._calls, self._losses, self._groups, self._units):
            held.clear()
        self._batch = self._loader = None

    def _failed(self, error: Exception) -> None:
        text = f"The watcher could not look: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if text not in self._remarks:
            self._remarks.append(text)

    # What the reader asks.

    def __call__(self, loader: Iterable[Any]) -> WatchedBatches:
        """Return the loader's batches, watched: they can be gone through as often as the loader itself."""
        return WatchedBatches(self, loader)

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise UsageError("This watcher has no loader to go through.", fix="for batch in watching(loader): …")
        if not isinstance(self._loader, WatchedBatches):
            self._loader = self(self._loader)
        return iter(self._loader)

    @property
    def report(self) -> Report:
        """The findings so far, the worst first."""
        ended = self._ended if self._attached is None else self._clock()
        seconds = 0.0 if self._began is None else ended - self._began
        return Report(tuple(in_order(self._findings.values())), seconds, tuple(self._remarks))

    # The three places in the loop.

    # The forward one is a `_ForwardHook`. None of them raises: the reader's loop goes on.

    def _before_backward(self, roots: Any) -> None:
        if is_compiling():
            return
        try:
            self._went_back = True
            self._backwards += 1
            if self._backwards >= self._marking.next:
                self._marking.took(self._backwards)
                self._mark_graph(roots if isinstance(roots, Tensor) else roots[0])
            if self._told_nonfinite:
                return
            for loss in (roots,) if isinstance(roots, Tensor) else roots:
                if loss.numel() == 1 and not self._told_nonfinite:
                    if self._every > 1:
                        self._losses.append((self._updates, self._place, loss.detach()))
                    elif not isfinite(loss.item()):
                        self._tell_nonfinite(str(self), True)
        except Exception as error:
            self._failed(error)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_args: Any) -> None:
        if is_compiling():
            return
        try:
            group = self._groups.get(id(optimizer))
            if group is None or not group.is_mine:
                group = self._group_of(optimizer)
                if not group.is_mine:
                    return
            updates = self._updates
            if (
                group.updates >= group.looking.next or updates >= self._looking.next or self._is_looking
                or (self._losses and updates % self._every == 0)
            ):  # fmt: skip
                group = self._look_at_update(optimizer, group)
            group.updates += 1
            self._updates = updates + 1
            self._updated = self._place
            self._calls.clear()
        except Exception as error:
            self._failed(error)

    def _look_at_update(self, optimizer: torch.optim.Optimizer, group: _Group) -> _Group:
        """Do what is not done in each update; return the optimizer's group, another one if it has grown."""
        if self._is_looking:
            self._close_units()
        if self._losses and self._updates % self._every == 0:
            self._read_losses()
        if group.updates >= group.looking.next:
            group.looking.took(group.updates)
            group = self._group_of(optimizer)
            if not self._told_nonfinite:
                self._look_at_lengths(optimizer, group)
        if self._updates >= self._looking.next:
            self._looking.took(self._updates)
            self._look_at_memory()
            self._open_units()
        return group

    # What is not finite.

    def _read_losses(self) -> None:
        losses, self._losses = self._losses, []
        for update, place, loss in losses:
            if not self._told_nonfinite and not isfinite(loss.item()):
                self._tell_nonfinite(_place_text(place, update), True, is_late=update != self._updates)

    def _tell_nonfinite(self, place: str, loss_is_bad: bool, bad: Iterable[str] = (), is_late: bool = False) -> None:
        self._told_nonfinite = True
        calls, batch = ([], None) if is_late else ([Call(*call) for call in self._calls], self._batch)
        updated = "" if is_late or not self._updates else _place_text(self._updated, self._updates - 1)
        self._tell(*diagnose(place, loss_is_bad, list(bad), calls, batch, self._parameters, updated))

    def _look_back(self) -> None:
        """Read what was not read yet; look at a forward pass whose loss never went back: the loop noticed itself."""
        self._read_losses()
        if self._calls and not self._went_back and not self._told_nonfinite:
            call = Call(*self._calls[-1])
            seen = repeat(call)
            if seen is not None and seen.origin is not None:
                self._tell(*say(call, seen.origin, str(self)))

    # Lengths of gradients.

    def _look_at_lengths(self, optimizer: torch.optim.Optimizer, group: _Group) -> None:
        pairs = [
            (name, p) for name, p in group.parameters if (grad := p.grad) is not None and grad.layout is torch.strided
        ]  # fmt: skip
        if not pairs or _is_skipped(optimizer):
            return
        lengths = _lengths([p.grad for _, p in pairs])
        scale = getattr(optimizer, "grad_scale", None)  # a scaler that leaves the division to the update
        if isinstance(scale, Tensor):
            lengths = [length / scale.item() for length in lengths]
        if not all(map(isfinite, lengths)):
            self._read_losses()  # one of them may have been the first
            bad = [name for name, p in pairs if is_bad(p.grad)]  # else a sum of squares has overflowed
            if bad and not self._told_nonfinite:
                self._tell_nonfinite(str(self), False, bad)
            return
        total = math.hypot(*lengths)
        group.lengths.append(total)
        if len(group.first) < 3:
            group.first.append(total)
        seen = trends.explodes(group.lengths, group.first)
        if seen is not None and seen[1] > math.hypot(*_lengths([p.detach() for _, p in pairs])):
            lowest, now = seen
            message = (
                f"At {self} the gradient is {now / lowest:,.0f} times as long as a little earlier, longer than the "
                "weights, and still growing."
            )
            self._tell("loop.gradient-explodes", Seen(message, {"length": now, "lowest_of_late": lowest}))
        weights = [(name, length) for (name, p), length in zip(pairs, lengths, strict=True) if p.ndim > 1]
        self._judge_shares(group, weights)

    def _judge_shares(self, group: _Group, weights: list[tuple[str, float]]) -> None:
        longest = max((length for _, length in weights), default=0.0)
        if longest > 0:
            group.shares.append(weights[0][1] / longest if len(weights) > 1 else 1.0)
            share = trends.vanishes(group.shares)
            if share is not None:
                message = (
                    f"The gradient of {weights[0][0]!r} is {share:.1e} of the longest one, in {len(group.shares)} "
                    "looks in a row: the first layers hardly learn."
                )
                self._tell("loop.gradient-vanishes", Seen(message, {"share": share}))
        elif len(group.lengths) == trends.VANISH_LOOKS and not any(group.lengths):
            message = f"Every gradient was exactly 0 in the first {len(group.lengths)} looks: nothing has been learned."
            self._tell("loop.gradient-vanishes", Seen(message, {"length": 0.0}, NOTE))

    # Memory.

    def _mark_graph(self, root: Tensor) -> None:
        """Mark nodes of a loss's graph with objects that live as long as they do."""
        marks, waiting = [], [root.grad_fn]
        while waiting and len(marks) < MARKED_NODES:
            node = waiting.pop(0)
            if node is None or hasattr(node, "variable") or _Mark in node.metadata:  # shared by many steps
                continue
            mark = node.metadata[_Mark] = _Mark()
            marks.append(ref(mark))
            waiting += [below for below, _ in node.next_functions]
        mark = node = waiting = None
        graphs = self._graphs
        are_alive = len(graphs) == trends.GRAPHS and all(any(mark() is not None for mark in marks) for marks in graphs)
        graphs.append(marks)
        if are_alive:
            message = (
                f"At {self} the graphs of the last {trends.GRAPHS} steps that were looked at are all alive: your loop "
                "keeps a loss or an output with its graph."
            )
            self._tell("memory.graph-kept", Seen(message, {"steps": trends.GRAPHS, "nodes_of_one": count_nodes(root)}))

    def _look_at_memory(self) -> None:
        counts = self._live.look(self._updates)
        if not counts or any(code == "memory.graph-kept" for code, _ in self._findings):
            return
        (first, tensors, size), (last, more, larger) = counts[0], counts[-1]
        grown = (larger - size) / 2**20
        message = (
            f"From update {first} to {last} the tensors that are alive rose from {tensors:,} to {more:,}, by "
            f"{grown:.1f} MiB. A cache that fills looks the same."
        )
        evidence = {"tensors": [count for _, count, _ in counts], "mib_per_update": grown / (last - first)}
        self._tell("memory.grows", Seen(message, evidence))

    # Dead units.

    def _open_units(self) -> None:
        """Attach hooks that see one step, where there may be something to see."""
        for _, module, units in self._units:
            if units.rests:
                units.looks += 1
                if units.is_over():
                    units.restart()
            else:
                hook = _Hook(self._see_units, self._failed, module, units)
                self._look.callback(module.register_forward_pre_hook(hook).remove)
                self._is_looking = True

    def _see_units(self, watched: nn.Module, units: trends.Units, module: nn.Module, args: Any) -> None:
        values = args[0] if args and module is watched else None
        if not isinstance(values, Tensor) or values.ndim < 2 or not values.numel() or not is_grad_enabled():
            return
        if values.requires_grad:
            units.add(values.detach())
        elif units.silent is None:  # the data: dark corners of images are no dead units
            units.rests = True

    def _close_units(self) -> None:
        self._is_looking = False
        self._look.close()
        for name, _, units in self._units:
            seen = units.dead()
            if seen is not None:
                dead, size = seen
                message = (
                    f"{dead} of the {size} units that {name!r} gets were 0 for each of {units.examples:,} examples, in "
                    f"{units.looks} looks."
                )
                evidence = {"dead": dead, "units": size, "examples": units.examples}
                self._tell("model.dead-units", Seen(message, evidence), name)
            if units.is_over():
                units.restart()

    # Small things.

    def _tell(self, code: str, seen: Seen, about: str = "") -> None:
        if (code, about) in self._findings:
            return
        at = {} if self._place is None else dict(zip(("batch", "epoch"), self._place, strict=True))
        seen = Seen(seen.message, {**seen.evidence, **at, "update": self._updates}, seen.severity, seen.fix)
        finding = self._findings[code, about] = RULES[code].finding(seen)
        self._show(finding)

    def _group_of(self, optimizer: torch.optim.Optimizer) -> _Group:
        """Return what is known about an optimizer; begin anew if it has grown."""
        key, size, groups = id(optimizer), len(optimizer.param_groups), self._groups
        group = groups.get(key)
        if group is None or group.size != size:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if self._wanted is None:
                is_mine = any(id(p) in self._names for p in parameters)
            else:
                is_mine = ref(optimizer) in self._wanted
            held = ref(optimizer, lambda _: groups.pop(key, None))  # another one may get its id
            group = groups[key] = _Group(held, size, parameters if is_mine else None, self._names)
        return group

    def __str__(self) -> str:
        return _place_text(self._place, self._updates)


class WatchedBatches:
    """A loader that is being watched. Everything but going through it is the loader's own."""

    def __init__(self, watcher: Watcher, loader: Iterable[Any]) -> None:
        self._watcher, self._loader = watcher, loader
        self._epoch = -1

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        watcher, clock, epoch = self._watcher, self._watcher._clock, self._epoch
        waits: deque[tuple[float, float]] = deque(maxlen=64)  # seconds of waiting, of working
        judge = _Hook(self._judge, watcher._failed, waits)
        is_cuda = watcher._kind == "cuda"
        iterator = iter(self._loader)
        asked = clock()
        for batch, item in enumerate(iterator):
            came = clock()
            if is_cuda and not torch.cuda.current_stream().query():
                asked = came  # a GPU that still works does not wait
            if watcher._attached is not None:
                watcher._place, watcher._batch = (batch, epoch), item
            yield item
            again = clock()
            if batch:  # the first one starts workers
                waits.append((came - asked, again - came))
                if batch % JUDGED == 0:
                    judge()
            asked = again

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def _judge(self, waits: Iterable[tuple[float, float]]) -> None:
        seen = trends.starved(waits)
        if seen is not None and self._watcher._attached is not None:
            share, wait = seen
            message = f"The loop waits for its loader {share:.0%} of the time, {1000 * wait:.1f} ms for a batch."
            self._watcher._tell("data.starved", Seen(message, {"share": share, "wait_ms": 1000 * wait}))


class _Group:
    """The parameters of one optimizer, and how their gradients went.

    Args:
        optimizer: lets go of the group when the optimizer is gone.
        size: number of the optimizer's parameter groups.
        parameters: all that are updated; None if it is not the model's optimizer.
        names: of the model's parameters, by id.
    """

    __slots__ = ("first", "is_mine", "lengths", "looking", "optimizer", "parameters", "shares", "size", "updates")

    def __init__(
        self, optimizer: ref[Any], size: int, parameters: list[Tensor] | None, names: Mapping[int, str]
    ) -> None:
        self.optimizer, self.size, self.is_mine = optimizer, size, parameters is not None
        self.updates, self.looking = 0, _Schedule()
        self.parameters = [
            (names.get(id(p), f"parameter {i}"), p) for i, p in enumerate(parameters or ()) if p.requires_grad
        ]  # fmt: skip
        self.lengths: deque[float] = deque(maxlen=48)
        self.first: list[float] = []
        self.shares: deque[float] = deque(maxlen=trends.VANISH_LOOKS)


class _Schedule:
    """Looks at each of the first updates; then pauses grow with the run, up to `MOST_APART`.

    Pauses are odd, so that optimizers that take turns get their looks. A look is due from number ``next`` on.

    Args:
        part: of the way gone that a pause takes, as its divisor.
    """

    __slots__ = ("_part", "next")

    def __init__(self, part: int = 4) -> None:
        self._part, self.next = part, 0

    def took(self, number: int) -> None:
        """Say that a look was taken."""
        self.next = number + min(MOST_APART, number // self._part | 1)


class _Mark:
    """Lives as long as the node of a graph that holds it."""

    __slots__ = ("__weakref__",)


class _Hook:
    """A hook of the watcher: if it fails, the reader's loop goes on.

    A model may be copied or pickled while it is watched. A copy's hook does nothing but take itself away; what is
    pickled is a function of the standard library that does nothing.

    Args:
        function: the hook; None in a copy.
        failed: gets what it raises.
        first: arguments that come before those of the hook.
    """

    __slots__ = ("_failed", "_first", "_function")

    def __init__(
        self, function: Callable[..., None] | None, failed: Callable[[Exception], None] | None, *first: Any
    ) -> None:
        self._function, self._failed, self._first = function, failed, first

    def __call__(self, *args: Any) -> None:
        if is_compiling():
            return
        if self._function is None:
            self._leave(args[0])
            return
        try:
            self._function(*self._first, *args)
        except Exception as error:
            self._failed(error)

    def _leave(self, module: nn.Module) -> None:
        for key in [key for key, hook in module._forward_pre_hooks.items() if hook is self]:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)

    def __deepcopy__(self, memo: Any) -> _Hook:
        return _Hook(None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _ForwardHook(_Hook):
    """Keeps what a model is called with, until the update.

    Args:
        watcher: gets it.
        root: name of the model.
        model: the model.
        inner: the same, or what `torch.compile` has wrapped in it.
    """

    __slots__ = ("_calls", "_inner", "_kind", "_model", "_root", "_watcher")

    def __init__(self, watcher: Watcher, root: str, model: nn.Module, inner: nn.Module) -> None:
        super().__init__(None, None)
        self._watcher, self._calls, self._kind = watcher, watcher._calls, watcher._kind
        self._root, self._model, self._inner = root, model, inner

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if is_compiling() or module is not self._model or not is_grad_enabled():
            return
        try:
            autocast = None
            if _is_any_autocast_enabled() and torch.is_autocast_enabled(self._kind):  # the second one takes 4 µs
                autocast = torch.get_autocast_dtype(self._kind)
            self._calls.append((self._root, self._inner, args, kwargs, autocast))
            self._watcher._went_back = False
        except Exception as error:
            self._watcher._failed(error)


def announce(finding: Finding) -> None:
    """Display a finding in a notebook, or print it elsewhere."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": card(finding), "text/plain": finding_text(finding)}, raw=True)
    else:
        print(finding_text(finding))


def _wrap_backward(attached: contextlib.ExitStack, hook: Callable[[Any], None]) -> None:
    """Have a hook called with the roots of each backward pass, until the stack closes."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if is_on:
            hook(tensors)
        return original(tensors, *args, **kwargs)

    def undo() -> None:
        is_on.clear()
        if torch.autograd.backward is backward:  # else somebody wrapped it again, and still calls ours
            torch.autograd.backward = original

    is_on = [True]
    attached.callback(undo)
    torch.autograd.backward = backward


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether a scaler has this update skipped inside of the optimizer."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and found.item() > 0


def _lengths(tensors: list[Tensor]) -> list[float]:
    """Return the lengths of tensors; a graph that hangs on them gets a little longer for a moment."""
    dtypes = {tensor.dtype for tensor in tensors}
    if torch.float16 in dtypes or torch.bfloat16 in dtypes:
        tensors = [tensor.float() for tensor in tensors]
    norms = torch._foreach_norm(tensors)
    if len(dtypes) > 1 or len({norm.device for norm in norms}) > 1:
        norms = [norm.to("cpu", torch.float64) for norm in norms]
    return torch.stack(norms).tolist()


def _place_text(place: tuple[int, int] | None, update: int) -> str:
    return f"update {update}" if place is None else "batch {} of epoch {}".format(*place)


def _join(root: str, name: str) -> str:
    return ".".join(part for part in (root, name) if part)


def _models(model: Any) -> dict[str, nn.Module]:
    if isinstance(model, (nn.ModuleDict, nn.ModuleList)):  # they are never called themselves
        return dict(model.named_children())
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        found = {str(name): item for name, item in model.items()}
    elif isinstance(model, (list, tuple)):
        found = {str(number): item for number, item in enumerate(model)}
    else:
        found = {}
    if not found or not all(isinstance(item, nn.Module) for item in found.values()):
        raise UsageError(
            "doctor.watch needs a model to watch.",
            got=type(model).__name__,
            expected="an nn.Module, or several in a list or a dict",
            fix="with doctor.watch(model) as watching: …",
        )
    return found


def _optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    given = list(optimizer.values()) if isinstance(optimizer, Mapping) else optimizer
    given = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in given:
        if not isinstance(item, torch.optim.Optimizer):
            raise UsageError(
                "doctor.watch got an optimizer that is none of PyTorch's.",
                got=type(item).__name__,
                fix="leave optimizer out: all that update the model are watched",
            )
    return given
