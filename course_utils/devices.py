"""Where the arithmetic happens: choose a device, say what it is, wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device called ``name``; ``"auto"`` takes CUDA, else Apple's MPS, else the CPU.

    Raises:
        UsageError: if the name is unknown or this machine has no such device.
    """
    raise NotImplementedError


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let CPU operators use ``count`` threads inside the block, then restore the earlier number."""
    raise NotImplementedError
    yield


def describe_device(device: str | torch.device) -> str:
    """Return what the device is, for people: ``cpu (2 threads)``, ``cuda:0 (NVIDIA H200, 139.8 GiB)``."""
    raise NotImplementedError


def synchronize(device: str | torch.device) -> None:
    """Wait until the device has finished what was asked of it, so that a clock can be read. CPU: returns at once."""
    raise NotImplementedError
