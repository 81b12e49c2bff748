"""The small networks of the course."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    """A multilayer perceptron: flatten, then linear layers with ReLU between them. Returns logits (N, C)."""

    def __init__(self, n_inputs: int = 784, hidden: Sequence[int] = (128,), n_classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class DigitCNN(nn.Module):
    """The course CNN: two convolutions, each with ReLU and pooling, then two linear layers. Returns logits (N, C)."""

    def __init__(self, width: int = 16, n_classes: int = 10, size: int = 28, dropout: float = 0.25) -> None:
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def from_name(name: str, **settings: object) -> nn.Module:
    """Return a new model by name, ``"mlp"`` or ``"digit-cnn"``; ``settings`` go to its constructor."""
    raise NotImplementedError


def count_parameters(model: nn.Module, *, trainable_only: bool = False) -> int:
    """Return the number of values that the model learns; a parameter used in two places counts once."""
    raise NotImplementedError
