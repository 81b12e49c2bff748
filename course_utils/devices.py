"""Where the arithmetic happens: choose a device, say what it is, wait for it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from course_utils.errors import UsageError
from course_utils.text import did_you_mean, human_bytes, plural


def available_devices() -> dict[str, int]:
    """Return how many devices of each kind this machine has, the preferred kind first: ``{"cuda": 2, "cpu": 1}``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)  # CUDA, Apple's MPS, …, or None
    return ({accelerator.type: torch.accelerator.device_count()} if accelerator else {}) | {"cpu": 1}


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """Return the device called ``name``; ``"auto"`` takes the accelerator if there is one, else the CPU.

    Args:
        name: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``, or a device.

    Raises:
        UsageError: if that is no name of a device, or this machine has no such device.
    """
    counts = available_devices()
    if name == "auto":
        return torch.device(next(iter(counts)))
    names = [kind if count == 1 else f"{kind}:{index}" for kind, count in counts.items() for index in range(count)]
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"There is no kind of device called {str(name)!r}.",
            expected=f"one of {', '.join(['auto', *names])}",
            fix=did_you_mean(str(name), ["auto", "cuda", "mps", *names]),
        ) from error
    if (device.index or 0) >= counts.get(device.type, 0):
        raise UsageError(
            f"This machine has no device {str(device)!r}.",
            got=_why_missing(device),
            expected=f"one of {', '.join(['auto', *names])}",
            fix='use "auto", which takes the best device that is there',
        )
    return device


def _why_missing(device: torch.device) -> str | None:
    """Return the likely reason, where torch knows one."""
    if device.type == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "PyTorch finds no NVIDIA driver and GPU that it can use"
    return None


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let CPU operators use ``count`` threads inside the block, then the earlier number again.

    Raises:
        UsageError: if ``count`` is not a whole number of at least 1.
    """
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if number < 1:
        raise UsageError("This is not a number of threads.", got=count, expected="a whole number of at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_device(device: str | torch.device) -> str:
    """Return what a device is, for people: ``cpu (2 threads)``, ``cuda:0 (NVIDIA H200, 139.8 GiB)``."""
    device = pick_device(device)
    if device.type == "cpu":
        return f"cpu ({plural(torch.get_num_threads(), 'thread')})"
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        return f"{device} ({facts.name}, {human_bytes(facts.total_memory)})"
    return str(device)


def synchronize(device: str | torch.device) -> None:
    """Wait until a device has done what it was asked, so that a clock can be read. The CPU is never behind.

    An accelerator works on a queue: an operator returns as soon as its work is queued.
    """
    device = torch.device(device)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
