"""Datasets for the worker tests, in a module of their own: a spawned worker imports it, and little else."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class GlobalNoise(Dataset):
    """Each item is one draw from each global generator: Python's, NumPy's, torch's; shape (3,)."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class OwnNoise(Dataset):
    """Each item is one draw from each generator that the dataset keeps for itself, shape (2,) or (3,).

    Without torch's where the dataset must travel to a spawned worker: torch 2.14.1 can't send a generator there.
    """

    def __init__(self, with_torch: bool = True) -> None:
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)
        self.torch = torch.Generator() if with_torch else None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        draws = [self.python.random(), self.numpy.random()]
        if self.torch is not None:
            draws.append(torch.rand((), generator=self.torch).item())
        return torch.tensor(draws, dtype=torch.float64)


class DuckNoise:
    """Keeps a generator, is a dataset by behaviour only; each item has shape (1,)."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([self.rng.random()])
