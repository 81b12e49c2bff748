"""Frozen settings of a training run: checked once, changed by `replace`, stored as YAML beside the results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["TrainConfig", "replace"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides the outcome of a training run. The defaults are the recipe of lesson 05."""

    seed: int = 0  # of every stream: weights, shuffling, augmentation, dropout
    device: str = "auto"  # see devices.pick_device
    deterministic: bool = False  # only deterministic algorithms; see seeding.deterministic
    model: str = "digit-cnn"  # a name that models.from_name knows
    epochs: int = 12  # passes over the training examples
    batch_size: int = 64  # examples per step
    optimizer: str = "adamw"  # "adamw", "adam" or "sgd"
    lr: float = 1e-2  # learning rate; with a schedule, its peak
    momentum: float = 0.9  # of sgd only
    weight_decay: float = 1e-2  # pull of the weights towards 0
    schedule: str = "onecycle"  # "constant", "cosine", "onecycle", "plateau"
    clip_norm: float | None = None  # largest gradient norm of a step; None leaves gradients alone
    accumulate: int = 1  # batches per step
    amp: bool = False  # run the forward pass in lower precision where that is safe
    patience: int | None = None  # epochs without improvement on validation before stopping; None never stops
    augment: bool = True  # turn, move and resize the training images
    label_smoothing: float = 0.0  # share of each label spread over all classes

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> TrainConfig:
        """Return the config with these settings; the others keep their defaults."""
        raise NotImplementedError

    def to_yaml(self) -> str:
        """Return the settings as YAML text, one line each."""
        raise NotImplementedError

    @classmethod
    def from_yaml(cls, text: str) -> TrainConfig:
        """Return the config that YAML text describes."""
        raise NotImplementedError

    @classmethod
    def from_file(cls, path: Path) -> TrainConfig:
        """Return the config stored in a YAML file."""
        raise NotImplementedError
