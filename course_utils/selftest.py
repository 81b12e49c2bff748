"""Does PyTorch compute here what it computed for the authors? Two small trainings, compared with stored results.

An import that succeeds proves little: a wrong build, a mixed-up pair of packages or a damaged data file shows
only when something is computed. The whole test takes a few seconds on two CPU cores.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils.data import load_digits28
from course_utils.metrics import accuracy
from course_utils.models import DigitCNN
from course_utils.paths import write_text
from course_utils.seeding import seeded, stream
from course_utils.text import table

SEED = 0  # of the self-test only; a lesson's SEED must not change what is compared
STORED = Path(__file__).with_name("selftest_expected.json")
SLOPE, INTERCEPT, NOISE = 2.0, 0.5, 0.5  # the line that the points of the regression scatter around
X_RANGE = (-1.5, 1.5)
EPOCHS, BATCH_SIZE, WIDTH, LR = 2, 64, 8, 3e-3  # small: about 1.5 s per epoch on one core

# How far a measurement may be from its stored value. Sums in another order (threads, vector width, GPU) change the
# last digits of every operation; two passes through the network let that grow to 5e-5 nats between one and two
# threads, and between oneDNN and PyTorch's own kernels. Another random seed moves the last loss by 0.06 nats.
TOLERANCE = {
    "line: slope": 1e-3,
    "line: intercept": 1e-3,
    "line: loss": 1e-3,
    "digits: parameters": 0.0,
    "digits: first loss (nats)": 0.01,  # before any training: the same random weights, so nearly the same number
    "digits: last loss (nats)": 0.05,  # mean over the last pass; room for a GPU's shorter number formats
    "digits: test accuracy": 0.03,  # 30 of 1,000 digits; a network that does not learn is off by 0.8
}


@dataclass(frozen=True)
class Layer:
    """One layer as one batch sees it: ``shape`` of its output, and the number of values it learns."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int


@dataclass(frozen=True)
class Results:
    """What a self-test measured: numbers by name, and the layers of the network in the order they ran."""

    values: dict[str, float]
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Verdict:
    """One measurement beside its stored value."""

    what: str
    stored: float
    measured: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return abs(self.measured - self.stored) <= self.tolerance  # nan compares false, so it never agrees


def mean_squared_error(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the squared differences, shapes (N,), (N,) -> ()."""
    return (predictions - labels).square().mean()


def line_points(count: int = 400) -> tuple[Tensor, Tensor]:
    """Return x and y, each of shape (count,): noisy points around the line y = 2 x + 0.5, always the same."""
    generator = stream(SEED, "selftest", "line")
    low, high = X_RANGE
    x = low + (high - low) * torch.rand(count, generator=generator)
    return x, SLOPE * x + INTERCEPT + NOISE * torch.randn(count, generator=generator)


def fit_line(device: str | torch.device = "cpu", steps: int = 200, lr: float = 0.2) -> dict[str, float]:
    """Return slope, intercept and loss after gradient descent on the points of `line_points`."""
    x, y = (values.to(device) for values in line_points())
    line = torch.zeros(2, device=device, requires_grad=True)  # slope, intercept
    for _ in range(steps):
        loss = mean_squared_error(line[0] * x + line[1], y)
        (grad,) = torch.autograd.grad(loss, line)
        with torch.no_grad():
            line -= lr * grad
    slope, intercept = line.tolist()
    return {"line: slope": slope, "line: intercept": intercept, "line: loss": loss.item()}


def train_digits(device: str | torch.device = "cpu") -> tuple[dict[str, float], tuple[Layer, ...]]:
    """Train the course CNN on 3,500 digits for two passes; return its numbers and its layers."""
    train, _, test = load_digits28()
    images, labels = train.as_batch(device=device)
    with seeded(SEED):
        model = DigitCNN(width=WIDTH, dropout=0.0).to(device)
    model.eval()
    layers = layers_of(model, images[:BATCH_SIZE])
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    order = stream(SEED, "selftest", "digits")
    with torch.no_grad():
        first = F.cross_entropy(model(images[:500]), labels[:500]).item()
    model.train()
    for _ in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(labels), generator=order).to(device).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
    test_images, test_labels = test.as_batch(device=device)
    model.eval()
    with torch.no_grad():
        share = accuracy(model(test_images), test_labels)
    values = {
        "digits: parameters": float(sum(p.numel() for p in model.parameters())),
        "digits: first loss (nats)": first,
        "digits: last loss (nats)": total / len(labels),
        "digits: test accuracy": share,
    }
    return values, layers


def layers_of(model: nn.Module, batch: Tensor) -> tuple[Layer, ...]:
    """Return the layers that have no layers inside, in the order they ran on ``batch``."""
    names = {module: name for name, module in model.named_modules()}
    seen: list[Layer] = []

    def note(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        count = sum(p.numel() for p in layer.parameters())
        seen.append(Layer(names[layer], type(layer).__name__, tuple(output.shape), count))

    handles = [layer.register_forward_hook(note) for layer in names if not list(layer.children())]
    try:
        with torch.no_grad():
            model(batch)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(seen)


def run(device: str | torch.device = "cpu") -> Results:
    """Run both trainings. Global random states are as before afterwards."""
    values, layers = train_digits(device)
    return Results({**fit_line(device), **values}, layers)


def compare(values: Mapping[str, float], stored: Mapping[str, float] | None = None) -> list[Verdict]:
    """Return a verdict for every stored value; one that was not measured counts as nan."""
    stored = stored_values() if stored is None else stored
    return [Verdict(what, expected, values.get(what, math.nan), TOLERANCE[what]) for what, expected in stored.items()]


def stored_values() -> dict[str, float]:
    """Return the results of the authors' machine, by name."""
    return json.loads(STORED.read_text(encoding="utf-8"))["values"]


def layer_table(layers: tuple[Layer, ...]) -> str:
    """Return the layers as text: name, kind, shape of the output, learned values."""
    rows = [(layer.name, layer.kind, str(layer.shape), layer.parameters) for layer in layers]
    return table(rows, ("layer", "kind", "output shape", "learned values"))


def verdict_table(verdicts: list[Verdict]) -> str:
    """Return the verdicts as text that is the same on every healthy machine: measured values appear on a miss only."""
    rows = []
    for verdict in verdicts:
        said = "agrees" if verdict.agrees else f"DIFFERS: {verdict.measured:.4f}"
        allowed = f"± {verdict.tolerance:g}" if verdict.tolerance else "exactly"
        stored = f"{verdict.stored:,.0f}" if verdict.stored >= 100 else f"{verdict.stored:.3f}"
        rows.append((verdict.what, stored, allowed, said))
    return table(rows, ("what", "stored", "tolerance", "here"))


def summary(verdicts: list[Verdict]) -> str:
    """Return one sentence about all verdicts."""
    misses = [verdict.what for verdict in verdicts if not verdict.agrees]
    if not misses:
        return f"Self-test passed: all {len(verdicts)} results agree with the stored ones."
    return f"Self-test failed: {', '.join(misses)}. Compare the versions below, then report it with the environment."


def _store() -> None:
    """Replace the stored results by those of this machine (``python -m course_utils.selftest --store``)."""
    values = {what: round(value, 4) for what, value in run().values.items()}
    write_text(STORED, json.dumps({"torch": torch.__version__.split("+")[0], "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--store"]:
        _store()
    verdicts = compare(run().values)
    print(verdict_table(verdicts))
    print(summary(verdicts))
    raise SystemExit(0 if all(verdict.agrees for verdict in verdicts) else 1)
