"""Fresh random inputs for checks, from a generator of their own: the learner's randomness is untouched."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Inputs:
    """Random values and sizes for one run of one check.

    Every run has other values, unless ``seed`` or the environment variable ``COURSE_CHECK_SEED`` fixes
    them (grading, stored notebook outputs).
    """

    def __init__(self, seed: int | None = None) -> None:
        if seed is None:
            fixed = os.environ.get("COURSE_CHECK_SEED", "")
            seed = int(fixed) if fixed.isdigit() else secrets.randbits(32)
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self._random = random.Random(seed)

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return standard normal values, contiguous."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64, device="cpu").to(dtype)

    def rand(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uniform values in [0, 1), contiguous."""
        return torch.rand(shape, generator=self.generator, dtype=torch.float64, device="cpu").to(dtype)

    def randint(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return whole numbers in low..high-1, contiguous."""
        return torch.randint(low, high, shape, generator=self.generator, dtype=dtype, device="cpu")

    def strided(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return standard normal values with gaps and an offset in their storage: never contiguous.

        The last axis must hold at least two elements; with fewer there is nothing to space out.
        """
        wide = self.randn(*shape[:-1], 2 * shape[-1] + 1, dtype=dtype)
        return wide[..., 1::2]

    def size(self, low: int, high: int) -> int:
        """Return one whole number in low..high, both included."""
        return self._random.randint(low, high)

    def sizes(self, count: int, low: int, high: int) -> list[int]:
        """Return ``count`` different whole numbers in low..high: no axis can pass for another."""
        return self._random.sample(range(low, high + 1), count)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``."""
        return self._random.choice(options)

    def permutation(self, count: int) -> list[int]:
        """Return 0..count-1 in an order that is not the sorted one (for ``count`` of 2 or more)."""
        order = list(range(count))
        while order == sorted(order) and count > 1:
            self._random.shuffle(order)
        return order
