"""The training loop, in sight.

Read in this order: `accumulate_gradients` (what a few batches do to ``p.grad``), `clip_gradients`, `update` (what the
optimizer does with it), `evaluate` (how good the model is), `fit` (who calls what, and when). Below the line are the
parts that stop early, remember where the data is, and check what they are given.
"""

from __future__ import annotations

import math
import operator
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from course_utils.errors import CheckpointError, CourseError, DataError, UsageError
from course_utils.records import Epoch, Recorder, Run, Step
from course_utils.seeding import preserved_rng, rng_state, set_rng_state
from course_utils.text import did_you_mean

Batch = tuple[Any, Any]  # (inputs, labels): tensors, or tuples, lists or dicts of tensors; the first axis is N
Batches = Iterable[Batch] | Callable[[int], Iterable[Batch]]  # the same for every epoch, or made from the epoch's index
LossFn = Callable[[Any, Any], Tensor]  # (outputs, labels) -> scalar, a mean over the examples
Metric = Callable[[Any, Any], "float | Tensor"]  # (outputs, labels) -> a mean over the examples
Observer = Callable[["Step | Epoch"], None]

READ_EVERY = 100  # steps. On a GPU, reading a loss waits for the GPU; so rarely it costs nothing one can measure


class NonFiniteError(CourseError):
    """A loss or a gradient is inf or nan, so the next update would destroy the weights."""


class StopTraining(Exception):
    """An observer raises this to end the run after the record that it was shown; the reason is kept in the `Run`."""

    def __init__(self, reason: str = "observer") -> None:
        super().__init__(reason)
        self.reason = reason


class Keeper(Protocol):
    """What `fit` needs to save its state: see `checkpoints.Keeper`."""

    def is_due(self, n_steps: int) -> bool: ...
    def save(self, n_steps: int, **state: Any) -> None: ...
    def is_empty(self) -> bool: ...


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode without gradients; afterwards each submodule gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        for module, mode in modes:  # not model.train(): a frozen BatchNorm must stay frozen
            module.training = mode


