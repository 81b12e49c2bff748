"""Programs that tests run in ranks."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from course_utils.ranks import group


def returns(value):
    """Return the value."""
    return value


def speaks():
    """Print to both streams."""
    print("out", os.environ["RANK"])
    print("err", os.environ["RANK"], file=sys.stderr)


def raises_in_one():
    """Raise in rank 1 while the others wait for it."""
    with group(5) as (rank, _):
        if rank == 1:
            raise ValueError("rank 1 has had enough")
        dist.all_reduce(torch.ones(1))


def dies_in_one():
    """Kill rank 1 while the others wait for it."""
    with group(5) as (rank, _):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))


def sleeps(seconds=60.0):
    """Sleep."""
    print("asleep", flush=True)
    time.sleep(seconds)


def spins():
    """Compute for ever, deaf to polite signals."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("spinning", flush=True)
    while True:
        pass


def threads():
    """Return how many threads arithmetic may use."""
    return torch.get_num_threads()


def unpicklable():
    """Return what can't travel."""
    return lambda: 1
