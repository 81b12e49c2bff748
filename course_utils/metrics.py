"""Pure numbers: how good predictions are, and means in which every example weighs the same.

Nothing here broadcasts. With shapes that do not belong together, ``logits.argmax(1) == labels`` may still give a
number, a wrong one: (N, 1) against (N,) compares every example with every other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from course_utils.errors import ShapeError, UsageError


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of examples whose largest logit stands at the true class, 0 to 1.

    Args:
        logits: one score per class, shape (N, C); probabilities give the same answer.
        labels: true classes, shape (N,), whole numbers.

    Raises:
        ShapeError: if the shapes are not (N, C) and (N,), or N is 0.
        UsageError: if labels are not whole numbers.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    _check(logits, labels)
    return (logits.argmax(1) == labels).sum().item() / len(labels)


def confusion(logits: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return how often each true class was taken for each class.

    Args:
        logits: shape (N, C) with C at most ``n_classes``.
        labels: shape (N,), each in 0..n_classes-1.
        n_classes: number of rows and columns.

    Returns:
        Counts, shape (n_classes, n_classes), int64: the row is the true class, the column the predicted one.

    Raises:
        ShapeError: if the shapes are not (N, C) and (N,), N is 0, or C is larger than ``n_classes``.
        UsageError: if a label is not a whole number in 0..n_classes-1.

    Example:
        >>> confusion(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), 2).tolist()
        [[0, 0], [1, 1]]
    """
    _check(logits, labels)
    if logits.shape[1] > n_classes:
        raise ShapeError(
            "There are more logits than classes.",
            got=f"logits {tuple(logits.shape)}",
            expected=f"(N, {n_classes}) for {n_classes} classes",
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        raise UsageError("A label is no class.", got=f"labels from {low} to {high}", expected=f"0 to {n_classes - 1}")
    cells = labels.long() * n_classes + logits.argmax(1)  # (N,): the number of the cell, row by row
    return torch.bincount(cells, minlength=n_classes**2).view(n_classes, n_classes)


class Mean:
    """A mean over examples, built from the means of batches: a short last batch weighs less.

    Example:
        >>> loss = Mean()
        >>> loss.add(1.0, count=64)
        >>> loss.add(4.0, count=32)
        >>> loss.value
        2.0
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float | Tensor, count: int = 1) -> None:
        """Take in a batch: its mean ``value`` and how many examples that stands for.

        Raises:
            ShapeError: if ``value`` is a tensor of more than one number.
            UsageError: if ``count`` is negative or not whole.
        """
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ShapeError(
                    "A mean takes one number per batch.",
                    got=tuple(value.shape),
                    expected="shape ()",
                    fix="value.mean()",
                )
            value = value.item()
        if count < 0 or count != int(count):
            raise UsageError("This is not a number of examples.", got=count, expected="a whole number of at least 0")
        if count:  # 0 * nan would spoil the total
            self.total += value * int(count)
            self.count += int(count)

    @property
    def value(self) -> float:
        """The mean over all examples so far; nan before the first."""
        return self.total / self.count if self.count else math.nan


def _check(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 2 or labels.ndim != 1 or len(logits) != len(labels) or len(labels) == 0 or logits.shape[1] == 0:
        raise ShapeError(
            "Logits and labels do not belong together.",
            got=f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)}",
            expected="(N, C) and (N,), with at least one example",
            fix="labels.squeeze(1)" if labels.ndim == 2 and labels.shape[1] == 1 else "",
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UsageError("Labels are class numbers.", got=labels.dtype, expected="whole numbers", fix="labels.long()")