def accumulate_gradients(
    model: nn.Module,
    loss_fn: LossFn,
    window: Sequence[Batch],
    *,
    amp: torch.dtype | None = None,
    scaler: GradScaler | None = None,
) -> Tensor:
    """Add to ``p.grad`` the gradient of the mean loss over all examples of a window of batches.

    Each batch counts by its examples, so a window with a short batch gives what one big batch would give. That holds
    for losses that are a mean over examples, and up to rounding; BatchNorm still sees the small batches.

    Args:
        window: batches on the model's device. Only one batch's activations are alive at a time.
        amp: run forward pass and loss under autocast with this type; None keeps the model's own.
        scaler: multiply the loss by its scale before the backward pass, so that small float16 gradients survive.

    Returns:
        The mean loss over the window's examples, shape (), not scaled, on the model's device.
    """
    n_total = sum(map(n_examples, window)) if len(window) > 1 else 0
    losses = []
    for x, y in window:
        if amp is None:  # apart, since a step of a small network notices even a context manager that does nothing
            loss = _checked_loss(loss_fn(model(x), y))
        else:
            with _precision(model, amp):
                loss = _checked_loss(loss_fn(model(x), y))
        if n_total:
            loss = loss * (n_examples((x, y)) / n_total)  # so that the shares add up to the mean over all
        (scaler.scale(loss) if scaler else loss).backward()
        losses.append(loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def clip_gradients(optimizer: Optimizer, max_norm: float) -> Tensor:
    """Shorten the gradient of all the optimizer's parameters together to ``max_norm``; its direction stays.

    Returns:
        The length before clipping, shape (). With a gradient scaler, call ``scaler.unscale_(optimizer)`` first.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return nn.utils.clip_grad_norm_(parameters, max_norm)


def update(optimizer: Optimizer, scaler: GradScaler | None = None) -> bool:
    """Let the optimizer use the gradients; return False if the scaler found inf or nan in them and skipped this."""
    if scaler is None:
        optimizer.step()
        return True
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= scale  # the scale goes down after a skipped update, and only then


def evaluate(
    model: nn.Module,
    loss_fn: LossFn,
    batches: Iterable[Batch],
    metrics: Mapping[str, Metric] | None = None,
    *,
    amp: torch.dtype | None = None,
) -> dict[str, float]:
    """Return the loss and the metrics over all examples, each example weighing the same.

    The model is in eval mode meanwhile and no gradients are kept. Afterwards the global generators and the loader's own
    are where they were: a run trains the same whether it is evaluated or not.

    Raises:
        DataError: if there are no batches.
    """
    device, count = device_of(model), 0
    functions = {"loss": loss_fn, **(metrics or {})}
    totals = dict.fromkeys(functions, 0.0)
    with evaluating(model), preserved_rng(), _preserved(_generators_of(batches)):
        for batch in batches:
            x, y = to_device(as_pair(batch), device)
            with _precision(model, amp):
                outputs = model(x)
                values = {name: float(function(outputs, y)) for name, function in functions.items()}
            count += n_examples((x, y))
            totals = {name: total + values[name] * n_examples((x, y)) for name, total in totals.items()}
    if count == 0:
        raise DataError(
            "There is nothing to evaluate on.",
            got="no batches",
            expected="at least one batch of (inputs, labels)",
            fix="a generator is empty after one pass: give a list, a DataLoader or Batches",
        )
    return {name: total / count for name, total in totals.items()}


def fit(
    model: nn.Module,
    loss_fn: LossFn,
    optimizer: Optimizer,
    batches: Batches,
    *,
    epochs: int = 1,
    max_steps: int | None = None,
    validation: Iterable[Batch] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    step_schedule: LRScheduler | None = None,
    epoch_schedule: LRScheduler | None = None,
    monitor: str = "loss",
    best: KeepBest | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    amp: torch.dtype | None = None,
    scaler: GradScaler | None = None,
    observers: Iterable[Observer] = (),
    progress: bool = False,
    also: Mapping[str, Any] | None = None,
    keeper: Keeper | None = None,
    resume: Mapping[str, Any] | None = None,
) -> Run:
    """Train ``model`` in place and return what happened.

    Args:
        model: already on its device; batches are moved there. A model in eval mode is switched to train mode for the
            run; one in train mode is left as it is, so that submodules you froze with ``.eval()`` stay frozen.
        loss_fn: ``(outputs, labels) -> scalar``, a mean over the examples.
        optimizer: made from this model's parameters.
        batches: any iterable of ``(inputs, labels)`` that can be passed over once per epoch, or a function from the
            epoch's index to one. To resume in the middle of an epoch, the order must depend on global generators,
            the loader's ``generator``, generators in ``also``, or the epoch's index, and on nothing else.
        epochs: passes over the batches, those before a resume included.
        max_steps: pause after so many steps, those before a resume included. A pause inside an epoch leaves it open: no
            validation, no epoch schedule; a resume continues as if there had been no pause.
        validation: batches to evaluate on after each epoch.
        metrics: name -> ``(outputs, labels) -> mean over the examples``, measured on ``validation`` beside the loss.
        step_schedule: stepped after each update that was made; a skipped update doesn't count.
        epoch_schedule: stepped after each epoch's validation. ReduceLROnPlateau is given the monitored number.
        monitor: the number that ReduceLROnPlateau and ``best`` watch: "loss" or one of ``metrics``; on the validation
            batches or, without any, "loss" on the training batches.
        best: keeps the weights of the best epoch, ends the run when its patience is over, and puts those weights back
            at the end (not at a pause by ``max_steps``). Starts empty unless the run is resumed.
        clip_norm: largest length of the gradient over all parameters; None leaves it as it is.
        accumulate: batches per step; the last step of an epoch takes what is left.
        amp: type for autocast, ``torch.bfloat16`` or ``torch.float16``; None computes in the model's own type.
        scaler: gradient scaler. With float16 and None, one is made.
        observers: called with each `Step` after its update (``p.grad`` still holds its gradients, unscaled and clipped)
            and with each `Epoch`. May raise `StopTraining`.
        progress: show a progress bar.
        also: name -> what else must survive a resume: generators, and anything with ``state_dict``.
        keeper: saves everything when it says so, after each epoch and at the end; see `checkpoints.Keeper`.
        resume: a loaded checkpoint to continue from; None starts afresh.

    Raises:
        UsageError: if arguments don't fit together.
        DataError: if there are no batches, or a batch isn't a pair.
        NonFiniteError: before an update would use a loss, or an unscaled gradient norm, that is inf or nan. On a GPU
            without observers the numbers are read every `READ_EVERY` steps, so it comes late there.
        CheckpointError: if ``resume`` belongs to another set-up or to other data.
    """
    observers, device = list(observers), device_of(model)
    if scaler is None and amp is torch.float16:
        scaler = GradScaler(device.type)
    facts = Recorder()
    data = _Windows(batches, accumulate, device, facts, generators=also, is_saved=keeper is not None)
    settings = {"accumulate": accumulate, "clip_norm": clip_norm, "amp": str(amp), "monitor": monitor}
    state = {"model": model, "optimizer": optimizer, "step_schedule": step_schedule, "epoch_schedule": epoch_schedule}
    state |= {"scaler": scaler, "best": best, "facts": facts, "data": data, "also": _without_generators(also)}
    _check_numbers(epochs=epochs, max_steps=max_steps, accumulate=accumulate, clip_norm=clip_norm)
    _check_parts(model, loss_fn, optimizer, step_schedule, epoch_schedule)
    _check_watching(monitor, best, epoch_schedule, metrics if validation is not None else None)
    _check_start(batches, epochs, keeper, resume)
    if best:
        best.forget()
    if resume is not None:
        _restore(state, settings, resume)
    read_every = 1 if observers or device.type == "cpu" else READ_EVERY
    read = partial(_read, facts, model, scaler)
    save = partial(_save, keeper, facts, {**state, "settings": settings})

    stopped_by = "epochs"
    with _train_mode(model), _progress_bar(progress, data, epochs, max_steps) as bar:
        try:
            while facts.epoch < epochs:
                if best and best.is_over:
                    raise StopTraining("patience")
                if max_steps is not None and facts.n_steps >= max_steps:
                    raise StopTraining("max_steps")
                started = time.perf_counter()
                for window in data:
                    optimizer.zero_grad()
                    loss = accumulate_gradients(model, loss_fn, window, amp=amp, scaler=scaler)
                    if scaler:
                        scaler.unscale_(optimizer)  # before clipping and before observers look at the gradients
                    norm = clip_gradients(optimizer, clip_norm) if clip_norm else None
                    facts.add(loss, norm, lr=float(optimizer.param_groups[0]["lr"]), n_examples=data.n_examples)
                    if len(facts.unread) >= read_every:
                        read(window)  # raises while the weights are still good
                    if not update(optimizer, scaler):
                        facts.skip_last()
                    elif step_schedule:
                        step_schedule.step()
                    for observe in observers:
                        observe(facts.last_step(batch=facts.batch - len(window)))
                    if bar is not None:
                        bar.update()
                    if keeper and keeper.is_due(facts.n_steps):
                        read()
                        save()
                    if max_steps is not None and facts.n_steps == max_steps and not data.is_at_end:
                        raise StopTraining("max_steps")
                read()
                scores = {} if validation is None else evaluate(model, loss_fn, validation, metrics, amp=amp)
                watched = {"loss": facts.epoch_loss(), **scores}[monitor]
                is_best = best.update(watched, facts.epoch, model) if best else None
                if isinstance(epoch_schedule, ReduceLROnPlateau):
                    epoch_schedule.step(watched)
                elif epoch_schedule:
                    epoch_schedule.step()
                epoch = facts.end_epoch(scores, is_best, seconds=time.perf_counter() - started)
                for observe in observers:
                    observe(epoch)
                if bar is not None:
                    bar.set_postfix({"loss": epoch.loss, **{f"validation {n}": score for n, score in scores.items()}})
                save()
        except StopTraining as stop:
            stopped_by = stop.reason
            read()
            save()
    if best and stopped_by != "max_steps":
        best.put_back(model)
    return facts.finish(stopped_by, best_epoch=best.epoch if best and stopped_by != "max_steps" else None)


class KeepBest:
    """Remembers the weights of the best epoch, and says when waiting for a better one has been long enough.

    Args:
        mode: "min" if less is better, as for a loss; "max" if more is.
        patience: epochs in a row without improvement after which the run ends; None never ends it.
        min_delta: an improvement must be larger than this, in the unit of the monitored number.
    """

    def __init__(
        self, mode: Literal["min", "max"] = "min", *, patience: int | None = None, min_delta: float = 0.0
    ) -> None:
        if mode not in ("min", "max"):
            raise UsageError(
                "KeepBest must know which way is better.",
                got=mode,
                expected="'min' or 'max'",
                fix="'min' for a loss, 'max' for an accuracy",
            )
        _check_numbers(patience=patience)
        self.mode, self.patience, self.min_delta = mode, patience, min_delta
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self.value: float | None = None
        self.epoch: int | None = None
        self.waited = 0  # epochs since the best one
        self.weights: dict[str, Tensor] | None = None

    @property
    def is_over(self) -> bool:
        """Whether patience is over."""
        return self.patience is not None and self.waited >= self.patience

    def update(self, value: float, epoch: int, model: nn.Module) -> bool:
        """Look at one epoch's number; if it is the best so far, keep a copy of the weights. nan is never better."""
        sign = 1 if self.mode == "min" else -1
        best = math.inf if self.value is None else sign * self.value
        if not sign * value < best - self.min_delta:
            self.waited += 1
            return False
        self.value, self.epoch, self.waited = value, epoch, 0
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        return True

    def put_back(self, model: nn.Module) -> None:
        """Give the model the weights of the best epoch; without one, leave it alone."""
        if self.weights is not None:
            model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Return what was seen; the settings are not part of it, so patience may change at a resume."""
        return {"value": self.value, "epoch": self.epoch, "waited": self.waited, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.value = None if state["value"] is None else float(state["value"])
        self.epoch = None if state["epoch"] is None else operator.index(state["epoch"])
        self.waited = operator.index(state["waited"])
        self.weights = None if state["weights"] is None else dict(state["weights"])


@contextmanager
def logging_to(folder: str | Path, model: nn.Module | None = None) -> Iterator[Observer]:
    """Give an observer that writes TensorBoard events to ``folder``; closed at the end of the block.

    Scalars ``step/loss``, ``step/lr``, ``step/grad_norm``, ``epoch/loss`` and ``validation/...``, all against the index
    of the step. With ``model``, after each epoch also histograms of its weights and of the last step's gradients.
    """
    from torch.utils.tensorboard import SummaryWriter  # late: the import takes seconds

    writer: SummaryWriter | None = None

    def log(record: Step | Epoch) -> None:
        nonlocal writer
        index = record.index if isinstance(record, Step) else record.last_step
        if writer is None:  # purge_step: hide what an interrupted run wrote beyond the checkpoint
            writer = SummaryWriter(str(folder), purge_step=index)
        if isinstance(record, Step):
            numbers = {"step/loss": record.loss, "step/lr": record.lr, "step/grad_norm": record.grad_norm}
        else:
            numbers = {"epoch/loss": record.loss, **{f"validation/{name}": v for name, v in record.validation.items()}}
        for tag, number in numbers.items():
            if number is not None:
                writer.add_scalar(tag, number, index)
        if isinstance(record, Epoch) and model is not None:
            for name, parameter in model.named_parameters():
                writer.add_histogram(f"weights/{name}", parameter.detach().float(), index)
                if parameter.grad is not None:
                    writer.add_histogram(f"gradients/{name}", parameter.grad.float(), index)

    try:
        yield log
    finally:
        if writer is not None:
            writer.close()


# ---------------------------------------------------------------------------------------------------------------------
# Batches: what they hold, where they go


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer; "cpu" for a model without any."""
    for tensor in model.parameters():
        return tensor.device
    for tensor in model.buffers():
        return tensor.device
    return torch.device("cpu")


def to_device(value: Any, device: torch.device) -> Any:
    """Return a batch on the device: tensors are moved, also inside tuples, lists and dicts; the rest stays as it is."""
    if isinstance(value, (tuple, list)):
        moved = [to_device(item, device) for item in value]
        return (
            type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
        )  # a named tuple takes each alone
    if isinstance(value, Tensor):
        return value if value.device == device else value.to(device, non_blocking=True)  # waits unless memory is pinned
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    return value


def n_examples(batch: Batch) -> int:
    """Return N: the first axis of the first tensor in the labels, or where these hold none, in the inputs.

    Raises:
        DataError: if there is no tensor with an axis.
    """
    x, y = batch
    if type(y) is Tensor and y.ndim:  # the usual case, fast
        return y.size(0)
    for tensor in _tensors((y, x)):
        if tensor.ndim:
            return tensor.size(0)
    raise DataError(
        "This batch doesn't say how many examples it holds.",
        got=f"inputs of type {type(x).__name__}, labels of type {type(y).__name__}",
        expected="a tensor of shape (N, ...) in the labels or in the inputs",
        fix="collate the examples into tensors with a first axis of N",
    )


def as_pair(batch: Any) -> Batch:
    """Return the batch as ``(inputs, labels)``.

    Raises:
        DataError: if it isn't a tuple or list of two.
    """
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    raise DataError(
        "A batch must be a pair of inputs and labels.",
        got=f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__,
        expected="(inputs, labels)",
        fix="for several inputs, make the first of the pair a tuple or a dict",
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


class _Windows:
    """The batches of the current epoch in windows of ``size``, from the recorder's position on.

    It also owns the generators: what they were when the epoch began and what they are now. After a resume in the middle
    of an epoch the used batches are drawn once more, which repeats every draw that ordered them, and thrown away.
    """

    def __init__(
        self,
        batches: Batches,
        size: int,
        device: torch.device,
        facts: Recorder,
        generators: Mapping[str, Any] | None,
        *,
        is_saved: bool,
    ) -> None:
        self.batches, self.size, self.device, self.facts, self.is_saved = batches, size, device, facts, is_saved
        self.generators = _generators_of(batches)
        self.generators |= {n: g for n, g in (generators or {}).items() if isinstance(g, torch.Generator)}
        self.n_examples = 0  # in the last window
        self._epoch_start: dict[str, Any] = {}
        self._last_labels: Any = ()
        self._expected_checksum: int | None = None
        self._n_batches = -1

    @property
    def is_at_end(self) -> bool:
        """Whether the last window was the last of its epoch; False where the number of batches isn't known."""
        return 0 <= self._n_batches <= self.facts.batch

    def __iter__(self) -> Iterator[Sequence[Batch]]:
        facts, is_resumed = self.facts, self.facts.batch > 0
        now = self._draws() if self.is_saved or is_resumed else {}  # takes a tenth of a millisecond
        if is_resumed:
            self._set_draws(self._epoch_start)
        else:
            self._epoch_start = now
        source: Any = self.batches(facts.epoch) if _is_function(self.batches) else self.batches
        self._n_batches = operator.length_hint(source, -1)
        batches = iter(source)
        if is_resumed:
            self._skip(batches)
            self._set_draws(now)
        pairs = map(self._moved, batches)
        for window in zip(pairs) if self.size == 1 else iter(lambda: tuple(islice(pairs, self.size)), ()):
            facts.batch += len(window)
            self.n_examples = sum(map(n_examples, window))
            self._last_labels = window[-1][1]
            yield window
        if facts.batch == 0:
            raise DataError(
                f"Epoch {facts.epoch} has no batches.",
                got="an empty loader",
                expected="at least one batch of (inputs, labels)",
                fix="look at len(dataset), drop_last, and whether a generator was used up by the epoch before",
            )

    def _moved(self, batch: Any) -> Batch:
        """Return the batch as a pair on the device; quick for two tensors that are there already."""
        if type(batch) in (tuple, list) and len(batch) == 2:
            x, y = batch
            if type(x) is Tensor and type(y) is Tensor and x.device == self.device == y.device:
                return x, y
        return to_device(as_pair(batch), self.device)

    def _skip(self, batches: Iterator[Any]) -> None:
        seen = 0
        for batch in islice(batches, self.facts.batch):
            self._last_labels, seen = as_pair(batch)[1], seen + 1
        if seen < self.facts.batch:
            raise CheckpointError(
                "The loader ends before the place where the checkpoint was made.",
                got=f"{seen} batches in epoch {self.facts.epoch}",
                expected=f"at least the {self.facts.batch} that were used",
                fix="resume with the same data and the same batch size",
            )
        if self._expected_checksum is not None and _checksum(self._last_labels) != self._expected_checksum:
            raise CheckpointError(
                "The batches come in another order than before the interruption.",
                got=f"other labels in batch {self.facts.batch - 1} of epoch {self.facts.epoch}",
                expected="the same batches for the same epoch",
                fix="give the loader a generator, or pass a function of the epoch that seeds the order",
            )

    def _draws(self) -> dict[str, Any]:
        return {"global": rng_state(), "own": {name: g.get_state() for name, g in self.generators.items()}}

    def _set_draws(self, draws: Mapping[str, Any]) -> None:
        set_rng_state(draws["global"])
        for name, generator in self.generators.items():
            generator.set_state(draws["own"][name].cpu())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all generators, at the start of the epoch and now, and a checksum of the last labels."""
        labels = _checksum(self._last_labels) if self.facts.batch else 0
        return {"epoch_start": self._epoch_start, "now": self._draws(), "labels": labels}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the generators where they were when the state was made."""
        _check_same_names("generators", expected=state["now"]["own"], got=self.generators)
        self._epoch_start, self._expected_checksum = state["epoch_start"], operator.index(state["labels"])
        for draws in (self._epoch_start, state["now"]):  # both, so that a damaged one is noticed here
            if draws or self.facts.batch:
                self._set_draws(draws)


@contextmanager
def _preserved(generators: Mapping[str, torch.Generator]) -> Iterator[None]:
    states = {name: generator.get_state() for name, generator in generators.items()}
    try:
        yield
    finally:
        for name, generator in generators.items():
            generator.set_state(states[name])


def _is_function(batches: Batches) -> bool:
    return callable(batches) and not hasattr(batches, "__iter__")


def _generators_of(batches: Batches) -> dict[str, torch.Generator]:
    """Return the generators that a loader and its sampler own."""
    if _is_function(batches):
        return {}  # made anew for each epoch, so they are part of what the function repeats
    owners = {"loader": batches, "sampler": getattr(batches, "sampler", None)}
    found = {name: getattr(owner, "generator", None) for name, owner in owners.items()}
    return {name: generator for name, generator in found.items() if isinstance(generator, torch.Generator)}


def _without_generators(also: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: part for name, part in (also or {}).items() if not isinstance(part, torch.Generator)}


def _checksum(labels: Any) -> int:
    """Return a checksum of the labels' bytes."""
    total = 0
    for tensor in _tensors(labels):
        total = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), total)
    return total


