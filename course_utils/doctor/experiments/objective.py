"""Run a few steps, and look at what the loss asks of the model's outputs: towards the labels, or away from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_utils.doctor.parts import clone_tree, tensors_of

if TYPE_CHECKING:
    from course_utils.doctor.examination import Examination

STEPS = 4  # batches that are looked at
LEAST = 8  # outputs that must have a gradient before one batch says anything
SURE = 0.99  # share of them that must agree


@dataclass
class Objective:
    """What the loss asks for.

    Args:
        pushes: for each backward pass through an output with a known label, the share of outputs that a step down the
            gradient moves away from the label; passes that say nothing about it are left out.
        outputs: how many outputs the pushes are about.
        is_climbing: whether the updates go up the gradient.
        growth: by which share the gradient grows when the outputs go on the way that they are pushed. It grows where
            a loss is made larger, and falls on the way to a minimum; NaN if that was not tried.
    """

    pushes: list[float] = field(default_factory=list)
    outputs: int = 0
    is_climbing: bool = False
    growth: float = float("nan")

    @property
    def away(self) -> list[float]:
        """The share of outputs that the updates move away from their labels, for each pass."""
        return [1 - share for share in self.pushes] if self.is_climbing else self.pushes


class SomeBatches:
    """A loader for the reader's loop: yields copies of some batches, and says which one is being worked on."""

    def __init__(self, loader: Any, batches: list[Any]) -> None:
        self._loader, self._batches = loader, batches
        self.current: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.current = batch
            yield clone_tree(batch)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def probe_objective(examination: Examination) -> Objective:
    """Run some of the reader's steps, or their loop over some batches, with eyes on outputs and loss."""
    parts, kept = examination.parts, examination.batches.kept
    facts = Objective()
    if parts.model is None or not kept or examination.failure is not None or not examination.runs:
        return facts
    facts.is_climbing = _climbs(examination)
    first: list[Tensor] = []  # gradient of the first output
    run_watched(examination, lambda stack, batches: _watch_outputs(stack, examination, batches, facts, first))
    if len(facts.away) >= 2 and min(facts.away) >= SURE:
        facts.growth = _growth(examination, first[0] * (1 if facts.is_climbing else -1))
    return facts


def _climbs(examination: Examination) -> bool:
    """Tell whether updates go up the gradient: the optimizer does, or somebody turned the gradients around."""
    groups = [group for optimizer in examination.optimizers for group in optimizer.param_groups]
    climbs = any(group.get("maximize") for group in groups)
    updates = [update for trace in examination.traces for update in trace.updates]
    turned = sum(update.grad_scale < 0 for update in updates) > len(updates) / 2
    return climbs != turned


def _growth(examination: Examination, way: Tensor) -> float:
    """Run the first step again with outputs a little further on their way, and compare the gradients there."""
    parts = examination.parts
    found: list[Tensor] = []

    def push(module: nn.Module, _args: Any, output: Any) -> Any:
        if module is not parts.model or found or not isinstance(output, Tensor) or output.shape != way.shape:
            return None
        length = 0.01 * (float(output.detach().float().std()) + 1e-3) / (float(way.abs().max()) + 1e-30)
        output = output + length * way
        output.register_hook(lambda gradient: found.append(gradient.detach().clone()))
        return output

    def watch(stack: ExitStack, _batches: SomeBatches) -> None:
        stack.callback(nn.modules.module.register_module_forward_hook(push).remove)

    run_watched(examination, watch, 1)
    return float(found[0].norm() / way.norm()) - 1 if found else float("nan")


def run_watched(
    examination: Examination, watch: Callable[[ExitStack, SomeBatches], None], batches: int = STEPS
) -> None:
    """Run the reader's loop over some batches, or their steps, with what ``watch`` enters into a stack."""
    parts = examination.parts
    some = SomeBatches(parts.loader, examination.batches.kept[:batches])

    def go() -> None:
        with ExitStack() as stack:
            watch(stack, some)
            if parts.train is not None and parts.step is None:
                parts.call(parts.train, ("model", "loader", "loss_fn", "optimizer"), loader=some, steps=STEPS)
                return
            for batch in itertools.islice(itertools.chain(*[some] * batches), batches):  # also of one batch
                parts.run_step(batch)

    examination.run(go, 0.15)


