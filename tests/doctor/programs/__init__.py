"""Small training programs, sick and healthy ones, that the doctor is tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

Make = Callable[[], dict[str, Any]]
THEMES = (
    "tensors",
    "autograd",
    "modules",
    "data",
    "loop",
    "schedules",
    "precision",
    "evaluation",
    "exports",
    "unusual",
    "rare",
    "failing",
    "recalled",
    "objectives",
    "images",
    "ranks",
)


@dataclass(frozen=True)
class Program:
    """A program and what the doctor must say: a code for a faulty one, nothing but notes for a healthy one."""

    name: str
    make: Make
    code: str | None
    severity: str | None = None  # of the finding; None for error or warning
    kind: str = ""  # of the failure, in the evidence
    words: tuple[str, ...] = ()  # that the message must have
    fix: str = ""  # that the repair must have
    evidence: dict[str, Any] = field(default_factory=dict)


PROGRAMS: list[Program] = []


def faulty(code: str, severity: str | None = None) -> Callable[[Make], Make]:
    """Enter a program with a fault that must be found under this code."""

    def enter(make: Make) -> Make:
        PROGRAMS.append(Program(f"{make.__module__.rpartition('.')[2]}-{make.__name__}", make, code, severity))
        return make

    return enter


def failing(code: str, kind: str, *words: str, fix: str = "", **evidence: Any) -> Callable[[Make], Make]:
    """Enter a program that raises an exception, and what the explanation must name."""

    def enter(make: Make) -> Make:
        name = f"{make.__module__.rpartition('.')[2]}-{make.__name__}"
        PROGRAMS.append(Program(name, make, code, None, kind, words, fix, evidence))
        return make

    return enter


def healthy(make: Make) -> Make:
    """Enter a program about which there is nothing to say but notes."""
    PROGRAMS.append(Program(f"{make.__module__.rpartition('.')[2]}-{make.__name__}", make, None))
    return make


def load() -> list[Program]:
    """Return all programs."""
    for theme in THEMES:
        import_module(f"tests.doctor.programs.{theme}")
    return PROGRAMS


def regression(n: int = 64, d: int = 4) -> tuple[Tensor, Tensor]:
    """Return inputs (N, D) and a linear label (N, 1) with a little noise."""
    torch.manual_seed(0)
    x = torch.randn(n, d)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1)


def classes(n: int = 64, d: int = 4, c: int = 3) -> tuple[Tensor, Tensor]:
    """Return inputs (N, D) and classes (N,)."""
    torch.manual_seed(0)
    x = torch.randn(n, d)
    return x, x[:, :c].argmax(1)


def batches(x: Any, y: Any, size: int = 16) -> list[tuple[Any, Any]]:
    """Return a list of batches."""
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


def mlp(d: int = 4, out: int = 1, width: int = 16) -> nn.Sequential:
    """Return a small network, always with the same weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(d, width), nn.Tanh(), nn.Linear(width, out))


def setup(model: nn.Module, loader: Any, loss_fn: Any = None, optimizer: Any = None, **more: Any) -> dict[str, Any]:
    """Return the parts of a set-up, with the mean squared error and SGD unless others are given."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    return dict(model=model, loader=loader, loss_fn=loss_fn or nn.MSELoss(), optimizer=optimizer, **more)