# ---------------------------------------------------------------------------------------------------------------------
# Save, restore, switch


def _save(keeper: Keeper | None, facts: Recorder, state: Mapping[str, Any]) -> None:
    if keeper:
        keeper.save(facts.n_steps, **{name: part for name, part in state.items() if part is not None})


def _restore(state: Mapping[str, Any], settings: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Load a checkpoint into the parts of a run, each of which must be in both."""
    missing = [name for name in (*state, "settings") if name in ("facts", "data", "settings") and name not in saved]
    if missing:
        raise CheckpointError(
            "This checkpoint was not made by fit, so there is no run to continue.",
            got=f"the parts {', '.join(saved)}",
            expected=f"also {', '.join(missing)}",
            fix="load its weights instead: model.load_state_dict(checkpoint['model'])",
        )
    for name, ours in (("settings", settings), ("also", state["also"])):
        if not isinstance(saved.get(name), Mapping):
            raise _misfit(name, ours, f"a {type(saved.get(name)).__name__}")
    for name, value in settings.items():
        kept = saved["settings"].get(name)
        if not isinstance(kept, (int, float, str, type(None))) or kept != value:
            raise CheckpointError(
                f"The run in the checkpoint had another {name}.",
                got=f"{name}={value}",
                expected=f"{name}={kept}",
                fix="resume with the same settings, or start a new run from the checkpoint's weights",
            )
    used = {name: part for name, part in state.items() if part is not None}
    _check_same_names("parts", expected=[name for name in saved if name in state], got=used)
    _check_same_names("entries in `also`", expected=saved["also"], got=used["also"])
    pairs = [(name, part, saved[name]) for name, part in used.items() if name != "also"]
    pairs += [(name, part, saved["also"][name]) for name, part in used["also"].items()]
    for name, part, content in pairs:
        try:
            part.load_state_dict(content)
        except CheckpointError:
            raise
        except Exception as error:  # each part reads its own state, and a state of a wrong kind can raise anything
            raise _misfit(name, part, str(error)) from error


def _misfit(name: str, part: Any, got: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's {name} doesn't fit this run's {name}.",
        got=got,
        expected=f"the state of the same kind of {type(part).__name__}",
        fix="build the run with the settings that the checkpoint was made with",
    )


def _check_same_names(what: str, *, expected: Iterable[str], got: Iterable[str]) -> None:
    expected, got = sorted(map(str, expected)), sorted(got)
    if expected != got:
        raise CheckpointError(
            f"The run in the checkpoint had other {what}.",
            got=", ".join(got) or "none",
            expected=", ".join(expected) or "none",
            fix="call fit with the same arguments as before the interruption",
        )


def _precision(model: nn.Module, amp: torch.dtype | None) -> AbstractContextManager[Any]:
    return torch.autocast(device_of(model).type, dtype=amp) if amp else nullcontext()


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    """Train mode for a model that is in eval mode, and back; one in train mode is left alone, frozen parts included."""
    modes = [] if model.training else [(module, module.training) for module in model.modules()]
    if modes:
        model.train()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _progress_bar(show: bool, data: _Windows, epochs: int, max_steps: int | None) -> Iterator[Any]:
    if not show:
        yield None
        return
    from tqdm.auto import tqdm  # late: in a notebook it brings ipywidgets

    per_epoch = operator.length_hint(data.batches, -1)
    total = epochs * math.ceil(per_epoch / data.size) if per_epoch >= 0 else None
    if max_steps is not None:
        total = max_steps if total is None else min(total, max_steps)
    with tqdm(total=total, initial=data.facts.n_steps, unit="step") as bar:
        yield bar


# ---------------------------------------------------------------------------------------------------------------------
# Read numbers, check arguments


def _read(facts: Recorder, model: nn.Module, scaler: GradScaler | None, window: Sequence[Batch] = ()) -> None:
    """Read losses and norms, and refuse those that are inf or nan. ``window``: the batches of the one unread step."""
    first = len(facts.losses)
    if facts.read():
        return
    for index in range(first, len(facts.losses)):
        norm = facts.grad_norms[index]
        if not math.isfinite(facts.losses[index]):
            raise _non_finite("loss", facts.losses[index], index, facts, model, window)
        if scaler is None and norm is not None and not math.isfinite(norm):  # a scaler skips such an update itself
            raise _non_finite("gradient norm", norm, index, facts, model, window)


def _non_finite(
    what: str, value: float, index: int, facts: Recorder, model: nn.Module, window: Sequence[Batch]
) -> NonFiniteError:
    broken = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    place = f"epoch {facts.epoch}"
    if not window:
        fix = "the weights have moved since; to stop at the step itself, run on the CPU or pass an observer"
    elif any(t.is_floating_point() and not t.isfinite().all() for x, _ in window for t in _tensors(x)):
        fix = "the inputs of this step hold inf or nan: clean the data"
    elif broken:
        fix = f"the weights were broken before this step, first {broken[0]!r}: lower the learning rate or clip"
    else:
        fix = "inputs and weights are finite: look for log(0), x/0 or overflow in the forward pass and the loss"
    if window:
        place += f", batch {facts.batch - len(window)}"
    return NonFiniteError(
        f"The {what} of step {index} is {value}.", got=f"{value} in {place}", expected="a finite number", fix=fix
    )


def _checked_loss(loss: Any) -> Tensor:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return loss
    if not isinstance(loss, Tensor):
        got = f"a {type(loss).__name__}"
    elif loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}"
    else:
        got = "a number cut off from the model: .item(), .detach() or no_grad somewhere on its way"
    raise UsageError(
        "A step needs one loss that knows how it was computed.",
        got=got,
        expected="a tensor of shape (), the mean over the examples, made from the model's output",
        fix="return the tensor itself; reduction='mean' makes one number of many",
    )


def _check_numbers(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is None and name in ("max_steps", "clip_norm", "patience"):
            continue
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if name == "clip_norm":
            passed, expected = is_number and number > 0, "a number above 0, or None"
        else:
            passed, expected = isinstance(number, int) and is_number and number >= 1, "a whole number, at least 1"
        if not passed:
            raise UsageError(
                f"This is not a value for {name}.", got=number, expected=expected, fix=f"for example {name}=1"
            )


def _check_parts(
    model: nn.Module,
    loss_fn: LossFn,
    optimizer: Optimizer,
    step_schedule: LRScheduler | None,
    epoch_schedule: LRScheduler | None,
) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    learnable = [p for p in model.parameters() if p.requires_grad]
    if not any(id(p) in held for p in learnable):
        raise UsageError(
            "The optimizer would not change this model.",
            got="an optimizer without any of the model's parameters" if learnable else "a model with nothing to learn",
            expected="an optimizer made from this model, after the last time the model was built or replaced",
            fix="optimizer = torch.optim.AdamW(model.parameters(), lr=...), then load its state",
        )
    for name, schedule in (("step_schedule", step_schedule), ("epoch_schedule", epoch_schedule)):
        if schedule is not None and getattr(schedule, "optimizer", optimizer) is not optimizer:
            raise UsageError(
                f"The {name} moves the learning rate of another optimizer.",
                got="a schedule made from an optimizer that isn't used",
                expected="a schedule made from the optimizer that is passed to fit",
                fix=f"{name} = {type(schedule).__name__}(optimizer, ...)",
            )
    if isinstance(step_schedule, ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau can't be stepped after each update.",
            got="step_schedule=ReduceLROnPlateau(...)",
            expected="a schedule that needs no metric",
            fix="pass it as epoch_schedule: it looks at the validation after each epoch",
        )


def _check_watching(
    monitor: str, best: KeepBest | None, schedule: LRScheduler | None, metrics: Mapping[str, Metric] | None
) -> None:
    known = {"loss", *(metrics or {})}
    if monitor not in known:
        raise UsageError(
            f"There is no number called {monitor!r} to monitor.",
            got=repr(monitor),
            expected=f"one of {', '.join(sorted(known))}",
            fix=f"{did_you_mean(monitor, known)} Metrics are measured only with validation=...",
        )
    if best and isinstance(schedule, ReduceLROnPlateau) and schedule.mode != best.mode:
        raise UsageError(
            "The plateau schedule and KeepBest look at the same number but disagree about what is better.",
            got=f"ReduceLROnPlateau(mode={schedule.mode!r}) and KeepBest({best.mode!r})",
            expected="the same mode in both",
            fix="'min' for a loss, 'max' for an accuracy",
        )


def _check_start(batches: Batches, epochs: int, keeper: Keeper | None, resume: Mapping[str, Any] | None) -> None:
    if epochs > 1 and isinstance(batches, Iterator):
        raise UsageError(
            "These batches can be passed over only once.",
            got=f"a {type(batches).__name__} for {epochs} epochs",
            expected="something that starts anew for each epoch",
            fix="pass a list, a DataLoader, Batches, or a function of the epoch that returns one",
        )
    if keeper and resume is None and not keeper.is_empty():
        raise UsageError(
            "The keeper's folder holds the checkpoints of an earlier run.",
            got="resume=None",
            expected="an empty folder for a new run, or a checkpoint to continue from",
            fix="fit(..., resume=keeper.latest()) to continue, keeper.clear() to start over",
        )
