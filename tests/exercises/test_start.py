"""Lesson 00: differently written right answers pass, plausible wrong ones meet the message meant for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.exercises.harness import exercise_tests

Loss = Callable[[Tensor, Tensor], object]


def with_a_loop(predictions: Tensor, labels: Tensor) -> Tensor:
    total = torch.zeros(())
    for p, t in zip(predictions, labels, strict=True):
        total = total + (p - t) * (p - t)
    return total / len(labels)


def in_place(predictions: Tensor, labels: Tensor) -> Tensor:
    predictions -= labels
    return predictions.pow(2).mean()


def forgets_return(predictions: Tensor, labels: Tensor) -> None:
    ((predictions - labels) ** 2).mean()


def root(p: Tensor, t: Tensor) -> Tensor:
    return (p - t).square().mean().sqrt()


RIGHT = {
    "start.mean-squared-error": {
        "PyTorch's own": F.mse_loss,
        "PyTorch's module": nn.MSELoss(),
        "a dot product": lambda p, t: (p - t) @ (p - t) / p.numel(),
        "a sum over the count": lambda p, t: ((t - p) ** 2).sum() / len(p),
        "a loop": with_a_loop,
        "a squared norm": lambda p, t: torch.linalg.vector_norm(p - t) ** 2 / p.shape[0],
    }
}
WRONG = {
    "start.mean-squared-error": {
        "no square": (lambda p, t: (p - t).mean(), "cancel"),
        "no square, other way round": (lambda p, t: (t - p).mean(), "cancel"),
        "square of the mean": (lambda p, t: (p - t).mean() ** 2, "squared the mean"),
        "a sum": (lambda p, t: ((p - t) ** 2).sum(), "This is the sum"),
        "absolute error": (lambda p, t: (p - t).abs().mean(), "mean absolute error"),
        "root": (root, "Leave the root out"),
        "half": (lambda p, t: ((p - t) ** 2).mean() / 2, "1/2 in front"),
        "no mean": (lambda p, t: (p - t) ** 2, "one number for the whole batch"),
        "a Python number": (lambda p, t: ((p - t) ** 2).mean().item(), "has forgotten"),
        "an array": (lambda p, t: ((p - t) ** 2).mean().detach().numpy(), "has forgotten"),
        "detached": (lambda p, t: ((p - t) ** 2).mean().detach(), "its history is gone"),
        "rebuilt from a number": (lambda p, t: torch.tensor(((p - t) ** 2).mean().item()), "its history is gone"),
        "the example's size built in": (lambda p, t: ((p - t) ** 2).sum() / 2, "no number of this example"),
        "writes into its input": (in_place, "writes into the caller's tensor"),
        "labels detached instead of used": (lambda p, t: (p.detach() - t).square().mean(), "its history is gone"),
        "no return": (forgets_return, "Does it end with a return statement"),
        "variance": (lambda p, t: (p - t).var(correction=0), "take the mean: (1 + 4) / 2"),
        "never returns": (lambda p, t: print((p - t).square().mean()), "got None"),
        "calls a method that does not exist": (lambda p, t: (p - t).squared().mean(), "AttributeError"),
    }
}

TestStart = exercise_tests("start", RIGHT, WRONG)