# Which way an output is pushed.


def _watch_outputs(
    stack: ExitStack, examination: Examination, batches: SomeBatches, facts: Objective, gradients: list[Tensor]
) -> None:
    parts = examination.parts

    def note(module: nn.Module, _args: Any, output: Any) -> None:
        outputs = tensors_of(output)
        if module is not parts.model or len(outputs) != 1 or not _is_pair(batches.current):
            return
        first, labels = outputs[0], parts.split(batches.current)[1]
        if not isinstance(labels, Tensor) or not first.requires_grad or not first.is_floating_point():
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(first):
            return
        values = first.detach().clone()

        def judge(gradient: Tensor) -> None:
            verdict = pushed_away(values, gradient.detach(), labels)
            if verdict is not None:
                facts.pushes.append(verdict[0])
                facts.outputs += verdict[1]
                if not gradients:
                    gradients.append(gradient.detach().clone())

        first.register_hook(judge)

    stack.callback(nn.modules.module.register_module_forward_hook(note).remove)


def _is_pair(batch: Any) -> bool:
    """Tell whether a batch is inputs and labels, and nothing else: rewards and weights change what a loss means."""
    return isinstance(batch, Mapping) or (isinstance(batch, (tuple, list)) and len(batch) == 2)


def pushed_away(output: Tensor, gradient: Tensor, labels: Tensor) -> tuple[float, int] | None:
    """Return which share of the outputs a step down the gradient moves away from the labels, and of how many.

    Args:
        output: as the model gave it.
        gradient: of the objective, the output's shape.
        labels: classes, of the output's shape without its class axis; or numbers, of the output's shape.

    Returns:
        The share, 0..1, and the count; None where the labels don't say where the output should go.
    """
    if output.shape != gradient.shape or labels.is_complex() or not bool(torch.isfinite(gradient).all()):
        return None
    if not labels.is_floating_point() and output.ndim == labels.ndim + 1:
        return _away_from_classes(output, gradient, labels.long())
    if output.numel() == labels.numel() and output.shape[0] == labels.shape[0] and output.ndim - labels.ndim in (0, 1):
        return _away_from_numbers(output.reshape(-1), gradient.reshape(-1), labels.reshape(-1).to(output.dtype))
    return None


def _away_from_classes(output: Tensor, gradient: Tensor, labels: Tensor) -> tuple[float, int] | None:
    in_front = output.shape[:1] + output.shape[2:] == labels.shape  # (N, C, …)
    at_the_end = output.shape[:-1] == labels.shape  # (N, …, C)
    if in_front == at_the_end and output.ndim > 2:
        return None
    axis = 1 if in_front else output.ndim - 1
    classes = output.shape[axis]
    if not (in_front or at_the_end) or classes < 2 or int(labels.max()) >= classes:
        return None
    real = labels >= 0  # others are ignored, by the usual sign
    own = gradient.gather(axis, labels.clamp(min=0).unsqueeze(axis)).squeeze(axis)[real]
    own = own[own != 0]
    if len(own) < LEAST or len(labels[real].unique()) < 2:  # one class for all: a trick label, as of a GAN
        return None
    return float((own > 0).float().mean()), len(own)


def _away_from_numbers(output: Tensor, gradient: Tensor, labels: Tensor) -> tuple[float, int] | None:
    if bool(((labels == 0) | (labels == 1)).all()):
        should_rise = labels > 0.5
    elif bool(((labels >= 0) & (labels <= 1)).all()):  # probabilities, of logits or of themselves: not known
        return None
    else:
        should_rise = labels > output
    wrong = []
    for side in (should_rise, ~should_rise & (labels != output)):
        moved = gradient[side & (gradient != 0)]
        if len(moved) < LEAST // 2 or len(moved) < 0.1 * len(output):  # one side alone may be an activation's
            return None
        rises = moved < 0
        wrong.append((~rises if side is should_rise else rises).float().mean())
    return float(min(wrong)), len(output)
