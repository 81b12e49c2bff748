"""A small run in which everything is in play that a resume can lose, and a comparison that names what was lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from course_utils import checkpoints
from course_utils.data import Batches
from course_utils.records import Epoch, Run, Step
from course_utils.seeding import rng_state, seed_everything, seed_worker, stream
from course_utils.training import KeepBest, fit

N, D, C = 23, 5, 3  # examples, features, classes
BATCH, ACCUMULATE, EPOCHS = 3, 3, 3
STEPS = EPOCHS * 3  # 8 batches per epoch, the last one of 2 examples, make windows of 3, 3 and 2 batches
KINDS = ("batches", "function of the epoch", "loader, global shuffle", "loader, own generator", "loader, 2 workers")


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from all generators there are: torch's global one, Python's, NumPy's and our own."""
    scale = 1 + 0.1 * random.random() + 0.1 * float(np.random.rand())
    return x * scale + 0.1 * torch.randn(x.shape, generator=generator) + 0.1 * torch.randn(x.shape)


class NoisyDataset(Dataset):
    """Examples with noise from torch's global generator, which is each worker's own in a worker."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(self.x.shape[1:]), self.y[index]


def make_batches(kind: str, x: Tensor, y: Tensor, augment: torch.Generator) -> Any:
    transform = partial(noisy, generator=augment)
    if kind == "batches":
        return Batches(x, y, BATCH, generator=stream(0, "shuffle"), transform=transform)
    if kind == "function of the epoch":

        def of_epoch(epoch: int) -> Batches:
            own = partial(noisy, generator=stream(0, "augment", epoch))
            return Batches(x, y, BATCH, generator=stream(0, "shuffle", epoch), transform=own)

        return of_epoch
    if kind == "loader, global shuffle":
        return DataLoader(NoisyDataset(x, y), BATCH, shuffle=True)
    workers = 2 if kind == "loader, 2 workers" else 0
    return DataLoader(
        NoisyDataset(x, y),
        BATCH,
        shuffle=True,
        generator=stream(0, "shuffle"),
        num_workers=workers,
        worker_init_fn=seed_worker,
    )


def steep_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy made steeper, so that gradients times the first scales overflow."""
    return 16 * nn.functional.cross_entropy(logits, labels)


@dataclass
class World:
    """All parts of one run, freshly made, as a new process would make them."""

    kind: str = "batches"
    folder: Path | None = None
    every: int = 1
    interrupt: Callable[[Step | Epoch], None] = lambda record: None
    measured: Callable[[], None] = lambda: None
    seen: dict[int, list[float]] = field(default_factory=dict)  # step index -> a number for each example it was fed

    def __post_init__(self) -> None:
        seed_everything(3)
        self.x, self.y = torch.randn(N, D), torch.randint(0, C, (N,))
        self.model = nn.Sequential(nn.Linear(D, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, C))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        # Both multiply the rate that is there, and both count: one loses its place as easily as the other.
        self.step_schedule = StepLR(self.optimizer, step_size=2, gamma=0.9)
        self.epoch_schedule = ReduceLROnPlateau(self.optimizer, patience=0, factor=0.5)
        # 2**125: the first update overflows and is skipped; after 3 good ones the scale grows, and another overflows.
        self.scaler = GradScaler("cpu", init_scale=2.0**125, growth_interval=3)
        self.best = KeepBest(patience=5)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.augment = stream(0, "augment")
        self.batches = make_batches(self.kind, self.x, self.y, self.augment)
        self.keeper = None if self.folder is None else checkpoints.Keeper(self.folder, every=self.every, keep=3)
        self._fed: list[float] = []
        self.model.register_forward_pre_hook(self._note)

    def _note(self, model: nn.Module, inputs: tuple[Tensor]) -> None:
        if model.training:
            self._fed += inputs[0].sum(1).tolist()

    def _observe(self, record: Step | Epoch) -> None:
        if isinstance(record, Step):
            self.seen[record.index], self._fed = self._fed, []
            self.ema.update_parameters(self.model)
        self.interrupt(record)

    def _spread(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.measured()
        return logits.std()

    def live(self) -> dict[str, Any]:
        """Return the states of the objects themselves, which at the end must be right and not only their copies."""
        parts = (self.model, self.optimizer, self.step_schedule, self.epoch_schedule, self.scaler, self.ema)
        return {**{type(part).__name__: part.state_dict() for part in parts}, "random": rng_state()}

    def run(self, **changes: Any) -> Run:
        """Train, or go on from the newest checkpoint."""
        validation = [(self.x[:9], self.y[:9]), (self.x[9:13], self.y[9:13])]
        arguments: dict[str, Any] = {
            "epochs": EPOCHS,
            "validation": validation,
            "metrics": {"spread": self._spread},
            "monitor": "spread",
            "step_schedule": self.step_schedule,
            "epoch_schedule": self.epoch_schedule,
            "best": self.best,
            "clip_norm": 0.5,
            "accumulate": ACCUMULATE,
            "amp": torch.bfloat16,
            "scaler": self.scaler,
            "observers": [self._observe],
            "also": {"ema": self.ema, "augment": self.augment},
            "keeper": self.keeper,
            "resume": self.keeper.latest() if self.keeper else None,
        }
        return fit(self.model, steep_loss, self.optimizer, self.batches, **{**arguments, **changes})


def first_difference(a: Any, b: Any, where: str = "") -> str | None:
    """Return the place of the first difference between two checkpoints, bit for bit; None if there is none."""
    if type(a) is not type(b):
        return f"{where}: {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: keys {sorted(set(a) ^ set(b), key=str)}"
        parts: Iterator[str | None] = (
            first_difference(a[key], b[key], f"{where}.{key}" if where else str(key)) for key in a if key != "seconds"
        )
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} entries"
        parts = (
            first_difference(left, right, f"{where}[{i}]") for i, (left, right) in enumerate(zip(a, b, strict=True))
        )
    elif isinstance(a, Tensor):
        same = a.dtype == b.dtype and torch.equal(bits(a), bits(b))
        return None if same else f"{where}: other values"
    else:
        return None if a == b or (a != a and b != b) else f"{where}: {a!r} and {b!r}"
    return next((part for part in parts if part), None)


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, so that nan equals nan and 0 differs from -0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
