"""Facts of a training run: what happened at each step, in each epoch, and in the whole run."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Step:
    """One step: a forward and a backward pass over one window of batches, and the update that followed."""

    index: int  # steps before this one, counted from the start of the run
    loss: float  # mean over the examples of this step, in the unit of the loss function
    lr: float = math.nan  # learning rate of this update (first parameter group)
    epoch: int = 0  # epochs before this one
    batch: int = 0  # batches of this epoch before this step
    n_examples: int = 0  # examples in this step
    grad_norm: float | None = None  # length of the gradient before clipping; None without clipping or without update
    was_skipped: bool = False  # the gradient scaler found inf or nan, so the weights were left alone


@dataclass(frozen=True)
class Epoch:
    """One pass over the training batches, and the validation that followed it."""

    index: int  # epochs before this one
    loss: float  # mean over all training examples of the epoch, each with the weights of its own step
    validation: Mapping[str, float] = field(default_factory=dict)  # "loss" and the metrics, means over examples
    lr: float = math.nan  # learning rate of the last step
    n_steps: int = 0  # steps in this epoch
    last_step: int = 0  # index of the last of them
    is_best: bool | None = None  # the best epoch so far; None where nobody watches
    seconds: float = field(default=math.nan, compare=False)  # wall time; after a resume, since the resume


@dataclass(frozen=True)
class Run:
    """A whole training run. Tuples hold one entry per step, ``epochs`` one per finished epoch."""

    losses: tuple[float, ...] = field(repr=False)  # training loss of each step
    lrs: tuple[float, ...] = field(default=(), repr=False)  # learning rate that each step used
    n_examples: tuple[int, ...] = field(default=(), repr=False)  # examples in each step
    grad_norms: tuple[float | None, ...] = field(default=(), repr=False)  # before clipping; see Step
    skipped: tuple[int, ...] = ()  # index of each step whose update was skipped
    epochs: tuple[Epoch, ...] = field(default=(), repr=False)
    stopped_by: str = "epochs"  # "epochs", "max_steps", "patience" or "observer"
    best_epoch: int | None = None  # index of the epoch whose weights the model has now; None: those of the last step

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.losses)

    def curve(self, metric: str = "loss") -> tuple[float, ...]:
        """Return a validation metric, one value per epoch.

        Raises:
            KeyError: if it was not measured.
        """
        return tuple(epoch.validation[metric] for epoch in self.epochs)


class Recorder:
    """Writes the facts of a run while it goes on, and can be saved and restored in the middle.

    Losses and norms arrive as tensors and are turned into numbers by `read`. On a GPU reading waits until
    the GPU has caught up, so the loop decides when that is worth it.
    """

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0  # position: finished epochs, batches used of the current one
        self.first_step = 0  # of the current epoch
        self.losses: list[float] = []
        self.lrs: list[float] = []
        self.n_examples: list[int] = []
        self.grad_norms: list[float | None] = []
        self.skipped: list[int] = []
        self.epochs: list[Epoch] = []
        self.unread: list[tuple[Tensor, Tensor | None]] = []  # loss and norm of the steps whose numbers nobody read

    @property
    def n_steps(self) -> int:
        """Steps so far, read or not."""
        return len(self.losses) + len(self.unread)

    def add(self, loss: Tensor, grad_norm: Tensor | None, lr: float, n_examples: int) -> None:
        """Note one step; ``loss`` and ``grad_norm`` are scalars that `read` turns into numbers."""
        self.unread.append((loss, grad_norm))
        self.lrs.append(lr)
        self.n_examples.append(n_examples)

    def skip_last(self) -> None:
        """Note that the step added last led to no update. Its gradient has no length: it held inf or nan."""
        self.skipped.append(self.n_steps - 1)
        if self.unread:
            self.unread[-1] = self.unread[-1][0], None
        else:
            self.grad_norms[-1] = None

    @property
    def n_unread(self) -> int:
        """Steps whose numbers are still on the device."""
        return len(self.unread)

    def read(self) -> bool:
        """Turn the losses and norms that arrived since the last call into numbers; return whether all are finite."""
        if len(self.unread) == 1:
            loss, norm = self.unread.pop()
            self.losses.append(number := loss.item())
            self.grad_norms.append(length := None if norm is None else norm.item())
            return math.isfinite(number) and (length is None or math.isfinite(length))
        first = len(self.losses)
        if self.unread:  # one transfer for all
            losses, norms = zip(*self.unread, strict=True)
            self.losses += torch.stack(losses).tolist()
            measured = iter(torch.stack([n for n in norms if n is not None] or [torch.zeros(())]).tolist())
            self.grad_norms += [None if norm is None else next(measured) for norm in norms]
        self.unread.clear()
        lengths = (length for length in self.grad_norms[first:] if length is not None)
        return all(map(math.isfinite, self.losses[first:])) and all(map(math.isfinite, lengths))

    def last_step(self, batch: int) -> Step:
        """Return the record of the step that was added last; ``batch`` is where in the epoch it began."""
        index = len(self.losses) - 1
        return Step(
            index=index,
            loss=self.losses[-1],
            lr=self.lrs[-1],
            epoch=self.epoch,
            batch=batch,
            n_examples=self.n_examples[-1],
            grad_norm=self.grad_norms[-1],
            was_skipped=bool(self.skipped) and self.skipped[-1] == index,
        )

    def end_epoch(self, validation: Mapping[str, float], is_best: bool | None, seconds: float) -> Epoch:
        """Close the current epoch and move the position to the start of the next one."""
        epoch = Epoch(
            index=self.epoch,
            loss=self.epoch_loss(),
            validation=dict(validation),
            lr=self.lrs[-1],
            n_steps=len(self.losses) - self.first_step,
            last_step=len(self.losses) - 1,
            is_best=is_best,
            seconds=seconds,
        )
        self.epochs.append(epoch)
        self.epoch, self.batch, self.first_step = self.epoch + 1, 0, len(self.losses)
        return epoch

    def epoch_loss(self) -> float:
        """Return the mean loss over the examples of the current epoch so far."""
        counts = self.n_examples[self.first_step :]
        weighted = (loss * count for loss, count in zip(self.losses[self.first_step :], counts, strict=True))
        return math.fsum(weighted) / sum(counts)

    def finish(self, stopped_by: str, best_epoch: int | None) -> Run:
        """Return the run as a frozen record."""
        return Run(
            losses=tuple(self.losses),
            lrs=tuple(self.lrs),
            n_examples=tuple(self.n_examples),
            grad_norms=tuple(self.grad_norms),
            skipped=tuple(self.skipped),
            epochs=tuple(self.epochs),
            stopped_by=stopped_by,
            best_epoch=best_epoch,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything as plain data; the long lists as tensors, which are small and quick to store."""
        norms = [math.nan if norm is None else norm for norm in self.grad_norms]
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "first_step": self.first_step,
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "lrs": torch.tensor(self.lrs, dtype=torch.float64),
            "n_examples": torch.tensor(self.n_examples, dtype=torch.int64),
            "grad_norms": torch.tensor(norms, dtype=torch.float64),
            "skipped": list(self.skipped),
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.epoch, self.batch, self.first_step = (
            operator.index(state[name]) for name in ("epoch", "batch", "first_step")
        )
        self.losses, self.lrs = state["losses"].tolist(), state["lrs"].tolist()
        self.n_examples = state["n_examples"].tolist()
        self.grad_norms = [None if math.isnan(norm) else norm for norm in state["grad_norms"].tolist()]
        self.skipped = [operator.index(step) for step in state["skipped"]]
        self.epochs = [Epoch(**fields) for fields in state["epochs"]]
        lengths = {len(self.losses), len(self.lrs), len(self.n_examples), len(self.grad_norms)}
        if len(lengths) > 1 or not 0 <= self.first_step <= len(self.losses):
            raise ValueError(f"the lists of steps differ in length, or are shorter than step {self.first_step}")
