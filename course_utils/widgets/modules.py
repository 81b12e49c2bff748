"""Lesson 03's explorer: look into a trained network, layer by layer, forward and backward."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from course_utils.data import Batches, load_digits28
from course_utils.hooks import recording, recording_gradients
from course_utils.models import DigitCNN
from course_utils.seeding import seeded, stream
from course_utils.text import table
from course_utils.widgets.panel import Choice, Slider, View, explore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = ("conv1", "norm1", "conv2", "norm2", "fc1", "fc2")
STEPS = 30
MAX_TILES = 16


def explore_layers() -> None:
    """Show the inside of a trained network: a layer, a digit, activations or gradients."""
    explore(
        layer_view,
        layer=Choice("layer", list(LAYERS), "conv2"),
        digit=Slider("digit", 0, 9, 4),
        what=Choice("show", ["activations", "gradients"], "activations"),
    )


def layer_view(layer: str, digit: int, what: str) -> View:
    """Draw what one layer gives for a test digit, or the gradient of the loss by it."""
    image, label = _example(digit)
    model = trained_network()
    with recording(model, *LAYERS) as outputs, recording_gradients(model, *LAYERS) as gradients:
        logits = model(image)
        F.cross_entropy(logits, label).backward()
    model.zero_grad()
    output, gradient = outputs[layer][0][0], gradients[layer][0][0]
    shown = output if what == "activations" else gradient
    with torch.no_grad():
        probs = logits.softmax(1)[0]
    return View(_draw(image[0, 0], shown, f"{what} of {layer}"), _describe(layer, output, gradient, probs, digit))


@cache
def trained_network() -> DigitCNN:
    """Return a small course CNN after 30 steps on the 28x28 digits, in eval mode and float64.

    float64, so that the text shows the same numbers on every machine and with every number of threads.
    """
    splits = load_digits28()
    images, labels = splits.train.as_batch()
    with seeded(0):
        model = DigitCNN(width=8, dropout=0.0).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = Batches(images.double(), labels, 64, generator=stream(0, "explorer"))
    for x, y in islice(batches, STEPS):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@cache
def _test_digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits28().test.as_batch()
    return images.double(), labels


def _example(digit: int) -> tuple[Tensor, Tensor]:
    """Return the first test image of a digit, (1, 1, 28, 28), and its label, (1,)."""
    images, labels = _test_digits()
    place = int((labels == digit).nonzero()[0])
    return images[place : place + 1], labels[place : place + 1]


def _draw(image: Tensor, shown: Tensor, title: str) -> Figure:
    import matplotlib.pyplot as plt

    from course_utils.plots import styled

    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.0), width_ratios=(1, 2.2))
        left.imshow(image.numpy(), cmap="gray_r", vmin=0, vmax=1)
        left.set(title="input", xticks=[], yticks=[])
        peak = float(shown.abs().max()) or 1.0
        if shown.dim() == 3:
            right.imshow(_tiles(shown[:MAX_TILES]).numpy(), cmap="RdBu_r", vmin=-peak, vmax=peak)
            right.set(title=f"{title}: {min(len(shown), MAX_TILES)} of {len(shown)} channels", xticks=[], yticks=[])
            right.grid(visible=False)
        else:
            right.bar(range(len(shown)), shown.numpy(), width=1.0 if len(shown) > 20 else 0.8, color="#0072b2")
            right.axhline(0, color="#444444", linewidth=0.8)
            right.set(title=title, xlabel="unit")
    return figure


def _tiles(channels: Tensor) -> Tensor:
    """Return (C, H, W) as one picture of 8 tiles a row, with gaps of one pixel that stay white (nan)."""
    padded = F.pad(channels, (0, 1, 0, 1), value=float("nan"))
    rows = [torch.cat(list(row), 1) for row in padded.split(8)]
    return torch.cat(rows)


def _describe(layer: str, output: Tensor, gradient: Tensor, probs: Tensor, digit: int) -> str:
    named = dict(trained_network().named_modules())[layer]
    rows = [
        ("shape", str(tuple(output.shape)), str(tuple(gradient.shape))),
        ("mean", f"{output.mean():.2f}", f"{gradient.mean():.1e}"),
        ("standard deviation", f"{output.std():.2f}", f"{gradient.std():.1e}"),
        (
            "share below 0",
            f"{100 * (output < 0).double().mean():.0f} %",
            f"{100 * (gradient < 0).double().mean():.0f} %",
        ),
    ]
    learned = ", ".join(f"{name} {tuple(p.shape)}" for name, p in named.named_parameters())
    best = int(probs.argmax())
    verdict = f"The network says {best} with {100 * probs[best]:.0f} %, the label is {digit}."
    return f"{table(rows, (layer, 'output', 'gradient'))}\nlearned: {learned}\n{verdict}"
