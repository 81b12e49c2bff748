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


class ResidualBlock(nn.Module):
    """Two convolutions whose result is added to their input: the block learns what to *change*.

    Args:
        channels: C, of input and output.
        zero_init: begin with the last scale at 0, so that the new block returns its input unchanged.
    """

    def __init__(self, channels: int, zero_init: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        if zero_init:
            nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape, (N, C, H, W)."""
        return x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))


class TransformerBlock(nn.Module):
    """Attention, then a small network at every position, each added to its input; normalised before, not after.

    Args:
        width: E, numbers per position; a multiple of ``n_heads``.
        n_heads: K, attentions side by side.
        hidden: width of the network in the middle.
        dropout: share of the values that training sets to 0.

    Source: Xiong et al., On Layer Normalization in the Transformer Architecture, 2020 (the order "pre-norm").
    """

    def __init__(self, width: int, n_heads: int = 4, hidden: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        if width % n_heads:
            raise UsageError(
                "The heads share the width evenly.", got=f"width={width}, n_heads={n_heads}", expected="a multiple"
            )
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        hidden = hidden or 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        """Return a tensor of the input's shape, (N, T, E); with ``is_causal``, no position sees a later one."""
        x = x + self.drop(self._attention(self.norm1(x), is_causal))
        return x + self.drop(self.mlp(self.norm2(x)))

    def _attention(self, x: Tensor, is_causal: bool) -> Tensor:
        n, t, e = x.shape
        q, k, v = self.to_qkv(x).view(n, t, 3, self.n_heads, e // self.n_heads).permute(2, 0, 3, 1, 4)  # (N, K, T, E/K)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.to_out(seen.transpose(1, 2).reshape(n, t, e))


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
