"""Pure numbers: how good the predictions are, and means that weigh every example alike."""

from __future__ import annotations

from torch import Tensor


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of examples whose largest logit is at the true class, 0 to 1. Shapes (N, C) and (N,)."""
    raise NotImplementedError


def confusion(logits: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the counts, shape (C, C), int64: row is the true class, column the predicted one."""
    raise NotImplementedError


class Mean:
    """A running mean over examples, right also when the last batch is short.

    ``mean.add(loss.item(), count=len(labels))`` per batch, then ``mean.value``.
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float | Tensor, count: int = 1) -> None:
        """Add a mean ``value`` that stands for ``count`` examples."""
        raise NotImplementedError

    @property
    def value(self) -> float:
        """The mean over all examples so far."""
        raise NotImplementedError
