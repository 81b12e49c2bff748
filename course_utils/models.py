"""The small networks of the course. All return logits, one raw score per class: the loss does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from course_utils.errors import UsageError
from course_utils.text import did_you_mean


class MLP(nn.Module):
    """A multilayer perceptron: flatten the input, then linear layers with ReLU between them.

    Args:
        n_inputs: numbers per example, such as 784 for a 28x28 image.
        hidden: width of each hidden layer; ``()`` leaves one linear layer.
        n_classes: number of logits.
        dropout: share of the hidden values that training sets to 0.

    With the defaults: 784 * 128 + 128 + 128 * 10 + 10 = 101,770 parameters.
    """

    def __init__(
        self, n_inputs: int = 784, hidden: Sequence[int] = (128,), n_classes: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(n_inputs, width), nn.ReLU(), nn.Dropout(dropout)]
            n_inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(n_inputs, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (N, C), for ``x`` of shape (N, ...) with ``n_inputs`` numbers per example."""
        return self.layers(x)


class DigitCNN(nn.Module):
    """The course CNN: two convolutions find strokes and their combinations, two linear layers decide.

    Args:
        width: channels after the first convolution; the second has twice as many.
        n_classes: number of logits.
        size: H and W of the images, in pixels, at least 4.
        hidden: width of the hidden linear layer.
        dropout: share of the values before each linear layer that training sets to 0.
    """

    def __init__(
        self, width: int = 16, n_classes: int = 10, size: int = 28, hidden: int = 128, dropout: float = 0.25
    ) -> None:
        super().__init__()
        # No bias in the convolutions: the normalisation after them would subtract it again.
        self.conv1 = nn.Conv2d(1, width, kernel_size=3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.drop1 = nn.Dropout(dropout)
        self.fc1 = nn.Linear(2 * width * (size // 4) ** 2, hidden)
        self.drop2 = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (N, C), for images of shape (N, 1, size, size)."""
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)  # (N, 1, 28, 28) -> (N, 16, 14, 14)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)  # -> (N, 32, 7, 7)
        x = self.drop1(x.flatten(1))  # -> (N, 1568)
        x = self.drop2(F.relu(self.fc1(x)))  # -> (N, 128)
        return self.fc2(x)  # -> (N, 10)


MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "digit-cnn": DigitCNN}


def from_name(name: str, **settings: object) -> nn.Module:
    """Return a new network by its name in `MODELS`; ``settings`` go to its constructor.

    Raises:
        UsageError: if no network has that name.
    """
    if name not in MODELS:
        raise UsageError(
            f"There is no network called {name!r}.",
            expected=f"one of {', '.join(map(repr, MODELS))}",
            fix=did_you_mean(str(name), MODELS),
        )
    return MODELS[name](**settings)


def count_parameters(model: nn.Module, *, trainable_only: bool = False) -> int:
    """Return how many numbers a model learns; a parameter used in two places counts once.

    Args:
        model: any module.
        trainable_only: leave out frozen parameters, those with ``requires_grad=False``.

    Raises:
        UsageError: if a lazy layer has no shape yet.
    """
    total = 0
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(
                f"The parameter {name!r} has no shape yet.",
                expected="a model that has seen one batch: lazy layers take their shapes from it",
                fix="run model(batch) once, then count",
            )
        if parameter.requires_grad or not trainable_only:
            total += parameter.numel()
    return total
